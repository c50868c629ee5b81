import { arrayKind, fields, RANK_MAX, sizes, typedArray, whole } from './check.js'
import { checkDType, dtypeOfArray, dtypeRow, type DType, type Float16ArrayLike, type TensorData } from './dtype.js'
import { invalid, KvTideError } from './errors.js'
import { describeTensor, type Tensor } from './tensor.js'

/** The order of the four axes of a host tensor: batch (b), heads (h), sequence (s), head dimension (d). */
export type SequenceLayout = 'bhsd' | 'bshd'

/**
 * A tensor in memory of your own, read where it lies. An onnxruntime tensor is one as it is.
 *
 * @example
 * ```ts
 * import { KvCache, type HostTensor } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 })
 * // the newest token of a `present` that holds three
 * const present: HostTensor = { data: new Float32Array([1, 2, 3, 4, 5, 6]), dims: [1, 1, 3, 2], type: 'float32' }
 * const { k } = cache.update({ ...present, range: [2, 3] }, { ...present, range: [2, 3] })
 * console.log(k.toArray()) // Float32Array [5, 6]
 * ```
 */
export interface HostTensor {
  /** The elements, row-major in the order of `layout`. Half floats are bits in a `Uint16Array`, and need a `dtype`. */
  readonly data: TensorData | Float16ArrayLike
  /** The shape, under either name. */
  readonly shape?: readonly number[]
  /** The shape, as onnxruntime calls it. */
  readonly dims?: readonly number[]
  /** The element type; follows from `data` unless that is a `Uint16Array`. */
  readonly dtype?: DType
  /** The element type, as onnxruntime calls it: `float32`, `float16`, `bfloat16`, `uint8`. */
  readonly type?: string
  /** The tokens `[start, end)` alone. */
  readonly range?: readonly [start: number, end: number]
  /** The order of the axes in `data`, `bhsd` unless said otherwise. */
  readonly layout?: SequenceLayout
}

/** Numbers of one description at the border with the addon. */
const META = 6 + RANK_MAX

/** Room for the descriptions of K and V. The addon reads it before a call returns, so that one is enough. */
export const meta: Float64Array = new Float64Array(2 * META)

/** @internal Describes `value` at `place` in {@link meta}; what it returns goes to the addon in its stead. */
export function describe(argument: string, value: unknown, place: 0 | 1): object {
  const native = describeTensor(value, place * META)
  return native ?? describeHost(argument, value, place * META)
}

/** @internal Describes a typed array of this shape; what it returns goes to the addon in its stead. */
export function describeData(argument: string, data: unknown, shape: readonly number[], named: DType | undefined, at: number): object {
  const kind = arrayKind(data)
  if (kind === undefined) throw invalid(argument, data, 'a Float32Array, Uint16Array, Uint8Array or Float16Array')
  const dtype = dtypeOfArray(argument, kind, named)
  const row = dtypeRow(dtype)
  const array = typedArray<TensorData | Float16ArrayLike>(argument, data, row.arrays)
  const elements = shape.reduce((product, size) => product * size, 1)
  if (array.length !== elements) {
    const detached = array.length === 0 ? ' (a detached or resized buffer has none)' : ''
    const expected = `${array.length} elements, as ${argument} has${detached}`
    throw new KvTideError('SHAPE_MISMATCH', `shape [${shape.join(', ')}] has ${elements} elements, expected ${expected}`, {
      argument: 'shape',
      value: shape,
      expected,
    })
  }
  meta[at] = row.code
  meta[at + 1] = 0
  meta[at + 2] = 0
  meta[at + 5] = shape.length
  meta.set(shape, at + 6)
  return kind === 'Float16Array' ? new Uint16Array(array.buffer, array.byteOffset, array.length) : array
}

function describeHost(argument: string, value: unknown, at: number): object {
  if (typeof value !== 'object' || value === null) throw invalid(argument, value, 'a Tensor or a HostTensor')
  // Each field is read once: a getter may answer differently the next time.
  const host = fields<HostTensor>(argument, value)
  const { data, shape, dims, dtype, type, range, layout } = host
  const size = shape ?? dims
  if (size === undefined) throw invalid(`${argument}.shape`, size, 'the shape of its data (shape or dims)')
  const named = dtype ?? type
  const found = describeData(
    `${argument}.data`,
    data,
    sizes(`${argument}.shape`, size),
    named === undefined ? undefined : checkDType(`${argument}.dtype`, named),
    at,
  )
  if (layout !== undefined && layout !== 'bhsd' && layout !== 'bshd') {
    throw invalid(`${argument}.layout`, layout, 'bhsd or bshd')
  }
  meta[at + 1] = layout === 'bshd' ? 1 : 0
  if (range !== undefined) {
    if (!Array.isArray(range) || range.length !== 2) throw invalid(`${argument}.range`, range, '[start, end]')
    meta[at + 2] = 1
    meta[at + 3] = whole(`${argument}.range[0]`, range[0])
    meta[at + 4] = whole(`${argument}.range[1]`, range[1])
  }
  return found
}

/** Tokens for a cache: a tensor of this package, or memory of your own. */
export type TokenSource = Tensor | HostTensor
