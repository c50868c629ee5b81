import type { NativePagedKvCache, NativeView } from '#binding'

import { binding } from './binding.js'
import { arrayKind, arrayLength, count, fields, flag, optional, text, typedArray, whole } from './check.js'
import { checkDType, dtypeRow, type DType, type Float16ArrayLike, type TensorData } from './dtype.js'
import { meta, put, readData, readTensor, type TensorArgument, type TokenSource } from './host-tensor.js'
import { endThis, INTERNAL, nativeThis, Owner, settle } from './owner.js'
import { checkPageFormat, readDType, type PageFormat } from './page-format.js'
import { Batch } from './paged-batch.js'
import type { CacheStats } from './stats.js'
import { tensorOf, type Kv } from './tensor.js'

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
  /** Elements of one head of K. */
  readonly headDim: number
  /** Elements of one head of V, as in K unless said otherwise; 0 when there is no V. */
  readonly valueHeadDim?: number
  /** The element type of what goes in, and of pages that are not low-bit; `'f32'` unless said otherwise. */
  readonly dtype?: DType
  /** How pages keep K: `dtype` unless said otherwise, or `'f8e4m3'`, `'q8'`, `'q4'`. */
  readonly keyFormat?: PageFormat
  /** How pages keep V: `dtype` unless said otherwise, or `'f8e4m3'`, `'q8'`, `'q4'`. */
  readonly valueFormat?: PageFormat
  /** Rotates K by a Hadamard matrix before it is quantised, which spreads channels that stand out; `false` unless said otherwise. */
  readonly hadamard?: boolean
  /** Where it lives, `'cpu'` unless said otherwise. */
  readonly device?: string
  /** The most bytes that it may keep, staging of low-bit pages included. */
  readonly memoryLimitBytes?: number
}

