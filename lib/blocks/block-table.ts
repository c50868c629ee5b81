// The block table of a sequence, for users of `BlockPool`: lists of block numbers, one per layer, without memory. Each call is one call of the addon.
import type { NativeBlockTable } from '#binding'

import { count, known, type Names, whole } from '../errors/check.js'
import { INTERNAL, nativeThis, Owner, settle } from '../border/owner.js'
import { binding } from '../loading/binding.js'

const OPTIONS: Names<BlockTableOptions> = { numLayers: 0, blockSize: 0 }

/** Options of a {@link BlockTable}. */
export interface BlockTableOptions {
  /** Layers of the model. */
  readonly numLayers: number
  /** Tokens per block. */
  readonly blockSize: number
}

/**
 * The blocks of one sequence, layer by layer, for callers that keep their own sequences on a {@link BlockPool}.
 *
 * @example
 * ```ts
 * import { BlockTable } from 'kvtide'
 *
 * using table = new BlockTable({ numLayers: 2, blockSize: 16 })
 * table.appendBlock(0, 7)
 * console.log(table.getBlock(0, 0), table.getBlock(0, 1), table.tokenCapacity(0)) // 7 null 16
 * ```
 */
export class BlockTable extends Owner {
  /** Layers of the model. */
  declare readonly numLayers: number
  /** Tokens per block. */
  declare readonly blockSize: number

  constructor(options: BlockTableOptions) {
    const given = known<BlockTableOptions>('options', options, OPTIONS)
    const numLayers = count('numLayers', given.numLayers, 1)
    const blockSize = count('blockSize', given.blockSize, 1)
    super(INTERNAL, new binding.NativeBlockTable(numLayers, blockSize), BlockTable)
    settle(this, { numLayers, blockSize })
  }

  /** Adds a block behind the last one of a layer. */
  appendBlock(layer: number, block: number): void {
    own(this).appendBlock(count('layer', layer), whole('block', block))
  }

  /** Returns block number `logical` of a layer; `null` behind the last one. */
  getBlock(layer: number, logical: number): number | null {
    return own(this).getBlock(count('layer', layer), count('logical', logical))
  }

  /** The number of blocks of a layer. */
  numBlocks(layer: number): number {
    return own(this).numBlocks(count('layer', layer))
  }

  /** The number of tokens that the blocks of a layer hold. */
  tokenCapacity(layer: number): number {
    return own(this).tokenCapacity(count('layer', layer))
  }
}

function own(self: unknown): NativeBlockTable {
  return nativeThis<NativeBlockTable>(self, BlockTable)
}
