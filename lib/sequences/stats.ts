// Statistics of a paged cache.
import type { NativePagedStats, NativePool } from '#binding'

import type { CacheStats } from '../border/stats.js'
import type { TiersStats } from '../tiers/tier-options.js'

/** The blocks of a pool, and the number of copies and evictions. */
export interface PoolStats {
  /** All blocks. Each is free, cached or active. */
  readonly totalBlocks: number
  /** Blocks without content. */
  readonly freeBlocks: number
  /** Blocks that are not held and that prompts can reuse. They are evicted when no free block is left. */
  readonly cachedBlocks: number
  /** Blocks that sequences, snapshots or matches hold. */
  readonly activeBlocks: number
  /** The number of blocks that were copied because they were shared when they were written. */
  readonly copiesOnWrite: number
  /** The number of cached blocks that were evicted. */
  readonly evictions: number
}

/** The memory use of a {@link PagedKvCache} in all its layers, the blocks of its pools together, and its cache hits. */
export interface PagedStats extends CacheStats, PoolStats {
  /** Prompt tokens that were looked up: by each call of `match`, and by `admit` for each prompt that it admitted. */
  readonly promptTokens: number
  /** The prompt tokens that were cache hits. */
  readonly hitTokens: number
  /** Prompt tokens whose keys and values were cached, but that had to be computed again because there was no checkpoint of the states. */
  readonly lostTokens: number
  /** The cache hit rate, `hitTokens / promptTokens`; 0 before the first prompt. */
  readonly hitRate: number
  /** Bytes of keys and values, by kind of memory. */
  readonly tierBytes: { readonly cpu: number }
  /** Statistics of the tiers, if there are any. */
  readonly tiers?: TiersStats
  /** The pool of each group of layers, in the order of {@link PagedKvCache.groups}. */
  readonly pools: readonly PoolStats[]
}

function poolStats({
  totalBlocks,
  freeBlocks,
  cachedBlocks,
  activeBlocks,
  copiesOnWrite,
  evictions,
}: NativePool): PoolStats {
  return { totalBlocks, freeBlocks, cachedBlocks, activeBlocks, copiesOnWrite, evictions }
}

/** @internal Sums the counts of all groups. A prompt is looked up in all groups at once, so hits are those of the first group. */
export function pagedStats({ costs, pools }: NativePagedStats, tiers?: TiersStats): PagedStats {
  const each = pools.map(poolStats)
  const { promptTokens, hitTokens, lostTokens } = pools[0] as NativePool
  const total = (of: keyof PoolStats): number => each.reduce((sum, pool) => sum + pool[of], 0)
  return {
    ...costs,
    totalBlocks: total('totalBlocks'),
    freeBlocks: total('freeBlocks'),
    cachedBlocks: total('cachedBlocks'),
    activeBlocks: total('activeBlocks'),
    copiesOnWrite: total('copiesOnWrite'),
    evictions: total('evictions'),
    promptTokens,
    hitTokens,
    lostTokens,
    hitRate: promptTokens === 0 ? 0 : hitTokens / promptTokens,
    tierBytes: { cpu: costs.bufferBytes },
    ...(tiers === undefined ? {} : { tiers }),
    pools: each,
  }
}
