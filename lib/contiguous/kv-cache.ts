// The contiguous caches: keys and values of one attention layer in a single allocation, without blocks. `KvCache` keeps every token, the rotating caches
// keep a sliding window, and `RollbackCache` keeps tentative tokens. This folder checks arguments and makes tensors; the work is done by the addon.
// A refused call changes nothing. Views are made without a copy. Each call crosses to the addon once.
import type { NativeKvCache } from '#binding'

import { count, flag, known, type Names, optional, whole } from '../errors/check.js'
import { checkDType, type DType, meta } from '../border/host-array.js'
import { INTERNAL, nativeThis, Owner, settle } from '../border/owner.js'
import { readDevice } from '../border/process.js'
import { readSnapshot, Snapshot } from '../border/snapshot.js'
import type { CacheStats } from '../border/stats.js'
import { CacheHandle, type PendingView } from '../border/tensor-storage.js'
import { type Kv, kvOf, put, readTensor, type Tensor, tensorOf, type TokenSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { type LayerLoadOptions, loadTensors } from '../files/load-tensors.js'
import type { FileOptions } from '../files/progress.js'
import { saveBytes, saveFile } from '../files/save.js'
import type { SavedSource } from '../files/source.js'
import { type BeginOptions, type KvTransaction, openTransaction } from './kv-transaction.js'

const OPTIONS: Names<KvCacheOptions> = {
  batchSize: 0,
  numKvHeads: 0,
  initialCapacity: 0,
  maxSeqLen: 0,
  headDim: 0,
  dtype: 0,
  device: 0,
  stableAddresses: 0,
  memoryLimitBytes: 0,
}

/** Options of a {@link KvCache}. */
export interface KvCacheOptions<D extends DType = DType> {
  /** Rows of the batch. All rows have the same length. */
  readonly batchSize: number
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Slots at the start, at most `maxSeqLen`. The buffer grows by doubling. */
  readonly initialCapacity: number
  /** The maximum number of tokens. */
  readonly maxSeqLen: number
  /** Elements per head. */
  readonly headDim: number
  /** The element type, `'f32'` by default. */
  readonly dtype?: D
  /** The device, `'cpu'` by default. */
  readonly device?: string
  /** Reserves `maxSeqLen` slots at once, so that the buffer never moves. */
  readonly stableAddresses?: boolean
  /** The memory limit of the cache in bytes, snapshots and copies included. */
  readonly memoryLimitBytes?: number
}

/** The shape, dtype and device of a cache. */
interface KvSizes {
  readonly batchSize: number
  readonly numKvHeads: number
  readonly headDim: number
  readonly maxSeqLen: number
  readonly dtype: DType
  readonly device: string
}

/** A native cache and its sizes. */
type MadeKv = readonly [native: NativeKvCache, sizes: KvSizes]

/**
 * Keys and values of one attention layer in a contiguous buffer that grows.
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
export class KvCache<D extends DType = DType> extends Owner {
  /** Rows of the batch. */
  declare readonly batchSize: number
  /** Heads of K and V. */
  declare readonly numKvHeads: number
  /** Elements per head. */
  declare readonly headDim: number
  /** The maximum number of tokens. */
  declare readonly maxSeqLen: number
  /** The element type. */
  declare readonly dtype: D
  /** The device. */
  declare readonly device: string

  constructor(options: KvCacheOptions<D>)
  /** @internal */
  constructor(token: typeof INTERNAL, made: MadeKv)
  constructor(options: unknown, made?: MadeKv) {
    const [native, sizes] = options === INTERNAL && made !== undefined ? made : makeKv(options)
    super(INTERNAL, new CacheHandle(native), KvCache)
    const { batchSize, numKvHeads, headDim, maxSeqLen, dtype, device } = sizes
    settle<KvCache<D>, 'batchSize' | 'numKvHeads' | 'headDim' | 'maxSeqLen' | 'dtype' | 'device'>(this, {
      batchSize,
      numKvHeads,
      headDim,
      maxSeqLen,
      dtype: dtype as D,
      device,
    })
  }

  /** Loads a saved cache as a new one. The file is verified off the main thread. Throws `CORRUPT` or `INCOMPATIBLE`. */
  static async load(source: SavedSource, options: LayerLoadOptions = {}): Promise<KvCache> {
    return loadTensors('kv', source, options, (file, device, limit) => {
      const sizes = JSON.parse(file.description()) as KvSizes
      return new KvCache(INTERNAL, [binding.NativeKvCache.loaded(file, device, limit), { ...sizes, device }])
    })
  }

  /** The number of tokens in the cache. */
  get seqLen(): number {
    return own(this).seqLen()
  }

  /** The number of slots in the buffer. */
  get capacity(): number {
    return own(this).capacity()
  }

  /** True if the cache has no tokens. */
  get isEmpty(): boolean {
    return own(this).seqLen() === 0
  }

  /** The whole buffer of K, `[batch, kvHeads, capacity, headDim]`. It shows every later change and is never stale. Get it again after `capacity` changes, and after `restore`. */
  get kCacheRaw(): Tensor<D> {
    return tensorOf(raw(this), 0)
  }

  /** The whole buffer of V, `[batch, kvHeads, capacity, headDim]`, as {@link kCacheRaw}. */
  get vCacheRaw(): Tensor<D> {
    return tensorOf(raw(this), 1)
  }

  /**
   * Adds tokens, `[batch, kvHeads, n, headDim]` each, and returns views of all tokens.
   *
   * @throws KvTideError `CACHE_OVERFLOW` beyond `maxSeqLen`; the cache is then unchanged
   */
  update(k: TokenSource, v: TokenSource): Kv<D> {
    return append(this, k, v)
  }

  /** As {@link update}, but a GPU writes K and V in one kernel launch. On the CPU both methods do the same. */
  updateFused(k: TokenSource, v: TokenSource): Kv<D> {
    return append(this, k, v)
  }

  /** Returns views of all tokens. Throws `CACHE_EMPTY` if there are none. */
  getKv(): Kv<D> {
    const cache = handle(this)
    return kvOf(cache.view(cache.native.getKv(meta)))
  }

  /** Counts `n` tokens that your own code wrote to the raw buffers behind the last token. Throws `CACHE_OVERFLOW` beyond the slots of the buffer. */
  incrementSeqLen(n = 1): void {
    own(this).incrementSeqLen(count('n', n))
  }

  /** Drops all tokens behind the first `len`. Throws `CANNOT_ROLL_BACK` if there are fewer than `len` tokens. */
  truncate(len: number): void {
    own(this).truncate(whole('len', len))
  }

  /** Drops all tokens and keeps the memory. */
  reset(): void {
    own(this).reset()
  }

  /**
   * Opens a transaction: drafted tokens leave no trace unless they are committed.
   *
   * @throws KvTideError `TRANSACTION_OPEN` if a transaction is already open; open a child with its `begin()`
   */
  begin(options: BeginOptions = {}): KvTransaction<D> {
    return openTransaction(handle(this), options)
  }

  /** Takes a snapshot of all tokens, including those drafted in an open transaction. A token is copied only when the cache overwrites it. */
  snapshot(): Snapshot {
    return new Snapshot(INTERNAL, own(this).snapshot())
  }

  /** Restores the state at `snapshot`. If this cache made the snapshot, only tokens that were overwritten since then are copied back. */
  restore(snapshot: Snapshot): void {
    const cache = handle(this)
    const from = readSnapshot(snapshot, binding.NativeKvSnapshot)
    cache.change(native => native.restore(from))
  }

  /** Saves the cache to a file and returns the number of bytes written. The cache stays usable meanwhile. Refused while a transaction is open. */
  async save(path: string | URL, options: FileOptions = {}): Promise<number> {
    return saveFile(undefined, () => own(this).beginSave(), path, options)
  }

  /** As {@link save}, but returns the bytes instead of writing a file. */
  async saveBytes(options: FileOptions = {}): Promise<Uint8Array> {
    return saveBytes(undefined, () => own(this).beginSave(), options)
  }

  /** Returns the cache's memory use and the number of copies it made. */
  stats(): CacheStats {
    return own(this).stats()
  }
}

