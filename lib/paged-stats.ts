import type { NativeModelStats, NativePagedStats, NativePool } from '#binding'

import type { CacheStats } from './stats.js'

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

/** What prompts have found, and where the bytes of a cache lie. */
export interface PromptStats {
  /** Tokens that were asked for with `match`. */
  readonly promptTokens: number
  /** Tokens of them that were found. */
  readonly hitTokens: number
  /** The share of them that were found, 0 to 1; 0 before anything was asked for. */
  readonly hitRate: number
  /** Bytes of keys and values, by where they lie. */
  readonly tierBytes: { readonly cpu: number }
}

/** What a {@link PagedKvCache} costs, what its pool holds, and what prompts have found in it. */
export interface PagedStats extends CacheStats, PoolStats, PromptStats {}

/** What a {@link ModelCache} costs in all its layers, what prompts have found in it, and what the pool of each group holds. */
export interface ModelStats extends CacheStats, PromptStats {
  /** The pools, in the order of {@link ModelCache.groups}; none in tensors. */
  readonly pools: readonly PoolStats[]
}

function poolStats({ totalBlocks, freeBlocks, cachedBlocks, activeBlocks, copiesOnWrite, evictions }: NativePool): PoolStats {
  return { totalBlocks, freeBlocks, cachedBlocks, activeBlocks, copiesOnWrite, evictions }
}

/** What prompts have found in a pool, and where the bytes lie; in tensors they find nothing. */
function promptStats(pool: NativePool | undefined, costs: CacheStats): PromptStats {
  const { promptTokens, hitTokens } = pool ?? { promptTokens: 0, hitTokens: 0 }
  return { promptTokens, hitTokens, hitRate: promptTokens === 0 ? 0 : hitTokens / promptTokens, tierBytes: { cpu: costs.bufferBytes } }
}

/** @internal Puts what the addon knows of all groups together: a prompt is asked of all of them at once, so one of them has counted it. */
export function modelStats({ costs, pools }: NativeModelStats): ModelStats {
  return { ...costs, ...promptStats(pools[0], costs), pools: pools.map(poolStats) }
}

/** @internal Puts what the addon knows together. */
export function pagedStats({ costs, pool }: NativePagedStats): PagedStats {
  return { ...costs, ...pool, ...promptStats(pool, costs) }
}
