import { KvTideError } from './errors.js'
import { checkInternal, liveArgument, nativeThis, Owner } from './owner.js'

/** @internal A snapshot as the addon holds it. */
export interface NativeSnapshot {
  length(): number
  dispose(): void
}

/**
 * What a `KvCache` or a `Sequence` held at one moment. Later changes of the cache do not change it. The snapshot of a sequence can be
 * restored into any sequence of the same cache with the same salt and extras.
 */
export class Snapshot extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeSnapshot) {
    checkInternal(token, 'Snapshot', 'snapshot() of a KvCache or of a Sequence instead')
    super(token, native, Snapshot)
  }

  /** How many tokens it holds. */
  get length(): number {
    return nativeThis<NativeSnapshot>(this, Snapshot).length()
  }
}

/** @internal The native snapshot of an argument; refused when it is of another kind of cache. */
export function readSnapshot<N extends NativeSnapshot>(snapshot: unknown, kind: abstract new (...args: never[]) => N): N {
  const native = liveArgument<NativeSnapshot>('snapshot', snapshot, Snapshot)
  if (native instanceof kind) return native
  const reason = 'it is of another kind of cache'
  throw new KvTideError('SNAPSHOT_INVALID', `the snapshot cannot be used: ${reason}`, { reason })
}
