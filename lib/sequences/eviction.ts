import { invalid } from '../border/errors.js'

/** A block that nobody holds any more, and that prompts can still find. */
interface Released {
  /** What {@link Sequence.retain} gave it, 0 to 100; 50 when it was given nothing, or its limit is over. */
  readonly priority: number
  /** Its place among the blocks of the sequence that held it: 0 for the first one. */
  readonly depth: number
}

/**
 * Says which blocks make room first when a pool is full: the lower the rank that it answers, 0 to 127, the sooner. Among equal
 * ones the block goes first that was released first. What it answers is a block's own rank, and {@link RetainOptions} has the rule
 * for the rest: whatever it answers, no block goes before those that followed it in its sequence, which could not be found without
 * it, unless it was given a new priority since, or left a window. Without a policy, the priority is the rank.
 *
 * It is asked when the cache is made, once for each priority and each depth up to 255, and never again: what lies deeper counts
 * as 255. So it must answer from these two alone. What it throws, the constructor throws. That takes 26 kB, and about 2 ms the first
 * time in a process, 0.1 to 0.3 ms from then on.
 *
 * @example
 * ```ts
 * import { PagedKvCache, type EvictionPolicy } from 'kvtide'
 *
 * // The start of a prompt is shared more often than what follows: its first blocks stay longer.
 * const headsLonger: EvictionPolicy = ({ priority, depth }) => priority + (depth < 1 ? 20 : 0)
 * using cache = new PagedKvCache({ capacity: 4, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, eviction: headsLonger })
 * for (const tokens of [[1, 2, 3, 4], [5, 6, 7, 8]]) {
 *   using chat = cache.openSequence() // ends with the block
 *   chat.append({ tokens, k: { data: new Float32Array(4), shape: [1, 1, 4, 1] }, v: { data: new Float32Array(4), shape: [1, 1, 4, 1] } })
 * }
 * cache.ensureCapacity(cache.createSequence(), 4) // two blocks have to go: the second one of each
 * console.log([cache.explain([1, 2, 3, 4, 0]).matched, cache.explain([5, 6, 7, 8, 0]).matched]) // [2, 2]
 * ```
 */
export type EvictionPolicy = (released: Released) => number

/** The highest priority, the deepest place that is told apart, and the highest rank. */
const [PRIORITY_MAX, DEPTH_MAX, RANK_MAX] = [100, 255, 127]

/** @internal Asks a policy about every priority and depth: a row of ranks for each priority. */
export function readEviction(argument: string, value: unknown): Uint8Array {
  if (typeof value !== 'function') throw invalid(argument, value, 'a function that gives the rank of a released block')
  const policy = value as (released: Released) => unknown
  const ranks = new Uint8Array((PRIORITY_MAX + 1) * (DEPTH_MAX + 1))
  let place = 0
  for (let priority = 0; priority <= PRIORITY_MAX; priority++) {
    for (let depth = 0; depth <= DEPTH_MAX; depth++) {
      const rank = policy({ priority, depth })
      // The name of a question is put together only for the error that tells it.
      if (!isRank(rank)) throw invalid(`${argument}({ priority: ${priority}, depth: ${depth} })`, rank, `a whole number from 0 to ${RANK_MAX}`)
      ranks[place++] = rank
    }
  }
  return ranks
}

function isRank(rank: unknown): rank is number {
  return typeof rank === 'number' && Number.isInteger(rank) && rank >= 0 && rank <= RANK_MAX
}
