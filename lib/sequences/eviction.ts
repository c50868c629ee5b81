import { invalid } from '../border/errors.js'

/** A block that nobody holds any more, and that prompts still find. */
interface Released {
  /** Its priority, 0 to 100: what {@link Sequence.retain} gave it, or 50. */
  readonly priority: number
  /** Its place among the blocks of the sequence that held it; 0 is the first block. */
  readonly depth: number
}

/**
 * Decides which blocks make room first when a pool is full. It returns a block's own rank, 0 to 127: the lowest rank goes first, and
 * of equal ranks the block that was released first. Without a policy, the priority is the rank. A block also gets ranks handed on from
 * others, so that it does not go before blocks that cannot be found without it: {@link RetainOptions} has the whole rule.
 *
 * It is called when the cache is made, once for each priority and each depth up to 255, and never again. Deeper blocks count as 255.
 * So the rank must depend on these two alone. What the policy throws, the constructor throws. The table of ranks takes 26 kB, and
 * about 2 ms the first time in a process, 0.1 to 0.3 ms later.
 *
 * @example
 * ```ts
 * import { PagedKvCache, type EvictionPolicy } from 'kvtide'
 *
 * // The start of a prompt is shared more often than what follows: its first blocks stay longer.
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

/** The highest priority, the greatest depth that is told apart, and the highest rank. */
const [PRIORITY_MAX, DEPTH_MAX, RANK_MAX] = [100, 255, 127]

/** @internal The ranks that a policy gives to every priority and depth: a row for each priority. */
export function readEviction(argument: string, value: unknown): Uint8Array {
  if (typeof value !== 'function') throw invalid(argument, value, 'a function that gives the rank of a released block')
  const policy = value as (released: Released) => unknown
  const ranks = new Uint8Array((PRIORITY_MAX + 1) * (DEPTH_MAX + 1))
  let place = 0
  for (let priority = 0; priority <= PRIORITY_MAX; priority++) {
    for (let depth = 0; depth <= DEPTH_MAX; depth++) {
      const rank = policy({ priority, depth })
      if (!isRank(rank)) throw invalid(`${argument}({ priority: ${priority}, depth: ${depth} })`, rank, `a whole number from 0 to ${RANK_MAX}`)
      ranks[place++] = rank
    }
  }
  return ranks
}

function isRank(rank: unknown): rank is number {
  return typeof rank === 'number' && Number.isInteger(rank) && rank >= 0 && rank <= RANK_MAX
}
