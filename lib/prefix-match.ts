import { checkInternal, endThis, nativeThis, Owner } from './owner.js'
import type { NativePrefix } from './paged-engine.js'

/**
 * The start of a prompt that is in a {@link PagedKvCache}, or in all layers of a {@link ModelCache}: its blocks stay there until it is disposed of or collected, or a
 * sequence was made of it, which takes it over: then it is as if it was disposed of.
 */
export class PrefixMatch extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativePrefix) {
    checkInternal(token, 'PrefixMatch', 'match(tokens) of a cache instead')
    super(token, native, PrefixMatch)
  }

  /** Tokens that are there, and need not be computed. */
  get length(): number {
    return nativeThis<NativePrefix>(this, PrefixMatch).length()
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
