import { attend, type HostTensor } from '../../../index.js'
import { narrow } from '../half.js'
import { exact, pagesFor, type Form } from './form.js'
import { Random } from './random.js'

/** Random queries, keys and values: number of tokens, head dimension and seeds. */
export interface Draw {
  readonly headDim: number
  readonly tokens: number
  readonly seeds: readonly number[]
}

/** The difference of an output from that over f32 pages. */
export interface OutputError {
  readonly mean: number
  readonly max: number
  /** The root mean square of the output over f32 pages. */
  readonly size: number
}

/** The number of query heads, of K and V heads and of queries, and the queries' deviation, which gives scores a deviation of 2. */
export const DRAWN = { queryHeads: 4, kvHeads: 2, queries: 16, queryDeviation: 2 } as const

/** One of 32 channels is an outlier: its mean is 10 away from 0, and its deviation is 2 instead of 1. */
export const OUTLIERS = { oneIn: 32, mean: 10, deviation: 2 } as const

interface Drawn {
  readonly q: HostTensor
  readonly k: Float32Array
  readonly v: Float32Array
}

/** Keys and values `[kvHeads, tokens, headDim]`: normal numbers, and outlier channels in K, per head. */
function drawn({ headDim, tokens }: Draw, seed: number): Drawn {
  const random = new Random(seed)
  const { kvHeads, queryHeads, queries, queryDeviation } = DRAWN
  const k = random.normals(kvHeads * tokens * headDim)
  for (let head = 0; head < kvHeads; head++) {
    for (let number = 0; number < headDim / OUTLIERS.oneIn; number++) {
      const channel = number * OUTLIERS.oneIn + Math.floor(random.uniform() * OUTLIERS.oneIn)
      const mean = random.uniform() < 0.5 ? -OUTLIERS.mean : OUTLIERS.mean
      for (let token = 0; token < tokens; token++) {
        const at = (head * tokens + token) * headDim + channel
        k[at] = mean + OUTLIERS.deviation * (k[at] as number)
      }
    }
  }
  const v = random.normals(kvHeads * tokens * headDim)
  const q = {
    data: random.normals(queries * queryHeads * headDim, queryDeviation),
    shape: [queries, queryHeads, headDim],
  }
  return { q, k, v }
}

/** The attention of the last tokens' queries over pages of a form. */
function output(form: Form, { headDim, tokens }: Draw, { q, k, v }: Drawn): Float32Array {
  using cache = pagesFor(form, tokens, { numLayers: 1, numKvHeads: DRAWN.kvHeads, headDim })
  const { dtype } = cache
  const rows = (data: Float32Array): HostTensor =>
    ({ data: narrow(dtype, data), shape: [DRAWN.kvHeads, tokens, headDim], dtype }) as HostTensor
  const seq = cache.createSequence()
  cache.writeTokens(seq, 0, 0, rows(k), rows(v))
  return attend(q, { cache, layer: 0, sequences: [seq] }, { qOffsets: [0, DRAWN.queries] }).out.toFloat32Array()
}

/** The error of every form, by its name. */
export function outputErrors(forms: readonly Form[], draw: Draw): ReadonlyMap<string, OutputError> {
  const sums = new Map(forms.map(({ name }) => [name, { sum: 0, max: 0, squares: 0, count: 0 }]))
  for (const seed of draw.seeds) {
    const made = drawn(draw, seed)
    const wanted = output(exact, draw, made)
    for (const form of forms) {
      const sum = sums.get(form.name) as { sum: number; max: number; squares: number; count: number }
      for (const [at, value] of output(form, draw, made).entries()) {
        const right = wanted[at] as number
        const off = Math.abs(value - right)
        sum.sum += off
        sum.max = Math.max(sum.max, off)
        sum.squares += right ** 2
      }
      sum.count += wanted.length
    }
  }
  return new Map(
    [...sums].map(([name, { sum, max, squares, count }]) => [
      name,
      { mean: sum / count, max, size: Math.sqrt(squares / count) },
    ]),
  )
}
