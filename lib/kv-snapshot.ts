import type { NativeKvSnapshot } from '#binding'

import { checkInternal, endThis, nativeThis, Owner } from './owner.js'

/** What a {@link KvCache} held at one moment; nothing that happens to the cache later changes it. */
export class KvSnapshot extends Owner {
  /** @internal */
  constructor(token: unknown, native: NativeKvSnapshot) {
    checkInternal(token, 'KvSnapshot', 'KvCache.snapshot() instead')
    super(token, native, KvSnapshot)
  }

  /** Tokens in it. */
  get seqLen(): number {
    return own(this).seqLen()
  }

  /** Gives back what only it needs. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    endThis(this, KvSnapshot)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, KvSnapshot)
  }
}

function own(self: unknown): NativeKvSnapshot {
  return nativeThis<NativeKvSnapshot>(self, KvSnapshot)
}
