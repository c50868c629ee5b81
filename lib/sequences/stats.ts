import type { NativePagedStats, NativePool } from '#binding'

import type { CacheStats } from '../border/stats.js'

/** What a pool of blocks holds, and what it has done. */
export interface PoolStats {
  /** Blocks in all: each is free, cached or active. */
  readonly totalBlocks: number
  /** Blocks with nothing in them. */
  readonly freeBlocks: number
  /** Blocks that nobody holds, and that prompts find; they are taken when no free one is left. */
  readonly cachedBlocks: number
  /** Blocks that sequences, snapshots or matches hold. */
  readonly activeBlocks: number
  /** Blocks that were copied because others held them when they were written. */
  readonly copiesOnWrite: number
  /** Cached blocks that had to make room. */
  readonly evictions: number
}

/** What a {@link PagedKvCache} costs in all its layers, what its pools hold together, and what prompts have found in it. */
export interface PagedStats extends CacheStats, PoolStats {
  /** Tokens that were asked for with `match`. */
  readonly promptTokens: number
  /** Tokens of them that were found. */
  readonly hitTokens: number
  /** The share of them that were found, 0 to 1; 0 before anything was asked for. */
  readonly hitRate: number
  /** Bytes of keys and values, by where they lie. */
  readonly tierBytes: { readonly cpu: number }
  /** The pool of each group of layers, in the order of {@link PagedKvCache.groups}. */
  readonly pools: readonly PoolStats[]
}

function poolStats({ totalBlocks, freeBlocks, cachedBlocks, activeBlocks, copiesOnWrite, evictions }: NativePool): PoolStats {
  return { totalBlocks, freeBlocks, cachedBlocks, activeBlocks, copiesOnWrite, evictions }
}

/** @internal Puts what the addon knows together. A prompt is asked of all groups at once, so the first of them has counted it. */
export function pagedStats({ costs, pools }: NativePagedStats): PagedStats {
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
    pools: each,
  }
}
