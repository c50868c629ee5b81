import type { NativeRollbackMark } from '#binding'

import { checkInternal, nativeThis, Owner } from '../border/owner.js'

/** A mark on the committed length of a {@link RollbackCache}, to go back to. It holds no memory. */
export class RollbackMark extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeRollbackMark) {
    checkInternal(token, 'RollbackMark', 'RollbackCache.snapshot() instead')
    super(token, native, RollbackMark)
  }

  /** The committed length that it marks. */
  get committedLen(): number {
    return own(this).committedLen()
  }
}

function own(self: unknown): NativeRollbackMark {
  return nativeThis<NativeRollbackMark>(self, RollbackMark)
}
