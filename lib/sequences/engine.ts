import type { NativePagedKvCache } from '#binding'

import { count } from '../border/check.js'
import type { Class } from '../border/owner.js'
import type { Clock } from './clock.js'

/** Who waits for a change of a cache, or for its end. */
export interface Waiting {
  /** Something has changed. */
  wake(): void
  /** The cache has ended. */
  end(): void
}

/** @internal What all objects of one cache share: the native one, its clock, and who waits for changes. */
export class Engine {
  readonly native: NativePagedKvCache
  readonly clock: Clock
  /** Events that are kept for readers. */
  readonly events: number
  /** The class of its sequences. */
  readonly sequence: Class
  /** The group of each layer. */
  readonly #groups: readonly number[]
  /** Whether each query head of the model has a learned logit. */
  readonly hasSinkLogits: boolean
  readonly #waiting = new Set<Waiting>()
  #isWaking = false
  #isEnded = false

  constructor(native: NativePagedKvCache, clock: Clock, events: number, sequence: Class) {
    this.native = native
    this.clock = clock
    this.events = events
    this.sequence = sequence
    this.#groups = native.groupOfLayers()
    this.hasSinkLogits = native.hasSinkLogits()
  }

  /** The group of a layer; refused where there is no such layer. */
  groupOf(layer: unknown): number {
    return this.#groups[count('layer', layer, 0, this.#groups.length - 1)] as number
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

  /** Makes a call that changes the cache. */
  change<R>(call: (native: NativePagedKvCache) => R): R {
    const answer = call(this.ticked())
    this.changed()
    return answer
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
