import type { NativeView } from '#binding'

import { arrayKind, fields, isArray, list, optional, sizes, whole } from './check.js'
import { checkDType, type DType, type Float16ArrayLike, type TensorData } from './dtype.js'
import { invalid } from './errors.js'
import { HostArray, META, meta, readArray } from './host-array.js'
import { storageOf, type Tensor } from './tensor.js'
import { TensorStorage } from './tensor-storage.js'

/** A tensor of onnxruntime, or one that looks like it. */
export interface OnnxTensor {
  /** The elements. */
  readonly data: unknown
  /** The shape. */
  readonly dims: readonly number[]
  /** The element type: `float32`, `float16`, `bfloat16` or `uint8`. */
  readonly type: string
}

/**
 * A tensor in memory of your own. It is read where it lies. An onnxruntime tensor can be passed as it is; pass it as `data` to take
 * only a range of its tokens, or to name another order of axes.
 *
 * @example
 * ```ts
 * import { KvCache, type HostTensor } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 })
 * // the newest token of a `present` that holds three
 * const present = { data: new Float32Array([1, 2, 3, 4, 5, 6]), dims: [1, 1, 3, 2], type: 'float32' }
 * const newest: HostTensor = { data: present, range: [2, 3] }
 * const { k } = cache.update(newest, newest)
 * console.log(k.toArray()) // Float32Array [5, 6]
 * ```
 */
export interface HostTensor {
  /**
   * The elements, row-major in the order of `layout`. Half floats are bits in a `Uint16Array`, and need a `dtype`. Or an
   * onnxruntime tensor, which brings its shape and dtype.
   */
  readonly data: TensorData | Float16ArrayLike | OnnxTensor
  /** The shape; `dims` means the same. */
  readonly shape?: readonly number[]
  /** The shape, as onnxruntime calls it. */
  readonly dims?: readonly number[]
  /** The element type; follows from `data` unless that is a `Uint16Array`. */
  readonly dtype?: DType
  /** The element type, as onnxruntime calls it: `float32`, `float16`, `bfloat16`, `uint8`. */
  readonly type?: string
  /** Takes only the tokens `[start, end)`. */
  readonly range?: readonly [start: number, end: number]
  /** The order of the axes in `data`: batch (b), heads (h), sequence (s), head dimension (d). `bhsd` unless said otherwise. */
  readonly layout?: 'bhsd' | 'bshd'
}

/** @internal A tensor argument that was read: a native view, an array with its description, or a view that is still to be made. */
export type TensorArgument = NativeView | HostArray | TensorStorage

/**
 * @internal Reads a tensor of this package, or one in memory of the caller's own. That may run getters of the caller's, which
 * may call this package in turn: all arguments of a call are read before the first one is {@link put}.
 */
export function readTensor(argument: string, value: unknown): TensorArgument {
  return storageOf(value)?.argument ?? readHost(argument, value)
}

/** @internal Writes the description of an argument to `place` in `into`. Returns what crosses to the addon. */
export function put(argument: TensorArgument, place: number, into: Float64Array = meta): object {
  return argument instanceof HostArray || argument instanceof TensorStorage ? argument.describe(into, place * META) : argument
}

/** The names that errors give to the fields of an argument. */
interface Names {
  readonly data: string
  readonly shape: string
  readonly dtype: string
}

/** Field names by argument, so that an append does not build them anew. */
const namesOf = new Map<string, Names>()

function fieldNames(argument: string): Names {
  const known = namesOf.get(argument)
  if (known !== undefined) return known
  const names = { data: `${argument}.data`, shape: `${argument}.shape`, dtype: `${argument}.dtype` }
  namesOf.set(argument, names)
  return names
}

function readHost(argument: string, value: unknown): HostArray {
  if (typeof value !== 'object' || value === null || arrayKind(value) !== undefined) {
    throw invalid(argument, value, 'a Tensor or a HostTensor: { data, shape }')
  }
  // Each field is read once: a getter may return something else the next time.
  const names = fieldNames(argument)
  const { data: given, shape, dims, dtype, type, range, layout } = fields<HostTensor>(argument, value)
  const inside = isTensorLike(given) ? fields<OnnxTensor>(names.data, given) : undefined
  const own = shape === undefined ? dims : shape
  const size = own === undefined ? inside?.dims : own
  const data = inside === undefined ? given : inside.data
  const typed = dtype === undefined ? type : dtype
  if (size === undefined) throw invalid(names.shape, size, 'the shape of its data (shape or dims)')
  const named = optional(checkDType, names.dtype, typed === undefined ? inside?.type : typed)
  const found = readArray(names.data, data, sizes(names.shape, size), named)
  if (layout !== undefined && layout !== 'bhsd' && layout !== 'bshd') {
    throw invalid(`${argument}.layout`, layout, 'bhsd or bshd')
  }
  found.bshd = layout === 'bshd'
  if (range !== undefined) {
    const [start, end] = isArray(range) ? list(`${argument}.range`, range, whole, 2) : []
    if (start === undefined || end === undefined) throw invalid(`${argument}.range`, range, '[start, end]')
    found.range = [start, end]
  }
  return found
}

/** True for an object that has data and dims rather than being data. */
function isTensorLike(value: unknown): boolean {
  if (typeof value !== 'object' || value === null || arrayKind(value) !== undefined) return false
  try {
    return 'dims' in value
  } catch {
    return false
  }
}

/** Tokens for a cache: a tensor of this package, memory of your own, or an onnxruntime tensor as it is. */
export type TokenSource = Tensor | HostTensor | OnnxTensor

/** Keys and values of tokens for a cache. */
export interface KvSource {
  /** The keys. */
  readonly k: TokenSource
  /** The values, of as many tokens. */
  readonly v: TokenSource
}
