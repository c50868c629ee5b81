import { fields, isArray, known, list, type Names, optional } from './check.js'
import { invalid } from './errors.js'
import { META, put, readTensor, type TensorArgument, type TokenSource } from './host-tensor.js'
import { parentsOf } from './kv-transaction.js'
import { readTokens, type TokenIds } from './prompt.js'

const TOKENS: Names<ModelDraftTokens> = { layers: 0, tokens: 0, parents: 0 }

/** K and V of one layer: `[numKvHeads, n, headDim]`, or with the batch before it. */
export interface LayerKv {
  /** The keys. */
  readonly k: TokenSource
  /** The values, as many. */
  readonly v: TokenSource
}

/** Tokens of all layers for one sequence of a {@link ModelCache}. */
export interface ModelTokens {
  /** One pair for each layer with keys and values of its own, in order. */
  readonly layers: readonly LayerKv[]
  /** Their ids: full blocks of known tokens can be found by other prompts. Left out, nothing from here on is. */
  readonly tokens?: TokenIds
}

/** Tokens that are drafted on a sequence of a {@link ModelCache}. */
export interface ModelDraftTokens extends ModelTokens {
  /** For each token the one of the transaction that it follows, counted from 0, or -1 for the last one before it. */
  readonly parents?: Int32Array | readonly number[]
}

/** @internal Tokens of all layers, read. */
export class LayersArgument {
  readonly #pairs: readonly TensorArgument[]
  readonly parents: Int32Array | undefined
  readonly tokens: Uint32Array | undefined

  constructor(input: unknown) {
    const { layers, tokens, parents } = known<ModelDraftTokens>('input', input, TOKENS)
    if (!isArray(layers)) throw invalid('layers', layers, 'an array of { k, v }, one for each layer with its own')
    this.tokens = optional(readTokens, 'tokens', tokens)
    this.parents = optional(parentsOf, 'parents', parents)
    this.#pairs = list('layers', layers, pair).flat()
  }

  /** Writes the pairs down in {@link room}, and answers what crosses in their stead. */
  put(): object[] {
    if (room.length < this.#pairs.length * META) room = new Float64Array(2 * this.#pairs.length * META)
    return this.#pairs.map((argument, place) => put(argument, place, room))
  }

  /** The descriptions that {@link put} has written. They are read within a call, so that one array is enough. */
  get described(): Float64Array {
    return room
  }
}

function pair(argument: string, entry: unknown): [k: TensorArgument, v: TensorArgument] {
  const { k, v } = fields<LayerKv>(argument, entry)
  return [readTensor(`${argument}.k`, k), readTensor(`${argument}.v`, v)]
}

let room = new Float64Array(64 * META)
