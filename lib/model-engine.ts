import type { NativeModelCache } from '#binding'

import { PagedEngine, type Kinds } from './paged-engine.js'
import type { PagedClock } from './paged-clock.js'

/** @internal What all objects of one model's cache share. */
export class ModelEngine extends PagedEngine<NativeModelCache> {
  /** Whether each query head of the model has a learned logit. */
  readonly hasSinkLogits: boolean

  constructor(native: NativeModelCache, clock: PagedClock, events: number, kinds: Kinds) {
    super(native, clock, events, kinds)
    this.hasSinkLogits = native.hasSinkLogits()
  }
}
