import type { NativePagedKvCache } from '#binding'

import { binding } from './binding.js'
import { arrayKind, arrayLength, count, fields, optional, text, typedArray, whole } from './check.js'
import { checkDType, dtypeRow, type DType, type Float16ArrayLike, type TensorData } from './dtype.js'
import { meta, put, readData, readTensor, type TensorArgument, type TokenSource } from './host-tensor.js'
import { endThis, INTERNAL, nativeThis, Owner, settle } from './owner.js'
import type { CacheStats } from './stats.js'

/** What a {@link PagedKvCache} is made with. */
export interface PagedKvCacheOptions {
  /** Blocks in the pool. */
  readonly capacity: number
  /** Tokens of a block, 16 unless said otherwise. */
  readonly blockSize?: number
  /** Layers of the model. */
  readonly numLayers: number
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Elements of one head. */
  readonly headDim: number
  /** The element type, `'f32'` unless said otherwise. */
  readonly dtype?: DType
  /** Where it lives, `'cpu'` unless said otherwise. */
  readonly device?: string
  /** The most bytes that it may keep. */
  readonly memoryLimitBytes?: number
}

/** Key and value of one token and layer, `numKvHeads * headDim` elements each. */
export interface TokenKv {
  readonly key: TensorData
  readonly value: TensorData
}

/**
 * Keys and values of many sequences, all layers, in one pool of blocks.
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 *
 * using cache = new PagedKvCache({ capacity: 64, numLayers: 2, numKvHeads: 1, headDim: 4 })
 * const seq = cache.createSequence()
 * cache.writeKv(seq, 0, 0, new Float32Array([1, 2, 3, 4]), new Float32Array([5, 6, 7, 8]))
 * console.log(cache.readKv(seq, 0, 0).value) // Float32Array [5, 6, 7, 8]
 * cache.dropSequence(seq)
 * console.log(cache.poolUtilization()) // 0
 * ```
 */
export class PagedKvCache extends Owner {
  /** Blocks in the pool. */
  declare readonly capacity: number
  /** Tokens of a block. */
  declare readonly blockSize: number
  /** Layers of the model. */
  declare readonly numLayers: number
  /** Heads of K and V. */
  declare readonly numKvHeads: number
  /** Elements of one head. */
  declare readonly headDim: number
  /** Its element type. */
  declare readonly dtype: DType
  /** Where it lives. */
  declare readonly device: string

  constructor(options: PagedKvCacheOptions) {
    const given = fields<PagedKvCacheOptions>('options', options)
    const made = {
      capacity: count('capacity', given.capacity),
      blockSize: optional((name, value) => count(name, value, 1), 'blockSize', given.blockSize) ?? 16,
      numLayers: count('numLayers', given.numLayers, 1),
      numKvHeads: count('numKvHeads', given.numKvHeads, 1),
      headDim: count('headDim', given.headDim, 1),
      dtype: optional(checkDType, 'dtype', given.dtype) ?? 'f32',
      device: optional(text, 'device', given.device) ?? 'cpu',
      memoryLimitBytes: optional(whole, 'memoryLimitBytes', given.memoryLimitBytes),
    }
    super(INTERNAL, new binding.NativePagedKvCache(made), PagedKvCache)
    const { capacity, blockSize, numLayers, numKvHeads, headDim, dtype } = made
    settle(this, { capacity, blockSize, numLayers, numKvHeads, headDim, dtype, device: 'cpu' })
  }

  /** Blocks that are free. */
  get freeCount(): number {
    return own(this).freeCount()
  }

  /** Blocks in all. */
  get totalCount(): number {
    return own(this).totalCount()
  }

  /** A new, empty sequence. Ids count up from 0 and are never used again. */
  createSequence(): number {
    return own(this).createSequence()
  }

  /** Ends a sequence and gives all its blocks back. */
  dropSequence(seq: number): void {
    own(this).dropSequence(whole('seq', seq))
  }

  /** Gives a sequence blocks for `tokens` tokens in total; takes all that are missing, or throws `OUT_OF_BLOCKS` and takes none. */
  ensureCapacity(seq: number, tokens: number): void {
    own(this).ensureCapacity(whole('seq', seq), count('tokens', tokens))
  }

  /** Writes one token of one layer; the sequence grows by itself. */
  writeKv(seq: number, layer: number, pos: number, key: TokenVector, value: TokenVector): void {
    const native = own(this)
    const at = [whole('seq', seq), count('layer', layer), count('pos', pos)] as const
    const [k, v] = [vector('key', key, this.dtype), vector('value', value, this.dtype)]
    native.writeKv(...at, put(k, 0), put(v, 1), meta)
  }

  /** Reads one token of one layer; for f16 and bf16 its bits. Throws `POSITION_OUT_OF_RANGE` where none was written. */
  readKv(seq: number, layer: number, pos: number): TokenKv {
    const native = own(this)
    const at = [whole('seq', seq), count('layer', layer), count('pos', pos)] as const
    const row = dtypeRow(this.dtype)
    const elements = this.numKvHeads * this.headDim
    const [key, value] = [row.make(elements), row.make(elements)]
    native.readKvInto(...at, key, value)
    return { key, value }
  }

  /** Reads one token of one layer into arrays of yours. */
  readKvInto<T extends TensorData>(seq: number, layer: number, pos: number, key: T, value: T): { key: T; value: T } {
    const native = own(this)
    const at = [whole('seq', seq), count('layer', layer), count('pos', pos)] as const
    const kinds = dtypeRow(this.dtype).arrays.filter(kind => kind !== 'Float16Array')
    native.readKvInto(...at, typedArray<T>('key', key, kinds), typedArray<T>('value', value, kinds))
    return { key, value }
  }

  /** The used share of the pool, 0 to 1. */
  poolUtilization(): number {
    return own(this).poolUtilization()
  }

  /** Tokens written: highest written position + 1; 0 for an unknown sequence. */
  sequenceLength(seq: number): number {
    return own(this).sequenceLength(whole('seq', seq))
  }

  /** Slots of its blocks; 0 for an unknown sequence. */
  sequenceCapacity(seq: number): number {
    return own(this).sequenceCapacity(whole('seq', seq))
  }

  /** The ids of the sequences there are, ascending. */
  sequenceIds(): number[] {
    return own(this).sequenceIds()
  }

  /** What it costs. */
  stats(): CacheStats {
    return own(this).stats()
  }

  /** Ends it. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    endThis(this, PagedKvCache)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, PagedKvCache)
  }
}

/** One token's key or value: its elements, or a tensor that holds as many. */
export type TokenVector = TensorData | Float16ArrayLike | TokenSource

function own(self: unknown): NativePagedKvCache {
  return nativeThis<NativePagedKvCache>(self, PagedKvCache)
}

/** One token's key or value; a bare array is of the cache's dtype. */
function vector(argument: string, value: unknown, dtype: DType): TensorArgument {
  if (arrayKind(value) === undefined) return readTensor(argument, value)
  return readData(argument, value, [arrayLength(value as TensorData)], dtype)
}