/** Checks options and makes the native cache. */
function makeKv(options: unknown): MadeKv {
  const given = known<KvCacheOptions>('options', options, OPTIONS)
  const made = {
    batchSize: count('batchSize', given.batchSize, 1),
    numKvHeads: count('numKvHeads', given.numKvHeads, 1),
    initialCapacity: count('initialCapacity', given.initialCapacity),
    maxSeqLen: count('maxSeqLen', given.maxSeqLen, 1),
    headDim: count('headDim', given.headDim, 1),
    dtype: optional(checkDType, 'dtype', given.dtype) ?? 'f32',
    device: readDevice(given.device),
    stableAddresses: optional(flag, 'stableAddresses', given.stableAddresses) ?? false,
    memoryLimitBytes: optional(whole, 'memoryLimitBytes', given.memoryLimitBytes),
  }
  return [new binding.NativeKvCache(made), made]
}

function append<D extends DType>(self: unknown, k: unknown, v: unknown): Kv<D> {
  const cache = handle(self)
  const [keys, values] = [readTensor('k', k), readTensor('v', v)]
  return kvOf(cache.view(cache.native.update(put(keys, 0), put(values, 1), meta)))
}

function raw(self: unknown): PendingView {
  const cache = handle(self)
  return cache.view(cache.native.raw(meta))
}

function handle(self: unknown): CacheHandle<NativeKvCache> {
  return nativeThis<CacheHandle<NativeKvCache>>(self, KvCache)
}

function own(self: unknown): NativeKvCache {
  return handle(self).native
}
