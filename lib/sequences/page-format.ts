// The page formats of K and V, the dtype in which rows of each are read, and the caller's arrays that receive them.
import { typedArray } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { type DType, dtypeRow, type TensorData } from '../border/host-array.js'

/**
 * The format in which pages store K or V: the cache's dtype; with `f32` also `f16` or `bf16`; or a low-bit format. Half floats are rounded
 * to nearest when they are written; values too large for `f16` become infinite. `f8e4m3` takes one byte per element. `q8` takes one byte
 * per element, with a scale for each token and head. `q4` takes four bits per element, with a scale and a minimum: for V for each token
 * and head, for K for each channel and block.
 *
 * A value is off by at most half a step, at any magnitude. A step of `q8` is the largest magnitude of the row / 127. A step of `q4` is
 * the difference between the largest and the smallest value / 15; values beyond 8.5e37 count as 8.5e37. A step of `f8e4m3` is the distance
 * to the next number of the format; values beyond 448 become 448. NaN and infinity become NaN, in `q8` and `q4` together with all
 * values that share the scale.
 */
export type PageFormat = DType | 'f8e4m3' | 'q8' | 'q4'

const names: readonly string[] = ['f32', 'f16', 'bf16', 'u8', 'f8e4m3', 'q8', 'q4'] satisfies PageFormat[]

/** @internal Checks the name of a page format. */
export function checkPageFormat(argument: string, value: unknown): PageFormat {
  if (typeof value === 'string' && names.includes(value)) return value as PageFormat
  throw invalid(argument, value, `one of ${names.join(', ')}`)
}

/** @internal The dtype in which rows of a format are read: 32-bit floats for low-bit formats, otherwise the dtype of the pages. */
export function readDType(format: PageFormat): DType {
  return format === 'f8e4m3' || format === 'q8' || format === 'q4' ? 'f32' : format
}

/** @internal Checks the caller's array that receives K or V of a format. */
export function roomIn(argument: string, value: unknown, format: PageFormat): TensorData {
  const kinds = dtypeRow(readDType(format)).arrays.filter(kind => kind !== 'Float16Array')
  return typedArray<TensorData>(argument, value, kinds)
}
