import { attend, PagedKvCache, type AttendOptions, type HostTensor, type UniformCacheOptions } from '../../index.js'
import { narrow } from './half.js'
import { tokensFirst } from './llama/cached.js'
import { span } from './tokens.js'

/** The number of heads of K and V, and of queries. */
export const HEADS = { kv: 2, query: 4 } as const

/** The layer that is read, of two. */
export const LAYER = 1

const length = (shape: readonly number[]): number => shape.reduce((product, size) => product * size, 1)

/** Numbers from -1 to 1, derived from a seed. */
export function waves(seed: number, shape: readonly number[]): HostTensor {
  const data = Float32Array.from(
    { length: length(shape) },
    (_, place) => Math.sin(seed + 1.7 * place) * Math.cos(0.3 * place * seed),
  )
  return { data, shape }
}

/** A cache whose sequences, 0 and up, have these numbers of tokens in {@link LAYER}; blocks of 4, allocated one sequence after the other. */
export function filled(lengths: readonly number[], options: Partial<UniformCacheOptions> = {}): PagedKvCache {
  const cache = new PagedKvCache({
    capacity: 32,
    blockSize: 4,
    numLayers: 2,
    numKvHeads: HEADS.kv,
    headDim: 16,
    ...options,
  })
  const { dtype, headDim, valueHeadDim } = cache
  for (const [index, tokens] of lengths.entries()) {
    const seq = cache.createSequence()
    if (tokens === 0) continue
    const rows = (seed: number, dim: number): HostTensor => {
      const { data, shape } = waves(seed, [HEADS.kv, tokens, dim])
      return { data: narrow(dtype, data as Float32Array), shape, dtype } as HostTensor
    }
    cache.writeTokens(seq, LAYER, 0, rows(index + 1, headDim), rows(index + 11, valueHeadDim))
  }
  return cache
}

/** The block table of sequences that got their blocks one after the other; -1 after a sequence's last block. */
export function tablesOf(lengths: readonly number[], blockSize = 4): Int32Array {
  const blocks = lengths.map(tokens => Math.ceil(tokens / blockSize))
  const width = Math.max(...blocks)
  let next = 0
  return Int32Array.from(blocks.flatMap(count => span(0, width).map(place => (place < count ? next++ : -1))))
}

/** Attention of each sequence separately, over copies of its keys and values. */
export function overCopies(
  cache: PagedKvCache,
  sequences: readonly number[],
  queries: readonly number[],
  q: HostTensor,
  options: AttendOptions = {},
): Float32Array {
  const row = HEADS.query * cache.headDim
  let from = 0
  const parts = sequences.map((seq, index) => {
    const count = queries[index] as number
    const data = (q.data as Float32Array).subarray(from * row, (from + count) * row)
    from += count
    const { k, v } = cache.gather(seq, LAYER)
    const kv = { k: k.reshape([1, ...k.shape]), v: v.reshape([1, ...v.shape]) }
    const { out } = attend({ data, shape: [1, count, HEADS.query, cache.headDim], layout: 'bshd' }, kv, options)
    return Array.from(tokensFirst(out.toFloat32Array(), 1, HEADS.query, cache.valueHeadDim))
  })
  return Float32Array.from(parts.flat())
}
