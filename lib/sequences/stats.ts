import type { NativePagedStats, NativePool } from '#binding'

import type { CacheStats } from '../border/stats.js'
import type { TiersStats } from '../store/tier-options.js'

/** The blocks of a pool, and what happened to them. */
export interface PoolStats {
  /** All blocks; each is free, cached or active. */
  readonly totalBlocks: number
  /** Blocks with nothing in them. */
  readonly freeBlocks: number
  /** Blocks that nobody holds and that prompts find. They are taken when no free one is left. */
  readonly cachedBlocks: number
  /** Blocks that sequences, snapshots or matches hold. */
  readonly activeBlocks: number
  /** How many blocks were copied because others held them when they were written. */
  readonly copiesOnWrite: number
  /** How many cached blocks had to make room. */
  readonly evictions: number
}

/** What a {@link PagedKvCache} costs in all its layers, what its pools hold together, and what prompts have found in it. */
export interface PagedStats extends CacheStats, PoolStats {
  /** Tokens of prompts that `match` looked for. */
  readonly promptTokens: number
  /** Of these, tokens that were found. */
  readonly hitTokens: number
  /** `hitTokens / promptTokens`; 0 before the first `match`. */
  readonly hitRate: number
  /** Bytes of keys and values, by the kind of memory. */
  readonly tierBytes: { readonly cpu: number }
  /** What lies in the tiers below it, if it has some. */
  readonly tiers?: TiersStats
  /** The pool of each group of layers, in the order of {@link PagedKvCache.groups}. */
  readonly pools: readonly PoolStats[]
}

function poolStats({ totalBlocks, freeBlocks, cachedBlocks, activeBlocks, copiesOnWrite, evictions }: NativePool): PoolStats {
  return { totalBlocks, freeBlocks, cachedBlocks, activeBlocks, copiesOnWrite, evictions }
}

/** @internal Combines the counts of all groups. A prompt is looked for in all groups at once, so the counts of the first stand for all. */
export function pagedStats({ costs, pools }: NativePagedStats, tiers?: TiersStats): PagedStats {
  const each = pools.map(poolStats)
  const { promptTokens, hitTokens } = pools[0] as NativePool
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
    hitRate: promptTokens === 0 ? 0 : hitTokens / promptTokens,
    tierBytes: { cpu: costs.bufferBytes },
    ...(tiers === undefined ? {} : { tiers }),
    pools: each,
  }
}
