import type { NativeRollbackCache, NativeRollbackMark } from '#binding'

import { binding } from '../loading/binding.js'
import { count, known, type Names, numbers, optional, whole } from '../border/check.js'
import { readDevice } from '../border/device.js'
import { KvTideError } from '../border/errors.js'
import { CacheHandle } from '../border/cache-handle.js'
import { meta } from '../border/host-array.js'
import { put, readTensor, type TokenSource } from '../border/host-tensor.js'
import { openTransaction, parentsOf, readDraft, type BeginOptions, type DraftOptions, type KvTransaction } from './kv-transaction.js'
import { INTERNAL, nativeArgument, nativeOf, nativeThis, Owner, settle } from '../border/owner.js'
import { RollbackSnapshot } from './rollback-snapshot.js'
import type { CacheStats } from '../border/stats.js'
import { kvOf, kvOrNull, tensorOf, type Kv, type Tensor } from '../border/tensor.js'

const OPTIONS: Names<RollbackCacheOptions> = { device: 0, memoryLimitBytes: 0 }

/** What a {@link RollbackCache} is made with. Shape and dtype come with the first tokens. */
export interface RollbackCacheOptions {
  /** Where it lives, `'cpu'` unless said otherwise. */
  readonly device?: string
  /** The most bytes that it may keep. */
  readonly memoryLimitBytes?: number
}

/**
 * Keys and values with tentative tokens, for speculative decoding: what a draft adds is committed or taken back.
 *
 * @example
 * ```ts
 * import { RollbackCache, Tensor } from 'kvtide'
 *
 * using cache = new RollbackCache()
 * using prompt = Tensor.from(new Float32Array([1, 2, 3]), [1, 1, 3, 1])
 * cache.append(prompt, prompt)
 * cache.commit()
 * using draft = Tensor.from(new Float32Array([4, 5, 6]), [1, 1, 3, 1])
 * cache.append(draft, draft, { parents: [-1, 0, 0] })
 * cache.acceptPath([0, 2])
 * console.log(cache.current()?.k.toArray()) // Float32Array [1, 2, 3, 4, 6]
 * ```
 */
export class RollbackCache extends Owner {
  /** Where it lives. */
  declare readonly device: string

  constructor(options: RollbackCacheOptions = {}) {
    const given = known<RollbackCacheOptions>('options', options, OPTIONS)
    const device = readDevice(given.device)
    const limit = optional(whole, 'memoryLimitBytes', given.memoryLimitBytes)
    super(INTERNAL, new CacheHandle(new binding.NativeRollbackCache(device, limit)), RollbackCache)
    settle(this, { device })
  }

  /** Committed and tentative tokens. */
  get totalLen(): number {
    return own(this).totalLen()
  }

  /** Committed tokens. */
  get committedLen(): number {
    return own(this).committedLen()
  }

  /** Adds tentative tokens, `[batch, heads, n, headDim]` each, and shows all tokens. */
  append(k: TokenSource, v: TokenSource, options: DraftOptions = {}): Kv {
    const cache = handle(this)
    const nodes = readDraft(options)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    return kvOf(cache.view(cache.native.append(put(keys, 0), put(values, 1), meta, nodes)))
  }

  /**
   * Opens a transaction: what it drafts leaves no trace unless it is committed. It follows all tokens; what it
   * keeps is committed, or tentative when it follows tentative tokens.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while one is open; open a child on that one
   */
  begin(options: BeginOptions = {}): KvTransaction {
    return openTransaction(handle(this), options)
  }

  /** Makes the tokens before `len` (an absolute length; all of them unless said otherwise) committed. */
  commit(len?: number): void {
    const native = own(this)
    native.commit(optional(whole, 'len', len) ?? native.totalLen())
  }

  /** A mark on the committed length, to come back to. Any number of them may be outstanding. */
  snapshot(): RollbackSnapshot {
    return new RollbackSnapshot(INTERNAL, own(this).snapshot())
  }

  /**
   * Goes back to a mark: its tokens are what is left, all of them committed.
   *
   * @throws KvTideError `SNAPSHOT_INVALID` for one ahead of the committed tokens, of another cache, or of a branch that was
   *   overwritten since
   */
  rollback(snapshot: RollbackSnapshot): void {
    const native = own(this)
    if (nativeOf(snapshot, RollbackSnapshot) === undefined && isForged(snapshot)) {
      const reason = 'it was not made by snapshot()'
      throw new KvTideError('SNAPSHOT_INVALID', `the snapshot cannot be used: ${reason}`, { reason })
    }
    native.rollback(nativeArgument<NativeRollbackMark>('snapshot', snapshot, RollbackSnapshot))
  }

  /** All tokens, as views; `null` when none was ever appended. */
  current(): Kv | null {
    const cache = handle(this)
    return kvOrNull(cache.viewOrNull(cache.native.current(meta)))
  }

  /**
   * Keeps the tentative tokens on the accepted path of the draft tree, in order, right after the committed ones; commits
   * them and drops the rest.
   *
   * @param indices tentative tokens counted from 0, each the child of the one before
   * @throws KvTideError `INVALID_PATH` when they are no path
   */
  acceptPath(indices: Int32Array | Uint32Array | readonly number[]): void {
    const native = own(this)
    native.acceptPath(Uint32Array.from(numbers('indices', indices, ['Int32Array', 'Uint32Array'], count)))
  }

  /** The attention mask of a draft with these parents: f32 `[n, committed + n]`, 0 where a token sees and -Infinity elsewhere. */
  treeMask(parents: Int32Array | readonly number[]): Tensor {
    return tensorOf(own(this).treeMask(parentsOf('parents', parents)))
  }

  /** The position of each token of a draft with these parents: committed length + depth. */
  treePositions(parents: Int32Array | readonly number[]): Int32Array {
    return Int32Array.from(own(this).treePositions(parentsOf('parents', parents)))
  }

  /** What it costs. */
  stats(): CacheStats {
    return own(this).stats()
  }
}

function handle(self: unknown): CacheHandle<NativeRollbackCache> {
  return nativeThis<CacheHandle<NativeRollbackCache>>(self, RollbackCache)
}

function own(self: unknown): NativeRollbackCache {
  return handle(self).native
}

/** True for objects that may have been meant as a snapshot; what another thread receives of one is an empty object. */
function isForged(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  try {
    return Object.getPrototypeOf(value) !== Object.prototype || Object.keys(value).length > 0
  } catch {
    return false
  }
}
