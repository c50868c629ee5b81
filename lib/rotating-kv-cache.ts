import { fields } from './check.js'
import { describe, meta, type TokenSource } from './host-tensor.js'
import { INTERNAL } from './owner.js'
import { acceptedRotating, makeRotating, nativeRotating, restoreRotating, Rotating, type MadeRotating, type RotatingOptions } from './rotating.js'
import type { RotatingSnapshot } from './rotating-snapshot.js'
import { kvOf, kvOrNull, type Kv } from './tensor.js'

/** What a {@link RotatingKvCache} is made with. Shape and dtype come with the first tokens. */
export type RotatingKvCacheOptions = RotatingOptions

/**
 * Keys and values with one sliding window: as {@link RotatingCache}, both written in one operation.
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
    super(RotatingKvCache, options === INTERNAL && made !== undefined ? made : makeRotating(2, options))
  }

  /** A new cache that goes on from `snapshot` with the `accepted` tokens of K and V: `keepLen` tokens in all. */
  static restoreFromSnapshot(
    snapshot: RotatingSnapshot,
    accepted: { readonly k: TokenSource; readonly v: TokenSource } | null | undefined,
    keepLen: number,
  ): RotatingKvCache {
    if (accepted === null || accepted === undefined) {
      return new RotatingKvCache(INTERNAL, restoreRotating(snapshot, undefined, keepLen))
    }
    const { k, v } = fields<Kv>('accepted', accepted)
    const tokens = [['accepted.k', k], ['accepted.v', v]] as const
    return new RotatingKvCache(INTERNAL, restoreRotating(snapshot, tokens, keepLen))
  }

  /** Adds tokens, `[batch, kvHeads, n, headDim]` each, and shows what their queries may see, as {@link RotatingCache.append}. */
  append(k: TokenSource, v: TokenSource): Kv {
    const native = own(this)
    return kvOf(native.append(describe('k', k, 0), describe('v', v, 1), meta))
  }

  /** What is retained, oldest first; `null` when nothing was appended. */
  currentData(): Kv | null {
    return kvOrNull(own(this).currentData())
  }

  /** What the last {@link append} returned; `null` after `reset` and `setLen`. */
  lastAppendResult(): Kv | null {
    return kvOrNull(own(this).lastAppendResult())
  }

  /** The whole buffers, slack included: live windows for inspection, never `STALE_VIEW`. `null` before the first append. */
  allData(): Kv | null {
    return kvOrNull(own(this).allData())
  }

  /** As {@link RotatingCache.acceptedAppendFromBatchedAppend}, of K and V. */
  acceptedAppendFromBatchedAppend(snapshot: RotatingSnapshot, keepLen: number, rowIdx: number, batchLen: number): Kv | null {
    return kvOrNull(acceptedRotating(own(this), snapshot, keepLen, rowIdx, batchLen))
  }
}

function own(self: unknown): ReturnType<typeof nativeRotating> {
  return nativeRotating(self, RotatingKvCache)
}
