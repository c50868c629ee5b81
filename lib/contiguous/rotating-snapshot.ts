import type { NativeRotatingSnapshot } from '#binding'

import { checkInternal, nativeThis, Owner } from '../border/owner.js'

/** What a rotating cache held at one moment; nothing that happens to the cache later changes it. */
export class RotatingSnapshot extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeRotatingSnapshot) {
    checkInternal(token, 'RotatingSnapshot', 'snapshot() of a rotating cache instead')
    super(token, native, RotatingSnapshot)
  }

  /** Tokens that had ever been appended. */
  get currentSeqLen(): number {
    return own(this).currentSeqLen()
  }

  /** The window of its cache. */
  get maxSeqLen(): number {
    return own(this).maxSeqLen()
  }

  /** Tokens that it keeps. */
  get retainedLen(): number {
    return own(this).retainedLen()
  }

  /** The sinks of its cache. */
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
