// Tokens as arguments: their ids, and their keys and values in all layers, each argument read once before the cache changes.
import {
  arrayKind,
  arrayLength,
  count,
  fields,
  isArray,
  known,
  list,
  type Names,
  optional,
  typedArray,
} from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { META, meta, type TensorData } from '../border/host-array.js'
import { type KvSource, put, readTensor, type TensorArgument } from '../border/tensor.js'
import { parentsOf } from '../contiguous/kv-transaction.js'
import { roomIn } from './page-format.js'
import type { SharedCache } from './shared-cache.js'

const TOKENS: Names<AnyTokens> = { k: 0, v: 0, layers: 0, tokens: 0, parents: 0 }

/** Token ids, each from 0 to 2^32 - 1. onnxruntime and transformers.js use a `BigInt64Array` for tensors of ids. */
export type TokenIds = Uint32Array | BigInt64Array | readonly number[]

/** Properties of tokens besides their keys and values. */
interface TokensOptions {
  /** The ids of the tokens. Only full blocks of tokens with ids are added to the prefix cache, up to the first token without an id. */
  readonly tokens?: TokenIds
  /**
   * In a transaction: for each token, the number of the drafted token that it follows, counted from 0, or -1 for the last token before
   * the transaction. A parent comes before its children. Without `parents`, each token follows the one before.
   */
  readonly parents?: Int32Array | readonly number[]
}

/**
 * Tokens of all layers for one sequence. For uniform layers: `k` and `v` of `[numLayers, numKvHeads, n, headDim]`, with the layout `bshd`
 * `[numLayers, n, numKvHeads, headDim]`. For any layers: `layers`, a pair for each layer with keys and values of its own, in order, each
 * `[numKvHeads, n, headDim]` or with a 1 before it.
 */
export type Tokens = TokensOptions &
  (
    | (KvSource & { readonly layers?: undefined })
    | { readonly layers: readonly KvSource[]; readonly k?: undefined; readonly v?: undefined }
  )

type AnyTokens = KvSource & TokensOptions & { readonly layers: readonly KvSource[] }

/**
 * @internal Appends tokens to a sequence, or drafts them in one of its transactions, and returns their ids; with `areKnown` the ids are required. All
 * arguments are read once, before the cache changes.
 */
export function append(
  shared: SharedCache,
  sequence: number,
  draft: number | undefined,
  input: unknown,
  areKnown = false,
): Uint32Array | undefined {
  const { k, v, layers, tokens, parents } = known<AnyTokens>('input', input, TOKENS)
  const ids = areKnown ? readTokens('tokens', tokens) : optional(readTokens, 'tokens', tokens)
  const nodes = optional(parentsOf, 'parents', parents)
  if (layers === undefined) {
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    shared.change(native =>
      native.appendTo(destination(sequence, draft), put(keys, 0), put(values, 1), meta, nodes, ids),
    )
    return ids
  }
  if (k !== undefined || v !== undefined) throw invalid('layers', layers, 'no layers together with k and v')
  if (!isArray(layers)) throw invalid('layers', layers, 'an array of { k, v }, one for each layer with its own')
  const pairs = list('layers', layers, pair).flat()
  shared.change(native => native.appendLayers(destination(sequence, draft), written(pairs), room, nodes, ids))
  return ids
}

/** @internal Reads token ids, each once. */
export function readTokens(argument: string, value: unknown): Uint32Array {
  if (!isArray(value)) {
    const kind = arrayKind(value)
    if (kind === 'Uint32Array') return typedArray(argument, value, [kind])
    if (kind === 'BigInt64Array')
      return readTokens(argument, Array.from(typedArray<BigInt64Array>(argument, value, [kind]), Number))
    // A text is a prompt that was not tokenized, and must not end up in a log.
    const isHidden = typeof value === 'string' || undefined
    throw invalid(argument, value, 'an array of whole numbers, a Uint32Array or a BigInt64Array', isHidden)
  }
  const length = count(`${argument}.length`, value.length)
  const ids: number[] = []
  for (let place = 0; place < length; place++) {
    const id = value[place]
    if (typeof id !== 'number' || id >>> 0 !== id)
      throw invalid(`${argument}[${place}]`, id, 'a whole number from 0 to 4294967295', typeof id !== 'number')
    ids.push(id)
  }
  return new Uint32Array(ids)
}

/**
 * Your own arrays for the content of a sequence: `k` and `v` of all layers, if they are uniform, or a pair for each layer with keys and values of
 * its own.
 */
export type KvArrays =
  | { readonly k: TensorData; readonly v: TensorData; readonly layers?: undefined }
  | {
      readonly layers: readonly { readonly k: TensorData; readonly v: TensorData }[]
      readonly k?: undefined
      readonly v?: undefined
    }

const ARRAYS: Names<{ k: unknown; v: unknown; layers: unknown }> = { k: 0, v: 0, layers: 0 }

/** @internal The arrays that receive a sequence: K and V of each layer, one layer after the other. */
export function roomFor(shared: SharedCache, out: unknown): TensorData[] {
  const { k, v, layers } = known<{ k: unknown; v: unknown; layers: unknown }>('out', out, ARRAYS)
  const [ofKeys, ofValues] = shared.formats
  const read = (argument: string, keys: unknown, values: unknown): TensorData[] => [
    roomIn(`${argument}k`, keys, ofKeys),
    roomIn(`${argument}v`, values, ofValues),
  ]
  if (layers === undefined) {
    const parts = read('', k, v).map((array, place) => inLayers(place === 0 ? 'k' : 'v', array, shared.layers))
    return Array.from({ length: shared.layers }, (_, layer) => parts.map(of => of[layer] as TensorData)).flat()
  }
  if (k !== undefined || v !== undefined) throw invalid('layers', layers, 'no layers together with k and v')
  if (!isArray(layers)) throw invalid('layers', layers, 'an array of { k, v }, one for each layer with its own')
  return list('layers', layers, (argument, entry) => {
    const arrays = fields<KvSource>(argument, entry)
    return read(`${argument}.`, arrays.k, arrays.v)
  }).flat()
}

/** Splits an array into equal parts, one for each layer. */
function inLayers(argument: string, array: TensorData, layers: number): TensorData[] {
  const size = arrayLength(array) / layers
  if (!Number.isInteger(size))
    throw invalid(`${argument}.length`, arrayLength(array), `the same number of elements for each of ${layers} layers`)
  return Array.from({ length: layers }, (_, layer) => array.subarray(layer * size, (layer + 1) * size))
}

function pair(argument: string, entry: unknown): [k: TensorArgument, v: TensorArgument] {
  const { k, v } = fields<KvSource>(argument, entry)
  return [readTensor(`${argument}.k`, k), readTensor(`${argument}.v`, v)]
}

/** The sequence that gets tokens, and the transaction if there is one. The addon reads the array during the call, so all calls share it. */
function destination(sequence: number, draft: number | undefined): Float64Array {
  const at = draft === undefined ? direct : drafted
  at[0] = sequence
  if (draft !== undefined) at[1] = draft
  return at
}

/** Writes the descriptions of tensors to {@link room}. Returns the objects that cross to the addon. */
function written(tensors: readonly TensorArgument[]): object[] {
  if (room.length < tensors.length * META) room = new Float64Array(2 * tensors.length * META)
  return tensors.map((tensor, index) => put(tensor, index, room))
}

const [direct, drafted] = [new Float64Array(1), new Float64Array(2)]
let room = new Float64Array(64 * META)
