import type { NativeRollbackMark } from '#binding'

import { checkInternal, endThis, nativeThis, Owner } from './owner.js'

/** A mark on the committed length of a {@link RollbackCache}. It holds no memory. */
export class RollbackSnapshot extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeRollbackMark) {
    checkInternal(token, 'RollbackSnapshot', 'RollbackCache.snapshot() instead')
    super(token, native, RollbackSnapshot)
  }

  /** The committed length that it marks. */
  get committedLen(): number {
    return own(this).committedLen()
  }

  /** Ends it. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    endThis(this, RollbackSnapshot)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, RollbackSnapshot)
  }
}

function own(self: unknown): NativeRollbackMark {
  return nativeThis<NativeRollbackMark>(self, RollbackSnapshot)
}
