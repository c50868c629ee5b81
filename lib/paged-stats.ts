import type { NativePagedStats, NativePool } from '#binding'

import type { CacheStats } from './stats.js'

/** What a pool of blocks holds, and what prompts have found in it. */
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
  /** Tokens that were asked for with `match`. */
  readonly promptTokens: number
  /** Tokens of them that were found. */
  readonly hitTokens: number
  /** The share of them that were found, 0 to 1; 0 before anything was asked for. */
  readonly hitRate: number
}

/** What a {@link PagedKvCache} costs, what its pool holds, and what prompts have found in it. */
export interface PagedStats extends CacheStats, PoolStats {
  /** Bytes of pages, by where they lie. */
  readonly tierBytes: { readonly cpu: number }
}

/** @internal Puts what the addon knows of a pool together. */
export function poolStats(pool: NativePool): PoolStats {
  const { promptTokens, hitTokens } = pool
  return { ...pool, hitRate: promptTokens === 0 ? 0 : hitTokens / promptTokens }
}

/** @internal Puts what the addon knows together. */
export function pagedStats({ costs, pool }: NativePagedStats): PagedStats {
  return { ...costs, ...poolStats(pool), tierBytes: { cpu: costs.bufferBytes } }
}
