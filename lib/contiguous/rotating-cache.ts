// The rotating cache of a single tensor. Its base class in rotating.ts has the calls that both rotating caches share; this file adds those that take or return
// tokens.
import type { NativeRotatingCache } from '#binding'

import { meta } from '../border/host-array.js'
import { INTERNAL } from '../border/owner.js'
import type { CacheHandle, PendingView } from '../border/tensor-storage.js'
import { put, readTensor, type Tensor, tensorOf, type TokenSource } from '../border/tensor.js'
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

/** Options of a {@link RotatingCache}. Shape and dtype come with the first tokens. */
export interface RotatingCacheOptions extends RotatingKvCacheOptions {
  /** The dimension of the sequence. */
  readonly dim: number
}

/**
 * One tensor with a sliding window along dimension `dim`. It keeps the newest `maxSeqLen` tokens, in order.
 *
 * @example
 * ```ts
 * import { RotatingCache, Tensor } from 'kvtide'
 *
 * using cache = new RotatingCache({ dim: 2, maxSeqLen: 4 })
 * cache.append(Tensor.from(new Float32Array([0, 1, 2]), [1, 1, 3, 1]))
 * const seen = cache.append(Tensor.from(new Float32Array([3, 4, 5]), [1, 1, 3, 1]))
 * console.log(seen.toArray()) // all six: each query of a prefill needs its own window
 * console.log(cache.currentData()?.toArray()) // Float32Array [2, 3, 4, 5]
 * ```
 */
export class RotatingCache extends Rotating {
  constructor(options: RotatingCacheOptions)
  /** @internal */
  constructor(token: typeof INTERNAL, made: MadeRotating)
  constructor(options: unknown, made?: MadeRotating) {
    super(INTERNAL, RotatingCache, options === INTERNAL && made !== undefined ? made : makeRotating(1, options))
  }

  /** Loads a saved cache as a new one. The file is verified off the main thread. Throws `CORRUPT` or `INCOMPATIBLE`. */
  static async load(source: SavedSource, options: LayerLoadOptions = {}): Promise<RotatingCache> {
    return new RotatingCache(INTERNAL, await loadRotating(1, source, options))
  }

  /** Returns a new cache that starts with the tokens of `snapshot` and the `accepted` tokens behind them, `keepLen` tokens in all. */
  static restoreFromSnapshot(
    snapshot: RotatingSnapshot,
    accepted: TokenSource | null | undefined,
    keepLen: number,
  ): RotatingCache {
    const tokens = accepted === null || accepted === undefined ? undefined : ([['accepted', accepted]] as const)
    return new RotatingCache(INTERNAL, restoreRotating(1, snapshot, tokens, keepLen))
  }

  /**
   * Adds tokens, and returns every token that their queries may see. After a single token, these are the retained tokens. If more tokens
   * are added than fit into the window, these are all tokens that were retained before, and all new ones.
   */
  append(src: TokenSource): Tensor {
    const cache = handle(this)
    const tokens = put(readTensor('src', src), 0)
    return tensorOf(cache.view(cache.native.append(tokens, undefined, meta)))
  }

  /** Returns the retained tokens, oldest first; `null` if nothing was appended. */
  currentData(): Tensor | null {
    const cache = handle(this)
    return tensorOrNull(cache.viewOrNull(cache.native.currentData(meta)))
  }

  /** Returns the result of the last {@link append}; `null` after `reset` and `setLen`. */
  lastAppendResult(): Tensor | null {
    const cache = handle(this)
    return tensorOrNull(cache.viewOrNull(cache.native.lastAppendResult(meta)))
  }

  /** Returns the whole buffer with its slack, for inspection. It shows every later change and is never stale. `null` before the first append. */
  allData(): Tensor | null {
    const cache = handle(this)
    return tensorOrNull(cache.viewOrNull(cache.native.allData(meta)))
  }

  /**
   * Returns the accepted tokens of one sequence after an append that verified drafts of `batchLen` sequences at once: the tokens of row
   * `rowIdx` up to the length `keepLen`, counted as for {@link restoreFromSnapshot}. `null` if none was accepted.
   */
  acceptedAppendFromBatchedAppend(
    snapshot: RotatingSnapshot,
    keepLen: number,
    rowIdx: number,
    batchLen: number,
  ): Tensor | null {
    const [view] = acceptedRotating(handle(this).native, snapshot, keepLen, rowIdx, batchLen) ?? []
    return view === undefined ? null : tensorOf(view)
  }
}

function handle(self: unknown): CacheHandle<NativeRotatingCache> {
  return rotatingHandle(self, RotatingCache)
}

function tensorOrNull(view: PendingView | null): Tensor | null {
  return view === null ? null : tensorOf(view)
}
