import { arrayKind, arrayLength, asBits, RANK_MAX, typedArray } from './check.js'
import { dtypeOfArray, dtypeRow, type DType, type Float16ArrayLike, type TensorData } from './dtype.js'
import { invalid, KvTideError } from './errors.js'

/** Numbers of one description at the border with the addon. */
export const META: number = 6 + RANK_MAX

/** Where the addon writes what it shows, behind the descriptions of K and V: a kind and 10 numbers. */
export const SHOWN: number = 2 * META

/** The descriptions of K and V, and what the addon shows. The addon reads it within a call, so one array serves all calls. */
export const meta: Float64Array = new Float64Array(SHOWN + 11)

/** A typed array, and how the addon is to read it. */
export class HostArray {
  readonly array: object
  readonly dtype: number
  readonly dims: readonly number[]
  bshd = false
  range: readonly [start: number, end: number] | undefined

  constructor(array: object, dtype: number, dims: readonly number[]) {
    this.array = array
    this.dtype = dtype
    this.dims = dims
  }

  /** Writes its description to `into` from `at` on. Returns the array, which crosses to the addon. */
  describe(into: Float64Array, at: number): object {
    into[at] = this.dtype
    into[at + 1] = this.bshd ? 1 : 0
    into[at + 2] = this.range === undefined ? 0 : 1
    into[at + 3] = this.range?.[0] ?? 0
    into[at + 4] = this.range?.[1] ?? 0
    into[at + 5] = this.dims.length
    for (let axis = 0; axis < this.dims.length; axis++) into[at + 6 + axis] = this.dims[axis] as number
    return this.array
  }
}

/** A typed array of this shape, refused where its kind or its length does not fit. */
export function readArray(argument: string, data: unknown, shape: readonly number[], named: DType | undefined): HostArray {
  const kind = arrayKind(data)
  if (kind === undefined) throw invalid(argument, data, 'a Float32Array, Uint16Array, Uint8Array or Float16Array')
  const dtype = dtypeOfArray(argument, kind, named)
  const row = dtypeRow(dtype)
  const array = typedArray<TensorData | Float16ArrayLike>(argument, data, row.arrays)
  const length = arrayLength(array)
  const elements = shape.reduce((product, size) => product * size, 1)
  if (length !== elements) {
    const expected = `${length} elements, as ${argument} has`
    throw new KvTideError('SHAPE_MISMATCH', `shape [${shape.join(', ')}] has ${elements} elements, expected ${expected}`, {
      argument: 'shape',
      value: shape,
      expected,
    })
  }
  return new HostArray(kind === 'Float16Array' ? asBits(array) : array, row.code, shape)
}
