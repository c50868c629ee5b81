// The rotating cache of keys and values, which are in one buffer. Like RotatingCache, but each call takes or returns K and V, and tokens can be drafted in a
// transaction.
import type { NativeRotatingCache } from '#binding'

import { fields } from '../errors/check.js'
import { meta } from '../border/host-array.js'
import { INTERNAL } from '../border/owner.js'
import type { CacheHandle } from '../border/tensor-storage.js'
import {
  type Kv,
  kvOf,
  kvOfViews,
  kvOrNull,
  type KvSource,
  put,
  readTensor,
  type TokenSource,
} from '../border/tensor.js'
import { type BeginOptions, type KvTransaction, openTransaction } from './kv-transaction.js'
import type { LayerLoadOptions } from '../files/load-tensors.js'
import type { SavedSource } from '../files/source.js'
import {
  acceptedRotating,
  loadRotating,
  type MadeRotating,
  makeRotating,
  restoreRotating,
  Rotating,
  rotatingHandle,
  type RotatingKvCacheOptions,
  type RotatingSnapshot,
} from './rotating.js'

/**
 * Keys and values with one sliding window: as {@link RotatingCache}, with both in one buffer.
 *
 * @example
 * ```ts
 * import { RotatingKvCache, Tensor } from 'kvtide'
 *
 * using cache = new RotatingKvCache({ maxSeqLen: 4, sinks: 1 })
 * for (let token = 0; token < 8; token++) {
 *   using row = Tensor.from(new Float32Array([token]), [1, 1, 1, 1])
 *   cache.append(row, row)
 * }
 * console.log(cache.currentData()?.k.toArray()) // Float32Array [0, 4, 5, 6, 7]
 * console.log(cache.currentData()?.k.keyPositions) // [0, 4]
 * ```
 */
export class RotatingKvCache extends Rotating {
  constructor(options: RotatingKvCacheOptions)
  /** @internal */
  constructor(token: typeof INTERNAL, made: MadeRotating)
  constructor(options: unknown, made?: MadeRotating) {
    super(INTERNAL, RotatingKvCache, options === INTERNAL && made !== undefined ? made : makeRotating(2, options))
  }

  /** Loads a saved cache as a new one. The file is verified off the main thread. Throws `CORRUPT` or `INCOMPATIBLE`. */
  static async load(source: SavedSource, options: LayerLoadOptions = {}): Promise<RotatingKvCache> {
    return new RotatingKvCache(INTERNAL, await loadRotating(2, source, options))
  }

  /** Returns a new cache that starts with the tokens of `snapshot` and the `accepted` tokens behind them, `keepLen` tokens in all. */
  static restoreFromSnapshot(
    snapshot: RotatingSnapshot,
    accepted: KvSource | null | undefined,
    keepLen: number,
  ): RotatingKvCache {
    if (accepted === null || accepted === undefined) {
      return new RotatingKvCache(INTERNAL, restoreRotating(2, snapshot, undefined, keepLen))
    }
    const { k, v } = fields<Kv>('accepted', accepted)
    const tokens = [
      ['accepted.k', k],
      ['accepted.v', v],
    ] as const
    return new RotatingKvCache(INTERNAL, restoreRotating(2, snapshot, tokens, keepLen))
  }

  /** Adds tokens, `[batch, kvHeads, n, headDim]` each, and returns every token that their queries may see: see {@link RotatingCache.append}. */
  append(k: TokenSource, v: TokenSource): Kv {
    const cache = handle(this)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    return kvOf(cache.view(cache.native.append(put(keys, 0), put(values, 1), meta)))
  }

  /**
   * Opens a transaction: drafted tokens leave no trace unless they are committed.
   *
   * @throws KvTideError `TRANSACTION_OPEN` if a transaction is already open; open a child with its `begin()`
   */
  begin(options: BeginOptions = {}): KvTransaction {
    return openTransaction(handle(this), options)
  }

  /** Returns the retained tokens, oldest first; `null` if nothing was appended. */
  currentData(): Kv | null {
    const cache = handle(this)
    return kvOrNull(cache.viewOrNull(cache.native.currentData(meta)))
  }

  /** Returns the result of the last {@link append}; `null` after `reset` and `setLen`. */
  lastAppendResult(): Kv | null {
    const cache = handle(this)
    return kvOrNull(cache.viewOrNull(cache.native.lastAppendResult(meta)))
  }

  /** Returns the whole buffers with their slack, for inspection. They show every later change and are never stale. `null` before the first append. */
  allData(): Kv | null {
    const cache = handle(this)
    return kvOrNull(cache.viewOrNull(cache.native.allData(meta)))
  }

  /** As {@link RotatingCache.acceptedAppendFromBatchedAppend}, for K and V. */
  acceptedAppendFromBatchedAppend(
    snapshot: RotatingSnapshot,
    keepLen: number,
    rowIdx: number,
    batchLen: number,
  ): Kv | null {
    const views = acceptedRotating(handle(this).native, snapshot, keepLen, rowIdx, batchLen)
    return views === null ? null : kvOfViews(views)
  }
}

function handle(self: unknown): CacheHandle<NativeRotatingCache> {
  return rotatingHandle(self, RotatingKvCache)
}
