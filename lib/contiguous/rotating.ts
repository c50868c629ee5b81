// The base of both rotating caches. A rotating cache keeps the newest `maxSeqLen` tokens and the sinks in front of them. An append into the slack copies
// no old token; when the slack is full, a compaction moves the window to the front of the buffer.
import type { NativeRotatingCache, NativeRotatingSnapshot, NativeView } from '#binding'

import { count, known, type Names, optional, whole } from '../errors/check.js'
import { type DType, meta } from '../border/host-array.js'
import { checkInternal, type Class, INTERNAL, nativeArgument, nativeThis, Owner, settle } from '../border/owner.js'
import { readDevice } from '../border/process.js'
import type { CacheStats } from '../border/stats.js'
import { CacheHandle } from '../border/tensor-storage.js'
import { put, readTensor } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { loadTensors } from '../files/load-tensors.js'
import type { FileOptions } from '../files/progress.js'
import { saveBytes, saveFile } from '../files/save.js'

const OPTIONS: Names<RotatingKvCacheOptions> = {
  maxSeqLen: 0,
  capacitySeqLen: 0,
  sinks: 0,
  slack: 0,
  device: 0,
  memoryLimitBytes: 0,
}

/** Options of a {@link RotatingKvCache}. Shape and dtype come with the first tokens. */
export interface RotatingKvCacheOptions {
  /** Tokens in the window, at least 1. */
  readonly maxSeqLen: number
  /** Slots at the start, at most `sinks + maxSeqLen`; 256 by default. The buffer grows by doubling. */
  readonly capacitySeqLen?: number
  /** Tokens at the start that are never dropped, in addition to the window. */
  readonly sinks?: number
  /** Free slots behind a full window. More slack means fewer compactions. By default a quarter of the window, at least 64. */
  readonly slack?: number
  /** The device, `'cpu'` by default. */
  readonly device?: string
  /** The memory limit of the cache in bytes, snapshots and copies included. */
  readonly memoryLimitBytes?: number
}

/** @internal A native cache and its shape. */
export type MadeRotating = readonly [
  native: NativeRotatingCache,
  shape: { dim: number; maxSeqLen: number; sinks: number },
]

/** The base class of rotating caches: a window that slides over one tensor, or over K and V. */
export abstract class Rotating extends Owner {
  /** The dimension of the sequence. */
  declare readonly dim: number
  /** Tokens in the window. */
  declare readonly maxSeqLen: number
  /** Tokens at the start that are never dropped. */
  declare readonly sinks: number
  /** The device. */
  declare readonly device: string

  /** @internal */
  constructor(token: unknown, owner: Class, [native, shape]: MadeRotating) {
    super(token, new CacheHandle(native), owner)
    const { dim, maxSeqLen, sinks } = shape
    settle(this, { dim, maxSeqLen, sinks, device: native.device() })
  }

  /** The number of tokens that were ever appended. */
  get currentSeqLen(): number {
    return nativeRotating(this).currentSeqLen()
  }

  /** The number of slots in the buffer, not counting its slack. */
  get capacitySeqLen(): number {
    return nativeRotating(this).capacitySeqLen()
  }

  /** The number of tokens that can still be read: at most `sinks + maxSeqLen`. */
  get retainedLen(): number {
    return nativeRotating(this).retainedLen()
  }

  /** The element type; `null` before the first tokens. */
  get dtype(): DType | null {
    return nativeRotating(this).dtype() as DType | null
  }

  /** Throws if {@link setLen} would, and changes nothing. */
  trySetLen(len: number): void {
    nativeRotating(this).trySetLen(whole('len', len))
  }

  /**
   * Drops all tokens behind the first `len`.
   *
   * @throws KvTideError `CANNOT_ROLL_BACK` if the window has moved on, or if there are fewer than `len` tokens
   */
  setLen(len: number): void {
    nativeRotating(this).setLen(whole('len', len))
  }

  /** Drops all tokens. Keeps the window, the memory and the shape of a token. */
  reset(): void {
    nativeRotating(this).reset()
  }

  /** Takes a snapshot of all tokens, including those drafted in an open transaction. A token is copied only when the cache overwrites it. */
  snapshot(): RotatingSnapshot {
    return new RotatingSnapshot(INTERNAL, nativeRotating(this).snapshot())
  }

  /** Restores the state at `snapshot`. If this cache made the snapshot, only tokens that were overwritten since then are copied back. */
  restore(snapshot: RotatingSnapshot): void {
    const cache = rotatingHandle(this, Rotating)
    const from = nativeSnapshot(snapshot)
    cache.change(native => native.restore(from))
  }

  /**
   * True if `n` more tokens can follow `snapshot` in this cache: as many tokens were appended to both, both have the same window and sinks,
   * and `n` tokens fit into these. The tokens themselves are not compared.
   */
  canAppendFromSnapshot(snapshot: RotatingSnapshot, n: number): boolean {
    return nativeRotating(this).canAppendFromSnapshot(nativeSnapshot(snapshot), count('n', n))
  }

