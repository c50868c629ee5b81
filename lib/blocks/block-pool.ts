// Bookkeeping of blocks without memory, for callers that keep their own pages: a pool of block numbers, and the block table of a sequence. Caches do not
// use this folder. Each call is one call of the addon.
import type { NativeBlockPool } from '#binding'

import { count, known, type Names, numbers, optional, whole } from '../errors/check.js'
import { INTERNAL, nativeThis, Owner, settle } from '../border/owner.js'
import { binding } from '../loading/binding.js'

const OPTIONS: Names<BlockPoolOptions> = {
  capacity: 0,
  blockSize: 0,
  numLayers: 0,
  numKvHeads: 0,
  headDim: 0,
  watermark: 0,
}

/** Options of a {@link BlockPool}. */
export interface BlockPoolOptions {
  /** Blocks in the pool. */
  readonly capacity: number
  /** Tokens per block, 16 by default. */
  readonly blockSize?: number
  /** Layers of the model, 1 by default. */
  readonly numLayers?: number
  /** Heads of K and V, 1 by default. */
  readonly numKvHeads?: number
  /** Elements per head, 1 by default. */
  readonly headDim?: number
  /** Blocks that {@link BlockPool.canAllocate} keeps in reserve, so that existing sequences can grow; 0 by default. */
  readonly watermark?: number
}

/**
 * Keeps track of the blocks that are in use, for callers that keep their pages elsewhere. A block is one number. Each allocation gets a
 * new number, so that a stale one is refused.
 *
 * Each block has 2,097,152 numbers. A block that has used them up is retired when it is freed, and {@link totalCount} falls:
 * `capacity` blocks last for `capacity * 2_097_152` allocations, and then every allocation throws `OUT_OF_BLOCKS`. Make a new pool
 * before that happens. It starts with the same numbers again, so the old ones must no longer be in use. The pools of caches do not
 * wear out.
 *
 * @example
 * ```ts
 * import { BlockPool } from 'kvtide'
 *
 * using pool = new BlockPool({ capacity: 2 })
 * const block = pool.allocate()
 * console.log(pool.utilization) // 0.5
 * pool.free(block)
 * ```
 */
export class BlockPool extends Owner {
  /** Tokens per block. */
  declare readonly blockSize: number
  /** Layers of the model. */
  declare readonly numLayers: number
  /** Heads of K and V. */
  declare readonly numKvHeads: number
  /** Elements per head. */
  declare readonly headDim: number
  /** Blocks that {@link canAllocate} keeps in reserve. */
  declare readonly watermark: number

  constructor(options: BlockPoolOptions) {
    const given = known<BlockPoolOptions>('options', options, OPTIONS)
    const size = (argument: keyof BlockPoolOptions, otherwise: number): number =>
      optional((name, value) => count(name, value, 1), argument, given[argument]) ?? otherwise
    const blockSize = size('blockSize', 16)
    const numLayers = size('numLayers', 1)
    const numKvHeads = size('numKvHeads', 1)
    const headDim = size('headDim', 1)
    const watermark = optional(count, 'watermark', given.watermark) ?? 0
    super(INTERNAL, new binding.NativeBlockPool(count('capacity', given.capacity), watermark), BlockPool)
    settle(this, { blockSize, numLayers, numKvHeads, headDim, watermark })
  }

  /** The number of free blocks. */
  get freeCount(): number {
    return own(this).freeCount()
  }

  /** The number of blocks, free or in use: fewer than `capacity` once blocks were retired. */
  get totalCount(): number {
    return own(this).totalCount()
  }

  /** The share of blocks in use, 0 to 1; 0 for a pool without blocks. */
  get utilization(): number {
    return own(this).utilization()
  }

  /** Allocates a block. Throws `OUT_OF_BLOCKS` if none is free. */
  allocate(): number {
    return own(this).allocate()
  }

  /** Allocates a block, or returns `null` if none is free. */
  tryAllocate(): number | null {
    return own(this).tryAllocate()
  }

  /** Allocates `n` blocks, or throws `OUT_OF_BLOCKS` and allocates none. */
  allocateMany(n: number): number[] {
    return own(this).allocateMany(count('n', n))
  }

  /** True if `n` blocks can be allocated without touching the watermark. This is advice: allocations ignore the watermark. */
  canAllocate(n: number): boolean {
    return own(this).canAllocate(count('n', n))
  }

  /** Increments a block's reference count. Each reference needs its own {@link free}. */
  retain(block: number): void {
    own(this).retain(whole('block', block))
  }

  /** The reference count of a block. */
  count(block: number): number {
    return own(this).count(whole('block', block))
  }

  /** Decrements a block's reference count; at zero the block is free. Throws `INVALID_BLOCK` for a block that is not in use. */
  free(block: number): void {
    own(this).free(whole('block', block))
  }

  /** Frees several blocks: all of them, or none if one is refused. */
  freeMany(blocks: readonly number[] | Float64Array): void {
    const native = own(this)
    native.freeMany(Float64Array.from(numbers('blocks', blocks, ['Float64Array'], whole)))
  }
}

function own(self: unknown): NativeBlockPool {
  return nativeThis<NativeBlockPool>(self, BlockPool)
}
