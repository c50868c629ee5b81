import type { Kv, TokenSource } from '../../index.js'
import { hosted, shows, source, type Shape } from './properties.js'
import { FLOATS, span } from './tokens.js'

/** Rows with the sizes of real models, in each float type: wide loads, many blocks of threads, odd heads. */
export const wideOn = (device: string): Shape[] =>
  FLOATS.map((dtype, at) => ({ device, dtype, batch: 2, heads: 3, dim: [64, 128, 80][at] as number }))

/** K and V of the tokens from `start` up to `end` in memory of the host. */
export const given = (shape: Shape, start: number, end: number): [k: TokenSource, v: TokenSource] => [
  hosted(shape, span(start, end), 0),
  hosted(shape, span(start, end), 1),
]

/** The same on the cache's device. */
export const placed = (shape: Shape, start: number, end: number): [k: TokenSource, v: TokenSource] => [
  source(shape, span(start, end), 0),
  source(shape, span(start, end), 1),
]

/** Throws unless K and V contain these tokens, bit for bit. */
export function showsBoth(shown: Kv | null, shape: Shape, tokens: readonly number[]): void {
  if (shown === null) throw new Error('nothing is shown')
  shows(shown.k, shape, tokens, 0)
  shows(shown.v, shape, tokens, 1)
}
