import type { UniformCacheOptions } from '../../index.js'

/** A cache for {@link layered} tokens, with keys that other caches can compute. */
export const LAYERED: UniformCacheOptions = {
  capacity: 64,
  blockSize: 4,
  numLayers: 2,
  numKvHeads: 2,
  headDim: 1,
  namespace: 'a model',
  prefixKey: new Uint8Array(32).fill(3),
}

/** Numbers with a shape. */
interface Rows {
  readonly data: Float32Array
  readonly shape: readonly number[]
}

/** K and V of tokens in two layers and two heads, `[2, 2, n, 1]`. K is the token's number, plus a half in the second head; V is its negative. */
export function layered(tokens: readonly number[]): [k: Rows, v: Rows] {
  const data = Float32Array.from([0, 1, 0, 1].flatMap(head => tokens.map(token => token + head / 2)))
  const shape = [2, 2, tokens.length, 1]
  return [
    { data, shape },
    { data: data.map(value => (value === 0 ? 0 : -value)), shape },
  ]
}