  /** Saves the cache to a file and returns the number of bytes written. The cache stays usable meanwhile. Refused while a transaction is open. */
  async save(path: string | URL, options: FileOptions = {}): Promise<number> {
    return saveFile(undefined, () => nativeRotating(this).beginSave(), path, options)
  }

  /** As {@link save}, but returns the bytes instead of writing a file. */
  async saveBytes(options: FileOptions = {}): Promise<Uint8Array> {
    return saveBytes(undefined, () => nativeRotating(this).beginSave(), options)
  }

  /** Returns the cache's memory use and the number of copies it made. */
  stats(): CacheStats {
    return nativeRotating(this).stats()
  }
}

/** @internal The handle of `self`, which must be of the class `owner`. */
export function rotatingHandle(self: unknown, owner: Class): CacheHandle<NativeRotatingCache> {
  return nativeThis<CacheHandle<NativeRotatingCache>>(self, owner)
}

function nativeRotating(self: unknown): NativeRotatingCache {
  return rotatingHandle(self, Rotating).native
}

function nativeSnapshot(snapshot: unknown): NativeRotatingSnapshot {
  return nativeArgument<NativeRotatingSnapshot>('snapshot', snapshot, RotatingSnapshot)
}

/** @internal Checks options and makes the native cache. `parts` is the number of tensors: 2 for K and V. */
export function makeRotating(parts: 1 | 2, options: unknown): MadeRotating {
  const given = known<RotatingKvCacheOptions & { dim?: number }>(
    'options',
    options,
    parts === 1 ? { ...OPTIONS, dim: 0 } : (OPTIONS as Names<RotatingKvCacheOptions & { dim?: number }>),
  )
  const made = {
    parts,
    dim: parts === 2 ? 2 : count('dim', given.dim),
    maxSeqLen: count('maxSeqLen', given.maxSeqLen, 1),
    capacitySeqLen: optional(count, 'capacitySeqLen', given.capacitySeqLen),
    sinks: optional(count, 'sinks', given.sinks) ?? 0,
    slack: optional(count, 'slack', given.slack),
    device: readDevice(given.device),
    memoryLimitBytes: optional(whole, 'memoryLimitBytes', given.memoryLimitBytes),
  }
  return [new binding.NativeRotatingCache(made), made]
}

/** @internal A native cache that continues from a snapshot. */
export function restoreRotating(
  parts: 1 | 2,
  snapshot: unknown,
  accepted: readonly (readonly [argument: string, value: unknown])[] | undefined,
  keepLen: unknown,
): MadeRotating {
  const native = nativeSnapshot(snapshot)
  const [k, v] = (accepted ?? []).map(([argument, value]) => readTensor(argument, value))
  const tokens = [k && put(k, 0), v && put(v, 1)] as const
  const cache = binding.NativeRotatingCache.restoreFromSnapshot(
    parts,
    native,
    ...tokens,
    meta,
    whole('keepLen', keepLen),
  )
  return [cache, { dim: native.dim(), maxSeqLen: native.maxSeqLen(), sinks: native.sinks() }]
}

/** @internal A native cache with the content of a file. */
export async function loadRotating(parts: 1 | 2, source: unknown, options: unknown): Promise<MadeRotating> {
  return loadTensors(parts === 1 ? 'rotating' : 'rotating-kv', source, options, (file, device, limit) => {
    const { dim, maxSeqLen, sinks } = JSON.parse(file.description()) as MadeRotating[1]
    return [binding.NativeRotatingCache.loaded(parts, file, device, limit), { dim, maxSeqLen, sinks }]
  })
}

/** @internal The accepted tokens of one row of the batch that was appended last. */
export function acceptedRotating(
  native: NativeRotatingCache,
  snapshot: unknown,
  keepLen: unknown,
  rowIdx: unknown,
  batchLen: unknown,
): NativeView[] | null {
  return native.acceptedAppendFromBatchedAppend(
    nativeSnapshot(snapshot),
    whole('keepLen', keepLen),
    whole('rowIdx', rowIdx),
    whole('batchLen', batchLen),
  )
}

/** The state of a rotating cache at one moment. Later changes of the cache do not change it. */
export class RotatingSnapshot extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeRotatingSnapshot) {
    checkInternal(token, 'RotatingSnapshot', 'snapshot() of a rotating cache instead')
    super(token, native, RotatingSnapshot)
  }

  /** The number of tokens that had been appended to the cache. */
  get currentSeqLen(): number {
    return snapshotOf(this).currentSeqLen()
  }

  /** The window of the cache. */
  get maxSeqLen(): number {
    return snapshotOf(this).maxSeqLen()
  }

  /** The number of tokens in the snapshot. */
  get retainedLen(): number {
    return snapshotOf(this).retainedLen()
  }

  /** The sinks of the cache. */
  get sinks(): number {
    return snapshotOf(this).sinks()
  }

  /** The dimension of the sequence. */
  get dim(): number {
    return snapshotOf(this).dim()
  }
}

function snapshotOf(self: unknown): NativeRotatingSnapshot {
  return nativeThis<NativeRotatingSnapshot>(self, RotatingSnapshot)
}
