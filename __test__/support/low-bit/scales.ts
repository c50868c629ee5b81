import { Random } from './random.js'

// The cost of scales with fewer bits: the error of rows, in arithmetic only, relative to the error with exact scales.

/** The storage of scales and minimums: bits of their mantissas, and bytes of both. */
export interface Scales {
  readonly name: string
  /** A scale of `q8`, and the rows that share one: the smallest and the largest magnitude. */
  readonly q8: { readonly bits: number; readonly bytes: number; readonly range: string }
  /** A scale and a minimum of `q4`, and bytes of both. */
  readonly q4: { readonly step: number; readonly minimum: number; readonly bytes: number }
}

const WIDE = '1.5e-36 to 3.4e38'

/** The compared variants; pages use the last one. */
export const SCALES: readonly Scales[] = [
  { name: 'f32 each', q8: { bits: 23, bytes: 4, range: WIDE }, q4: { step: 23, minimum: 23, bytes: 8 } },
  { name: 'f16 each', q8: { bits: 10, bytes: 2, range: '0.0078 to 8.3e6' }, q4: { step: 10, minimum: 10, bytes: 4 } },
  { name: 'bf16 each', q8: { bits: 7, bytes: 2, range: WIDE }, q4: { step: 7, minimum: 7, bytes: 4 } },
  {
    name: 'bf16; 14 and 18 bits of one word',
    q8: { bits: 7, bytes: 2, range: WIDE },
    q4: { step: 6, minimum: 9, bytes: 4 },
  },
]

/** Rounds a number to a mantissa of so many bits. */
function cut(value: number, bits: number, round: (value: number) => number): number {
  if (value === 0) return 0
  const unit = 2 ** (Math.floor(Math.log2(Math.abs(value))) - bits)
  return round(value / unit) * unit
}

/** Returns the scale and the minimum for numbers from `low` to `high`. */
function steps({ q4 }: Scales, low: number, high: number): readonly [number, number] {
  const of = (minimum: number): readonly [number, number] => [cut((high - minimum) / 15, q4.step, Math.round), minimum]
  const [step, nearest] = of(cut(low, q4.minimum, Math.round))
  return 2 * (nearest - low) <= step ? [step, nearest] : of(cut(low, q4.minimum, Math.floor))
}

const DRAWS = 2000

/** The mean error of rows, each of `count` normal numbers around `mean`, relative to the error with exact scales. */
export function relativeError(format: 'q8' | 'q4', scales: Scales, count: number, mean = 0): number {
  const random = new Random(11)
  const exact = SCALES[0] as Scales
  const sums = [0, 0]
  for (let draw = 0; draw < DRAWS; draw++) {
    const values = random.normals(count).map(value => value + mean)
    const [low, high] = [Math.min(...values), Math.max(...values)]
    for (const [at, of] of [scales, exact].entries()) {
      const [step, minimum] =
        format === 'q8' ? [cut(Math.max(high, -low) / 127, of.q8.bits, Math.round), 0] : steps(of, low, high)
      const [least, most] = format === 'q8' ? [-127, 127] : [0, 15]
      const error = (value: number): number =>
        Math.abs(Math.min(most, Math.max(least, Math.round((value - minimum) / step))) * step + minimum - value)
      sums[at] = values.reduce((sum, value) => sum + error(value), sums[at] as number)
    }
  }
  return (sums[0] as number) / (sums[1] as number)
}