/** Key and value of one token and layer, `numKvHeads` rows each; 32-bit floats where pages are low-bit. */
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
 *
 * Low-bit pages are quantised when all their slots are written; until then their rows lie in floats, in staging memory that
 * grows with what is unfinished. A write into a page that was quantised takes it back to floats and quantises it again, which
 * moves each value by at most one more step.
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 *
 * using cache = new PagedKvCache({ capacity: 8, blockSize: 4, numLayers: 2, numKvHeads: 1, headDim: 64, keyFormat: 'q8', valueFormat: 'q8' })
 * const [one, other] = [cache.createSequence(), cache.createSequence()]
 * // Five tokens of both layers: four for the first sequence, one for the second.
 * const data = new Float32Array(2 * 5 * 64).fill(0.5)
 * const tokens = { data, shape: [2, 1, 5, 64] }
 * cache.append([one, other], tokens, tokens, [0, 4, 5])
 * const { k } = cache.gather(one, 1)
 * console.log(k.shape, k.dtype) // [1, 4, 64] f32
 * console.log(cache.bytesPerToken < 0.3 * 2 * 2 * 64 * 4) // true
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
  /** Elements of one head of K. */
  declare readonly headDim: number
  /** Elements of one head of V. */
  declare readonly valueHeadDim: number
  /** The element type of what goes in. */
  declare readonly dtype: DType
  /** How pages keep K. */
  declare readonly keyFormat: PageFormat
  /** How pages keep V. */
  declare readonly valueFormat: PageFormat
  /** True when K is rotated before it is quantised. */
  declare readonly hadamard: boolean
  /** Bytes of pages that one token of all layers takes, its share of scales included. */
  declare readonly bytesPerToken: number
  /** Where it lives. */
  declare readonly device: string

  constructor(options: PagedKvCacheOptions) {
    const given = fields<PagedKvCacheOptions>('options', options)
    const headDim = count('headDim', given.headDim, 1)
    const dtype = optional(checkDType, 'dtype', given.dtype) ?? 'f32'
    const made = {
      capacity: count('capacity', given.capacity),
      blockSize: optional((name, value) => count(name, value, 1), 'blockSize', given.blockSize) ?? 16,
      numLayers: count('numLayers', given.numLayers, 1),
      numKvHeads: count('numKvHeads', given.numKvHeads, 1),
      headDim,
      valueHeadDim: optional(count, 'valueHeadDim', given.valueHeadDim) ?? headDim,
      dtype,
      keyFormat: optional(checkPageFormat, 'keyFormat', given.keyFormat) ?? dtype,
      valueFormat: optional(checkPageFormat, 'valueFormat', given.valueFormat) ?? dtype,
      hadamard: optional(flag, 'hadamard', given.hadamard) ?? false,
      device: optional(text, 'device', given.device) ?? 'cpu',
      memoryLimitBytes: optional(whole, 'memoryLimitBytes', given.memoryLimitBytes),
    }
    super(INTERNAL, new binding.NativePagedKvCache(made), PagedKvCache)
    const { capacity, blockSize, numLayers, numKvHeads, valueHeadDim, keyFormat, valueFormat, hadamard } = made
    settle(this, { capacity, blockSize, numLayers, numKvHeads, headDim, valueHeadDim, dtype, keyFormat, valueFormat, hadamard })
    settle(this, { device: 'cpu', bytesPerToken: own(this).bytesPerToken() })
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

  /**
   * Writes neighbouring tokens of one layer from `pos` on: `[numKvHeads, n, headDim]`, or with a 1 before it; with the layout
   * `bshd` `[n, numKvHeads, headDim]`. The sequence grows by itself.
   */
  writeTokens(seq: number, layer: number, pos: number, k: TokenSource, v: TokenSource): void {
    const native = own(this)
    const at = [whole('seq', seq), count('layer', layer), count('pos', pos)] as const
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    native.writeTokens(...at, put(keys, 0), put(values, 1), meta)
  }

  /**
   * Appends tokens of all layers to sequences, in one call: all of it, or nothing.
   *
   * @param k `[numLayers, numKvHeads, tokens, headDim]`; with the layout `bshd` `[numLayers, tokens, numKvHeads, headDim]`
   * @param offsets sequence i gets the tokens `offsets[i]` to `offsets[i + 1]`; left out, each gets one
   * @throws KvTideError `OUT_OF_BLOCKS`, before anything changes
   */
  append(sequences: readonly number[] | Float64Array, k: TokenSource, v: TokenSource, offsets?: readonly number[] | Int32Array): void {
    const native = own(this)
    const batch = new Batch(sequences, offsets)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    native.append(batch.put(), batch.length, put(keys, 0), put(values, 1), meta)
  }

  /**
   * All tokens of a layer, as copies: `[numKvHeads, length, headDim]`. What is low-bit comes as 32-bit floats. Slots that nobody
   * wrote are zeros.
   */
  gather(seq: number, layer: number): Kv {
    const [k, v] = own(this).gather(whole('seq', seq), count('layer', layer)) as [NativeView, NativeView]
    return { k: tensorOf(k), v: tensorOf(v) }
  }

  /** As {@link gather}, into arrays of yours. */
  gatherInto<T extends TensorData>(seq: number, layer: number, k: T, v: T): { k: T; v: T } {
    const native = own(this)
    const at = [whole('seq', seq), count('layer', layer)] as const
    native.gatherInto(...at, room('k', k, this.keyFormat, this.dtype), room('v', v, this.valueFormat, this.dtype))
    return { k, v }
  }

  /**
   * Reads one token of one layer; for f16 and bf16 its bits, of low-bit pages 32-bit floats. Throws `POSITION_OUT_OF_RANGE` where
   * none was written.
   */
  readKv(seq: number, layer: number, pos: number): TokenKv {
    const native = own(this)
    const at = [whole('seq', seq), count('layer', layer), count('pos', pos)] as const
    const made = (format: PageFormat, headDim: number): TensorData =>
      dtypeRow(readDType(format, this.dtype)).make(this.numKvHeads * headDim)
    const [key, value] = [made(this.keyFormat, this.headDim), made(this.valueFormat, this.valueHeadDim)]
    native.readKvInto(...at, key, value)
    return { key, value }
  }

  /** Reads one token of one layer into arrays of yours. */
  readKvInto<T extends TensorData>(seq: number, layer: number, pos: number, key: T, value: T): { key: T; value: T } {
    const native = own(this)
    const at = [whole('seq', seq), count('layer', layer), count('pos', pos)] as const
    native.readKvInto(...at, room('key', key, this.keyFormat, this.dtype), room('value', value, this.valueFormat, this.dtype))
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

/** An array of the caller's in which K or V of this form are read. */
function room(argument: string, value: unknown, format: PageFormat, dtype: DType): TensorData {
  const kinds = dtypeRow(readDType(format, dtype)).arrays.filter(kind => kind !== 'Float16Array')
  return typedArray<TensorData>(argument, value, kinds)
}

/** One token's key or value; a bare array is of the cache's dtype. */
function vector(argument: string, value: unknown, dtype: DType): TensorArgument {
  if (arrayKind(value) === undefined) return readTensor(argument, value)
  return readData(argument, value, [arrayLength(value as TensorData)], dtype)
}
