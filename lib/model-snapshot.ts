import type { NativeModelSnapshot } from '#binding'

import { checkInternal, endThis, nativeThis, Owner } from './owner.js'

/**
 * What a {@link ModelSequence} held in all layers at one moment, until it is disposed of or collected. It can be restored into
 * any sequence of its cache, in blocks one with the same salt and extras.
 */
export class ModelSnapshot extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeModelSnapshot) {
    checkInternal(token, 'ModelSnapshot', 'ModelSequence.snapshot() instead')
    super(token, native, ModelSnapshot)
  }

  /** Tokens in it. */
  get length(): number {
    return nativeThis<NativeModelSnapshot>(this, ModelSnapshot).length()
  }

  /** Gives back the memory that only it needs. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    endThis(this, ModelSnapshot)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, ModelSnapshot)
  }
}
