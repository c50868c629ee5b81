import type { NativePagedPrefix } from '#binding'

import { checkInternal, endThis, nativeThis, Owner } from './owner.js'

/**
 * The start of a prompt that is in a {@link PagedKvCache}: its blocks stay there until it is disposed of or collected, or a
 * sequence was made of it, which takes it over: then it is as if it was disposed of.
 */
export class PrefixMatch extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativePagedPrefix) {
    checkInternal(token, 'PrefixMatch', 'PagedKvCache.match(tokens) instead')
    super(token, native, PrefixMatch)
  }

  /** Tokens that are there, and need not be computed. */
  get length(): number {
    return nativeThis<NativePagedPrefix>(this, PrefixMatch).length()
  }

  /** Lets go of the blocks. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    endThis(this, PrefixMatch)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, PrefixMatch)
  }
}
