// The contiguous cache for speculative decoding. Tentative tokens need no transaction: they stay until they are committed or dropped.
import type { NativeRollbackCache, NativeRollbackMark } from '#binding'

import { count, known, type Names, numbers, optional, whole } from '../errors/check.js'
import { KvTideError } from '../errors/errors.js'
import { meta } from '../border/host-array.js'
import { checkInternal, INTERNAL, nativeArgument, nativeOf, nativeThis, Owner, settle } from '../border/owner.js'
import { readDevice } from '../border/process.js'
import type { CacheStats } from '../border/stats.js'
import { CacheHandle } from '../border/tensor-storage.js'
import { type Kv, kvOf, kvOrNull, put, readTensor, type Tensor, tensorOf, type TokenSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { type LayerLoadOptions, loadTensors } from '../files/load-tensors.js'
import type { FileOptions } from '../files/progress.js'
import { saveBytes, saveFile } from '../files/save.js'
import type { SavedSource } from '../files/source.js'
import {
  type BeginOptions,
  type DraftOptions,
  type KvTransaction,
  openTransaction,
  parentsOf,
  readDraft,
} from './kv-transaction.js'

const OPTIONS: Names<RollbackCacheOptions> = { device: 0, memoryLimitBytes: 0 }

/** Options of a {@link RollbackCache}. Shape and dtype come with the first tokens. */
export interface RollbackCacheOptions {
  /** The device, `'cpu'` by default. */
  readonly device?: string
  /** The memory limit of the cache in bytes. */
  readonly memoryLimitBytes?: number
}

/** A native cache and its device. */
type MadeRollback = readonly [native: NativeRollbackCache, device: string]

/**
 * Keys and values with tentative tokens, for speculative decoding: drafted tokens are committed or dropped later.
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
  /** The device. */
  declare readonly device: string

  constructor(options?: RollbackCacheOptions)
  /** @internal */
  constructor(token: typeof INTERNAL, made: MadeRollback)
  constructor(options: unknown = {}, made?: MadeRollback) {
    const [native, device] = options === INTERNAL && made !== undefined ? made : makeRollback(options)
    super(INTERNAL, new CacheHandle(native), RollbackCache)
    settle(this, { device })
  }

  /** Loads a saved cache as a new one. The file is verified off the main thread. Throws `CORRUPT` or `INCOMPATIBLE`. */
  static async load(source: SavedSource, options: LayerLoadOptions = {}): Promise<RollbackCache> {
    return loadTensors(
      'rollback',
      source,
      options,
      (file, device, limit) =>
        new RollbackCache(INTERNAL, [binding.NativeRollbackCache.loaded(file, device, limit), device]),
    )
  }

  /** The number of tokens in the cache, committed and tentative. */
  get totalLen(): number {
    return own(this).totalLen()
  }

  /** The number of committed tokens. */
  get committedLen(): number {
    return own(this).committedLen()
  }

  /** Adds tentative tokens, `[batch, heads, n, headDim]` each, and returns views of all tokens. */
  append(k: TokenSource, v: TokenSource, options: DraftOptions = {}): Kv {
    const cache = handle(this)
    const nodes = readDraft(options)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    return kvOf(cache.view(cache.native.append(put(keys, 0), put(values, 1), meta, nodes)))
  }

  /**
   * Opens a transaction: drafted tokens leave no trace unless they are committed. They follow all tokens.
   * The tokens that its `commit` keeps become committed, or tentative if there are tentative tokens before them.
   *
   * @throws KvTideError `TRANSACTION_OPEN` if a transaction is already open; open a child with its `begin()`
   */
  begin(options: BeginOptions = {}): KvTransaction {
    return openTransaction(handle(this), options)
  }

  /**
   * Commits the tokens before `len`, an absolute length; all tokens by default. Tokens behind it stay tentative. A tentative token that
   * follows a committed token other than the last one keeps its position and what it sees, but {@link acceptPath} no longer accepts it.
   */
  commit(len?: number): void {
    const native = own(this)
    native.commit(optional(whole, 'len', len) ?? native.totalLen())
  }

  /** Returns a mark on the committed length, for {@link rollback}. A mark uses no memory, and there may be any number of them. */
  snapshot(): RollbackMark {
    return new RollbackMark(INTERNAL, own(this).snapshot())
  }

  /**
   * Returns to a mark: the tokens before it stay and are all committed; later tokens are dropped.
   *
   * @throws KvTideError `SNAPSHOT_INVALID` for a mark that is ahead of the committed tokens, of another cache, or of a branch that was
   *   overwritten since
   */
  rollback(snapshot: RollbackMark): void {
    const native = own(this)
    if (nativeOf(snapshot, RollbackMark) === undefined && isForged(snapshot)) {
      const reason = 'it was not made by snapshot()'
      throw new KvTideError('SNAPSHOT_INVALID', `the snapshot cannot be used: ${reason}`, { reason })
    }
    native.rollback(nativeArgument<NativeRollbackMark>('snapshot', snapshot, RollbackMark))
  }

  /** Returns views of all tokens; `null` if none was ever appended. */
  current(): Kv | null {
    const cache = handle(this)
    return kvOrNull(cache.viewOrNull(cache.native.current(meta)))
  }

  /**
   * Commits the tentative tokens on the accepted path of the draft tree, in order, right behind the committed ones, and drops the
   * rest.
   *
   * @param indices tentative tokens counted from 0, each the child of the one before
   * @throws KvTideError `INVALID_PATH` if the indices are not such a path
   */
  acceptPath(indices: Int32Array | Uint32Array | readonly number[]): void {
    const native = own(this)
    native.acceptPath(Uint32Array.from(numbers('indices', indices, ['Int32Array', 'Uint32Array'], count)))
  }

  /** Returns the attention mask of a draft with these parents: f32 `[n, committed + n]`, 0 for a token that is seen and -Infinity for one that is not. */
  treeMask(parents: Int32Array | readonly number[]): Tensor {
    return tensorOf(own(this).treeMask(parentsOf('parents', parents)))
  }

  /** Returns the position of each token of a draft with these parents: committed length + depth. */
  treePositions(parents: Int32Array | readonly number[]): Int32Array {
    return Int32Array.from(own(this).treePositions(parentsOf('parents', parents)))
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
function makeRollback(options: unknown): MadeRollback {
  const given = known<RollbackCacheOptions>('options', options, OPTIONS)
  const device = readDevice(given.device)
  return [new binding.NativeRollbackCache(device, optional(whole, 'memoryLimitBytes', given.memoryLimitBytes)), device]
}

function handle(self: unknown): CacheHandle<NativeRollbackCache> {
  return nativeThis<CacheHandle<NativeRollbackCache>>(self, RollbackCache)
}

function own(self: unknown): NativeRollbackCache {
  return handle(self).native
}

/** True for an object that may have been meant as a mark. A mark that was posted to another thread arrives there as an empty object. */
function isForged(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  try {
    return Object.getPrototypeOf(value) !== Object.prototype || Object.keys(value).length > 0
  } catch {
    return false
  }
}

/** A mark on the committed length of a {@link RollbackCache}, to roll back to. It uses no memory. */
export class RollbackMark extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeRollbackMark) {
    checkInternal(token, 'RollbackMark', 'RollbackCache.snapshot() instead')
    super(token, native, RollbackMark)
  }

  /** The committed length at the mark. */
  get committedLen(): number {
    return nativeThis<NativeRollbackMark>(this, RollbackMark).committedLen()
  }
}
