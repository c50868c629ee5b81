import { arrayKind, arrayLength, count, fields, isArray, known, list, type Names, optional, typedArray } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { META, meta, type TensorData } from '../border/host-array.js'
import { type KvSource, put, readTensor, type TensorArgument } from '../border/tensor.js'
import { parentsOf } from '../contiguous/kv-transaction.js'
import { roomIn } from './page-format.js'
import type { SharedCache } from './shared-cache.js'

const TOKENS: Names<AnyTokens> = { k: 0, v: 0, layers: 0, tokens: 0, parents: 0 }

/** Ids of tokens, each from 0 to 2^32 - 1. A `BigInt64Array` is what tensors of ids have in onnxruntime and transformers.js. */
export type TokenIds = Uint32Array | BigInt64Array | readonly number[]

/** What is known of tokens besides their keys and values. */
interface TokensOptions {
  /** The ids of the tokens. Prompts find full blocks of tokens whose ids are known, and nothing behind a token without one. */
  readonly tokens?: TokenIds
  /**
   * In a transaction: for each token, the number of the drafted token that it follows, counted from 0, or -1 for the last token before
   * the transaction. A parent comes before its children. Without `parents` each token follows the one before.
   */
  readonly parents?: Int32Array | readonly number[]
}

/**
 * Tokens of all layers for one sequence. Where all layers are alike: `k` and `v` of `[numLayers, numKvHeads, n, headDim]`, with the
 * layout `bshd` `[numLayers, n, numKvHeads, headDim]`. For any layers: `layers`, a pair for each layer with keys and values of its own,
 * in order, each `[numKvHeads, n, headDim]` or with a 1 before it.
 */
export type Tokens = TokensOptions & ((KvSource & { readonly layers?: undefined }) | { readonly layers: readonly KvSource[]; readonly k?: undefined; readonly v?: undefined })

type AnyTokens = KvSource & TokensOptions & { readonly layers: readonly KvSource[] }

/**
 * @internal Appends tokens to a sequence, or drafts them in a transaction of it, and gives their ids, which some have to know. All arguments are
 * read before the cache changes, each once.
 */
export function append(shared: SharedCache, sequence: number, draft: number | undefined, input: unknown, areKnown = false): Uint32Array | undefined {
  const { k, v, layers, tokens, parents } = known<AnyTokens>('input', input, TOKENS)
  const ids = areKnown ? readTokens('tokens', tokens) : optional(readTokens, 'tokens', tokens)
  const nodes = optional(parentsOf, 'parents', parents)
  if (layers === undefined) {
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    shared.change(native => native.appendTo(destination(sequence, draft), put(keys, 0), put(values, 1), meta, nodes, ids))
    return ids
  }
  if (k !== undefined || v !== undefined) throw invalid('layers', layers, 'none beside k and v')
  if (!isArray(layers)) throw invalid('layers', layers, 'an array of { k, v }, one for each layer with its own')
  const pairs = list('layers', layers, pair).flat()
  shared.change(native => native.appendLayers(destination(sequence, draft), written(pairs), room, nodes, ids))
  return ids
}

/** @internal Ids of tokens, each read once. */
export function readTokens(argument: string, value: unknown): Uint32Array {
  if (!isArray(value)) {
    const kind = arrayKind(value)
    if (kind === 'Uint32Array') return typedArray(argument, value, [kind])
    if (kind === 'BigInt64Array') return readTokens(argument, Array.from(typedArray<BigInt64Array>(argument, value, [kind]), Number))
    throw invalid(argument, value, 'an array of whole numbers, a Uint32Array or a BigInt64Array')
  }
  const length = count(`${argument}.length`, value.length)
  const ids: number[] = []
  for (let place = 0; place < length; place++) {
    const id = value[place]
    if (typeof id !== 'number' || id >>> 0 !== id) throw invalid(`${argument}[${place}]`, id, 'a whole number from 0 to 4294967295')
    ids.push(id)
  }
  return new Uint32Array(ids)
}

/**
 * Arrays of your own for what a sequence holds: `k` and `v` of all layers, where they are alike, or a pair for each layer with keys and values
 * of its own.
 */
export type KvArrays =
  | { readonly k: TensorData; readonly v: TensorData; readonly layers?: undefined }
  | { readonly layers: readonly { readonly k: TensorData; readonly v: TensorData }[]; readonly k?: undefined; readonly v?: undefined }

const ARRAYS: Names<{ k: unknown; v: unknown; layers: unknown }> = { k: 0, v: 0, layers: 0 }

/** @internal The arrays that a sequence is read into: K and V of a layer, one layer behind the other. */
export function roomFor(shared: SharedCache, out: unknown): TensorData[] {
  const { k, v, layers } = known<{ k: unknown; v: unknown; layers: unknown }>('out', out, ARRAYS)
  const [ofKeys, ofValues] = shared.formats
  const read = (argument: string, keys: unknown, values: unknown): TensorData[] => [roomIn(`${argument}k`, keys, ofKeys), roomIn(`${argument}v`, values, ofValues)]
  if (layers === undefined) {
    const parts = read('', k, v).map((array, place) => inLayers(place === 0 ? 'k' : 'v', array, shared.layers))
    return Array.from({ length: shared.layers }, (_, layer) => parts.map(of => of[layer] as TensorData)).flat()
  }
  if (k !== undefined || v !== undefined) throw invalid('layers', layers, 'none beside k and v')
  if (!isArray(layers)) throw invalid('layers', layers, 'an array of { k, v }, one for each layer with its own')
  return list('layers', layers, (argument, entry) => {
    const arrays = fields<KvSource>(argument, entry)
    return read(`${argument}.`, arrays.k, arrays.v)
  }).flat()
}

/** The parts of an array that are those of each layer. */
function inLayers(argument: string, array: TensorData, layers: number): TensorData[] {
  const size = arrayLength(array) / layers
  if (!Number.isInteger(size)) throw invalid(`${argument}.length`, arrayLength(array), `the same number of elements for each of ${layers} layers`)
  return Array.from({ length: layers }, (_, layer) => array.subarray(layer * size, (layer + 1) * size))
}

function pair(argument: string, entry: unknown): [k: TensorArgument, v: TensorArgument] {
  const { k, v } = fields<KvSource>(argument, entry)
  return [readTensor(`${argument}.k`, k), readTensor(`${argument}.v`, v)]
}

/** Where tokens go: the sequence, and the transaction if there is one. The addon reads the array within the call, so one serves all calls. */
function destination(sequence: number, draft: number | undefined): Float64Array {
  const at = draft === undefined ? direct : drafted
  at[0] = sequence
  if (draft !== undefined) at[1] = draft
  return at
}

/** Writes the descriptions of tensors to {@link room}. Returns what crosses to the addon. */
function written(tensors: readonly TensorArgument[]): object[] {
  if (room.length < tensors.length * META) room = new Float64Array(2 * tensors.length * META)
  return tensors.map((tensor, index) => put(tensor, index, room))
}

const [direct, drafted] = [new Float64Array(1), new Float64Array(2)]
let room = new Float64Array(64 * META)
