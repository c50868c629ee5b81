import type { NativeKvCache, NativeKvSnapshot } from '#binding'

import { binding } from './binding.js'
import { count, fields, flag, optional, text, whole } from './check.js'
import { checkDType, type DType } from './dtype.js'
import { describe, meta, type TokenSource } from './host-tensor.js'
import { KvSnapshot } from './kv-snapshot.js'
import { INTERNAL, nativeArgument, nativeThis, Owner } from './owner.js'
import type { CacheStats } from './stats.js'
import { kvOf, Tensor, type Kv } from './tensor.js'

/** What a {@link KvCache} is made with. */
export interface KvCacheOptions {
  /** Rows of the batch. They all have the same length. */
  readonly batchSize: number
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Slots at the start, cut to `maxSeqLen`. It grows by doubling. */
  readonly initialCapacity: number
  /** The most tokens it may hold. */
  readonly maxSeqLen: number
  /** Elements of one head. */
  readonly headDim: number
  /** The element type, `'f32'` unless said otherwise. */
  readonly dtype?: DType
  /** Where it lives, `'cpu'` unless said otherwise. */
  readonly device?: string
  /** Reserves `maxSeqLen` slots at the start, so that no address ever changes. */
  readonly stableAddresses?: boolean
  /** The most bytes that it may keep, snapshots and copies included. */
  readonly memoryLimitBytes?: number
}

/**
 * Keys and values of one attention layer, growing.
 *
 * @example
 * ```ts
 * import { KvCache, Tensor } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 2, initialCapacity: 64, maxSeqLen: 2048, headDim: 4 })
 * using k = Tensor.from(new Float32Array(24).fill(1), [1, 2, 3, 4])
 * using v = Tensor.from(new Float32Array(24).fill(2), [1, 2, 3, 4])
 * const seen = cache.update(k, v)
 * console.log(cache.seqLen, seen.k.shape) // 3 [1, 2, 3, 4]
 * cache.truncate(1)
 * ```
 */
export class KvCache extends Owner {
  /** Rows of the batch. */
  readonly batchSize: number
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Elements of one head. */
  readonly headDim: number
  /** The most tokens it may hold. */
  readonly maxSeqLen: number
  /** Its element type. */
  readonly dtype: DType
  /** Where it lives. */
  readonly device: string

  constructor(options: KvCacheOptions) {
    const given = fields<KvCacheOptions>('options', options)
    const made = {
      batchSize: count('batchSize', given.batchSize, 1),
      numKvHeads: count('numKvHeads', given.numKvHeads, 1),
      initialCapacity: count('initialCapacity', given.initialCapacity),
      maxSeqLen: count('maxSeqLen', given.maxSeqLen, 1),
      headDim: count('headDim', given.headDim, 1),
      dtype: optional(checkDType, 'dtype', given.dtype) ?? 'f32',
      device: optional(text, 'device', given.device) ?? 'cpu',
      stableAddresses: optional(flag, 'stableAddresses', given.stableAddresses) ?? false,
      memoryLimitBytes: optional(whole, 'memoryLimitBytes', given.memoryLimitBytes),
    }
    super(new binding.NativeKvCache(made), KvCache)
    this.batchSize = made.batchSize
    this.numKvHeads = made.numKvHeads
    this.headDim = made.headDim
    this.maxSeqLen = made.maxSeqLen
    this.dtype = made.dtype
    this.device = 'cpu'
  }

  /** Tokens in it. */
  get seqLen(): number {
    return own(this).seqLen()
  }

  /** Slots of the buffer. */
  get capacity(): number {
    return own(this).capacity()
  }

  /** True when it holds no token. */
  get isEmpty(): boolean {
    return own(this).seqLen() === 0
  }

  /** The whole buffer of K, `[batch, kvHeads, capacity, headDim]`: a live window, never `STALE_VIEW`. */
  get kCacheRaw(): Tensor {
    return Tensor.of(own(this).raw(), 0)
  }

  /** The whole buffer of V, `[batch, kvHeads, capacity, headDim]`: a live window, never `STALE_VIEW`. */
  get vCacheRaw(): Tensor {
    return Tensor.of(own(this).raw(), 1)
  }

  /**
   * Adds tokens, `[batch, kvHeads, n, headDim]` each, and shows all tokens in it.
   *
   * @throws KvTideError `CACHE_OVERFLOW` over `maxSeqLen`, before anything changes
   */
  update(k: TokenSource, v: TokenSource): Kv {
    return append(this, k, v)
  }

  /** As {@link update}, K and V in one kernel: on a GPU, one launch. On the CPU both are one. */
  updateFused(k: TokenSource, v: TokenSource): Kv {
    return append(this, k, v)
  }

  /** The tokens in it, as views. Throws `CACHE_EMPTY` when there are none. */
  getKv(): Kv {
    return kvOf(own(this).getKv())
  }

  /** Counts `n` tokens that a kernel of yours wrote to the raw buffers, behind the last one. */
  incrementSeqLen(n = 1): void {
    own(this).incrementSeqLen(count('n', n))
  }

  /** Drops all but the first `len` tokens. */
  truncate(len: number): void {
    own(this).truncate(whole('len', len))
  }

  /** Drops every token; the memory stays. */
  reset(): void {
    own(this).reset()
  }

  /** What it holds now, whatever happens to it later. Costs nothing until the cache overwrites it. */
  snapshot(): KvSnapshot {
    return new KvSnapshot(INTERNAL, own(this).snapshot())
  }

  /** Makes it hold again what `snapshot` saw: at no cost for one of its own, by a copy for one of another cache. */
  restore(snapshot: KvSnapshot): void {
    own(this).restore(nativeArgument<NativeKvSnapshot>('snapshot', snapshot, KvSnapshot))
  }

  /** What it costs. */
  stats(): CacheStats {
    return own(this).stats()
  }

  /** Ends it. Its views and any later call throw `DISPOSED`; snapshots go on. A second call does nothing. */
  dispose(): void {
    own(this).dispose()
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    this.dispose()
  }
}

function append(self: unknown, k: unknown, v: unknown): Kv {
  const native = own(self)
  return kvOf(native.update(describe('k', k, 0), describe('v', v, 1), meta))
}

function own(self: unknown): NativeKvCache {
  return nativeThis<NativeKvCache>(self, KvCache)
}
