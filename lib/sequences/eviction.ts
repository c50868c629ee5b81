// Eviction policies, which are tabulated when a cache is made.
import { invalid } from '../errors/errors.js'

/** A block with a reference count of zero that prompts can still reuse. */
interface Released {
  /** Its priority, 0 to 100: the one that {@link Sequence.retain} gave it, or 50. */
  readonly priority: number
  /** Its place among the blocks of the sequence that released it; 0 is the first block. */
  readonly depth: number
}

/**
 * Decides which cached blocks are evicted first when a pool is full. It returns a block's own rank, 0 to 127: the lowest rank is evicted
 * first, and of equal ranks the block that was released first. Without a policy, the priority is the rank. A block also inherits ranks
 * of later blocks, so that it is not evicted before blocks that cannot be reused without it: {@link RetainOptions} has the whole rule.
 *
 * The policy is called when the cache is made, once for each priority and each depth up to 255, and never again. Deeper blocks count as
 * 255. So the rank must depend on these two only. An error that the policy throws is thrown by the constructor. The table of ranks
 * takes 26 kB, and about 2 ms the first time in a process, 0.1 to 0.3 ms later.
 *
 * @example
 * ```ts
 * import { PagedKvCache, type EvictionPolicy } from 'kvtide'
 *
 * // More prompts share the first block than later ones, so it stays longer.
 * const headsLonger: EvictionPolicy = ({ priority, depth }) => priority + (depth < 1 ? 20 : 0)
 * using cache = new PagedKvCache({ capacity: 4, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, eviction: headsLonger })
 * for (const tokens of [[1, 2, 3, 4], [5, 6, 7, 8]]) {
 *   using chat = cache.openSequence() // ends with the code block
 *   chat.append({ tokens, k: { data: new Float32Array(4), shape: [1, 1, 4, 1] }, v: { data: new Float32Array(4), shape: [1, 1, 4, 1] } })
 * }
 * cache.ensureCapacity(cache.createSequence(), 4) // two blocks have to go: the second one of each chat
 * console.log([cache.explain([1, 2, 3, 4, 0]).matched, cache.explain([5, 6, 7, 8, 0]).matched]) // [2, 2]
 * ```
 */
export type EvictionPolicy = (released: Released) => number

/** The highest priority, the greatest depth that is distinguished, and the highest rank. */
const [PRIORITY_MAX, DEPTH_MAX, RANK_MAX] = [100, 255, 127]

/** @internal Calls a policy for every priority and depth, and returns the ranks: one row for each priority. */
export function readEviction(argument: string, value: unknown): Uint8Array {
  if (typeof value !== 'function')
    throw invalid(argument, value, 'a function that returns the rank of a released block')
  const policy = value as (released: Released) => unknown
  const ranks = new Uint8Array((PRIORITY_MAX + 1) * (DEPTH_MAX + 1))
  let place = 0
  for (let priority = 0; priority <= PRIORITY_MAX; priority++) {
    for (let depth = 0; depth <= DEPTH_MAX; depth++) {
      const rank = policy({ priority, depth })
      if (!isRank(rank))
        throw invalid(
          `${argument}({ priority: ${priority}, depth: ${depth} })`,
          rank,
          `a whole number from 0 to ${RANK_MAX}`,
        )
      ranks[place++] = rank
    }
  }
  return ranks
}

function isRank(rank: unknown): rank is number {
  return typeof rank === 'number' && Number.isInteger(rank) && rank >= 0 && rank <= RANK_MAX
}
