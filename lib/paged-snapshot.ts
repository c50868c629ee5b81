import type { NativePagedSnapshot } from '#binding'

import { checkInternal, endThis, nativeThis, Owner } from './owner.js'

/**
 * What a {@link PagedSequence} held at one moment: its blocks stay as they are until it is disposed of or collected. It can be
 * restored into any sequence of its cache with the same salt and extras.
 */
export class PagedSnapshot extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativePagedSnapshot) {
    checkInternal(token, 'PagedSnapshot', 'PagedSequence.snapshot() instead')
    super(token, native, PagedSnapshot)
  }

  /** Tokens in it. */
  get length(): number {
    return nativeThis<NativePagedSnapshot>(this, PagedSnapshot).length()
  }

  /** Gives back the blocks that only it needs. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    endThis(this, PagedSnapshot)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, PagedSnapshot)
  }
}
