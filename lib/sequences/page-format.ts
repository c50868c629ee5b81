import { invalid } from '../border/errors.js'
import type { DType } from '../border/dtype.js'

/**
 * How pages keep K or V: in the cache's dtype, or low-bit. `f8e4m3` is a byte an element, `q8` a byte with a scale for each
 * token and head, `q4` four bits with a scale and a minimum (for V of each token and head, for K of each channel and block).
 *
 * A value is off by at most half a step, at any magnitude: of `q8` a step is the largest magnitude of the row / 127, of `q4` the
 * distance of smallest and largest / 15 (beyond 8.5e37 values count as that), of `f8e4m3` the distance of a number's neighbours up
 * to 448, which larger ones become. NaN or infinity is NaN, in `q8` and `q4` with everything that shares its scale: the row, of
 * K in `q4` the channel in its block.
 */
export type PageFormat = DType | 'f8e4m3' | 'q8' | 'q4'

const names: readonly string[] = ['f32', 'f16', 'bf16', 'u8', 'f8e4m3', 'q8', 'q4'] satisfies PageFormat[]

/** @internal A form of pages by its name. */
export function checkPageFormat(argument: string, value: unknown): PageFormat {
  if (typeof value === 'string' && names.includes(value)) return value as PageFormat
  throw invalid(argument, value, `one of ${names.join(', ')}`)
}

/** @internal The dtype in which rows of this form come out: low-bit ones as 32-bit floats. */
export function readDType(format: PageFormat, dtype: DType): DType {
  return format === dtype ? dtype : 'f32'
}
