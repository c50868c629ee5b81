import { typedArray } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { type DType, dtypeRow, type TensorData } from '../border/host-array.js'

/**
 * How pages store K or V: in the cache's dtype, under `f32` also as `f16` or `bf16`, or low-bit. Half floats are rounded to nearest
 * when they are written; what is too large for `f16` becomes infinite. `f8e4m3` is one byte an element. `q8` is one byte an element, with a scale
 * for each token and head. `q4` is four bits an element, with a scale and a minimum: for each token and head of V, for each channel
 * and block of K.
 *
 * A value is off by at most half a step, at any magnitude. A step of `q8` is the largest magnitude of the row / 127. A step of `q4` is
 * the difference of the largest and the smallest value / 15; values beyond 8.5e37 count as that. A step of `f8e4m3` is the distance
 * to the next number of the format; values beyond 448 become 448. NaN and infinity become NaN, in `q8` and `q4` together with all
 * values that share the scale.
 */
export type PageFormat = DType | 'f8e4m3' | 'q8' | 'q4'

const names: readonly string[] = ['f32', 'f16', 'bf16', 'u8', 'f8e4m3', 'q8', 'q4'] satisfies PageFormat[]

/** @internal A page format by its name. */
export function checkPageFormat(argument: string, value: unknown): PageFormat {
  if (typeof value === 'string' && names.includes(value)) return value as PageFormat
  throw invalid(argument, value, `one of ${names.join(', ')}`)
}

/** @internal The dtype in which rows of this format are read: 32-bit floats for low-bit ones, the rest as it lies in pages. */
export function readDType(format: PageFormat): DType {
  return format === 'f8e4m3' || format === 'q8' || format === 'q4' ? 'f32' : format
}

/** @internal An array of the caller's that K or V of this format are read into. */
export function roomIn(argument: string, value: unknown, format: PageFormat): TensorData {
  const kinds = dtypeRow(readDType(format)).arrays.filter(kind => kind !== 'Float16Array')
  return typedArray<TensorData>(argument, value, kinds)
}
