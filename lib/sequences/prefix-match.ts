import type { NativePagedPrefix } from '#binding'

import { checkInternal, Owner, settle } from '../border/owner.js'

/**
 * The start of a prompt that is in all layers of a {@link PagedKvCache}: its blocks stay there until it is disposed of or collected, or a
 * sequence was made of it, which takes it over: then it is as if it was disposed of.
 */
export class PrefixMatch extends Owner {
  /** Tokens that were found, and need not be computed; also once it was used or disposed of. */
  declare readonly length: number

  /** @internal */
  constructor(token: unknown, native: NativePagedPrefix) {
    checkInternal(token, 'PrefixMatch', 'match(tokens) of a cache instead')
    super(token, native, PrefixMatch)
    settle(this, { length: native.length() })
  }
}
