import { checkInternal, endThis, Owner, settle } from './owner.js'
import type { NativePrefix } from './paged-engine.js'

/**
 * The start of a prompt that is in a {@link PagedKvCache}, or in all layers of a {@link ModelCache}: its blocks stay there until it is disposed of or collected, or a
 * sequence was made of it, which takes it over: then it is as if it was disposed of.
 */
export class PrefixMatch extends Owner {
  /** Tokens that were found, and need not be computed; also once it was used or disposed of. */
  declare readonly length: number

  /** @internal */
  constructor(token: unknown, native: NativePrefix) {
    checkInternal(token, 'PrefixMatch', 'match(tokens) of a cache instead')
    super(token, native, PrefixMatch)
    settle(this, { length: native.length() })
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
