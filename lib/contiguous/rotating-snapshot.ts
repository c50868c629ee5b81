import type { NativeRotatingSnapshot } from '#binding'

import { checkInternal, nativeThis, Owner } from '../border/owner.js'

/** What a rotating cache held at one moment. Later changes of the cache do not change it. */
export class RotatingSnapshot extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeRotatingSnapshot) {
    checkInternal(token, 'RotatingSnapshot', 'snapshot() of a rotating cache instead')
    super(token, native, RotatingSnapshot)
  }

  /** Tokens that had been appended to the cache. */
  get currentSeqLen(): number {
    return own(this).currentSeqLen()
  }

  /** The window of the cache. */
  get maxSeqLen(): number {
    return own(this).maxSeqLen()
  }

  /** Tokens in the snapshot. */
  get retainedLen(): number {
    return own(this).retainedLen()
  }

  /** The sinks of the cache. */
  get sinks(): number {
    return own(this).sinks()
  }

  /** The dimension of the sequence. */
  get dim(): number {
    return own(this).dim()
  }
}

function own(self: unknown): NativeRotatingSnapshot {
  return nativeThis<NativeRotatingSnapshot>(self, RotatingSnapshot)
}
