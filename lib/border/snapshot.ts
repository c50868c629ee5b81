// Snapshots of a `KvCache` or a `Sequence`. A snapshot costs O(1): its cache copies rows only before it overwrites them. Snapshots end with their process.
import { KvTideError } from '../errors/errors.js'
import { checkInternal, liveArgument, nativeThis, Owner } from './owner.js'

/** @internal A native snapshot. */
export interface NativeSnapshot {
  length(): number
  dispose(): void
}

/**
 * The state of a `KvCache` or a `Sequence` at one moment. Later changes of the cache do not change it. The snapshot of a sequence can be
 * restored into any sequence of the same cache with the same salt and extras.
 */
export class Snapshot extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeSnapshot, ended?: () => void) {
    checkInternal(token, 'Snapshot', 'snapshot() of a KvCache or of a Sequence instead')
    super(token, native, Snapshot, ended)
  }

  /** The number of tokens in the snapshot. */
  get length(): number {
    return nativeThis<NativeSnapshot>(this, Snapshot).length()
  }
}

/** @internal The native snapshot of an argument, which is refused if it comes from another kind of cache. */
export function readSnapshot<N extends NativeSnapshot>(
  snapshot: unknown,
  kind: abstract new (...args: never[]) => N,
): N {
  const native = liveArgument<NativeSnapshot>('snapshot', snapshot, Snapshot)
  if (native instanceof kind) return native
  const reason = 'it was made by another kind of cache'
  throw new KvTideError('SNAPSHOT_INVALID', `the snapshot cannot be used: ${reason}`, { reason })
}
