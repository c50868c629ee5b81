import type { NativePagedKvCache } from '#binding'

import type { PagedClock } from './paged-clock.js'

/** Who waits for a change of a cache, or for its end. */
export interface Waiting {
  /** Something has changed. */
  wake(): void
  /** The cache has ended. */
  end(): void
}

/** @internal What all objects of one paged cache share: the native one, its clock, and who waits for changes. */
export class PagedEngine {
  readonly native: NativePagedKvCache
  readonly clock: PagedClock
  /** Events that are kept for readers. */
  readonly events: number
  readonly #waiting = new Set<Waiting>()
  #isWaking = false
  #isEnded = false

  constructor(native: NativePagedKvCache, clock: PagedClock, events: number) {
    this.native = native
    this.clock = clock
    this.events = events
  }

  /** True when the cache was disposed of. */
  get isEnded(): boolean {
    return this.#isEnded
  }

  /** The native cache for a call that changes it: it knows the time. */
  ticked(): NativePagedKvCache {
    const now = this.clock.due()
    if (now !== undefined) this.native.advanceClock(now)
    return this.native
  }

  /** Says that a call may have changed something. Who waits is woken when the running code has ended, once for all its calls. */
  changed(): void {
    if (this.#waiting.size === 0 || this.#isWaking) return
    this.#isWaking = true
    queueMicrotask(() => {
      this.#isWaking = false
      for (const waiting of this.#waiting) waiting.wake()
    })
  }

  /** Adds someone who waits, until they leave. */
  wait(waiting: Waiting): void {
    this.#waiting.add(waiting)
  }

  leave(waiting: Waiting): void {
    this.#waiting.delete(waiting)
  }

  dispose(): void {
    this.native.dispose()
    this.#isEnded = true
    for (const waiting of this.#waiting) waiting.end()
  }
}
