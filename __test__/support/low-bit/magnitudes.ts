import { PagedKvCache, type HostTensor, type PageFormat } from '../../../index.js'
import { BLOCK_SIZE } from './form.js'
import { Random } from './random.js'

/** A format whose values are known from its definition. */
export type LowBit = 'f8e4m3' | 'q8' | 'q4'

/** Elements of a row. */
export const WIDTH = 64

/** Rows of one head, `[BLOCK_SIZE][WIDTH]`: normal numbers, times `magnitude`. */
export function rowsOf(magnitude: number, seed: number): Float32Array {
  return new Random(seed).normals(BLOCK_SIZE * WIDTH, magnitude)
}

/** Returns rows after their page was quantised: as K, and as V. */
export function throughPages(
  format: PageFormat,
  rows: Float32Array,
  rotated = false,
): { readonly k: Float32Array; readonly v: Float32Array } {
  using cache = new PagedKvCache({
    capacity: 1,
    blockSize: BLOCK_SIZE,
    numLayers: 1,
    numKvHeads: 1,
    headDim: WIDTH,
    keyFormat: format,
    valueFormat: format,
    hadamard: rotated,
    valueHadamard: rotated,
  })
  const seq = cache.createSequence()
  const host: HostTensor = { data: rows, shape: [1, BLOCK_SIZE, WIDTH] }
  cache.writeTokens(seq, 0, 0, host, host)
  const { k, v } = cache.gather(seq, 0)
  return { k: k.toFloat32Array(), v: v.toFloat32Array() }
}

/** Half the distance between the neighbours of a value in f8e4m3, extrapolated beyond 448. */
const halfOfF8 = (value: number): number => 2 ** (Math.max(-6, Math.floor(Math.log2(Math.abs(value)))) - 4)

/** Half a step of each element, in 64-bit floats: for the best possible scale, not for the stored one. */
export function halfSteps(format: LowBit, part: 'k' | 'v', rows: ArrayLike<number>): Float64Array {
  const byChannel = format === 'q4' && part === 'k'
  const beside = (at: number): number[] =>
    byChannel
      ? Array.from({ length: BLOCK_SIZE }, (_, row) => rows[row * WIDTH + (at % WIDTH)] as number)
      : Array.from({ length: WIDTH }, (_, place) => rows[at - (at % WIDTH) + place] as number)
  const of = (at: number): number => {
    if (format === 'f8e4m3') return halfOfF8(rows[at] as number)
    const values = beside(at)
    if (format === 'q8') return Math.max(...values.map(Math.abs)) / 254
    return (Math.max(...values) - Math.min(...values)) / 30
  }
  return Float64Array.from({ length: rows.length }, (_, at) => of(at))
}

/** The largest error of the rows `found`, in half steps. */
export function errorInHalfSteps(format: LowBit, part: 'k' | 'v', rows: Float32Array, found: Float32Array): number {
  const halves = halfSteps(format, part, rows)
  return Math.max(...Array.from(rows, (value, at) => Math.abs(value - (found[at] as number)) / (halves[at] as number)))
}
