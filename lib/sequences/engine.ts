import type { NativePagedKvCache } from '#binding'

import { count } from '../border/check.js'
import { invalid } from '../border/errors.js'
import type { Class } from '../border/owner.js'

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

  /** The answer 0 about a sequence: right for an empty one; one that does not exist is refused. */
  zeroOf(sequence: number): 0 {
    this.native.checkSequence(sequence)
    return 0
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

/** A time in milliseconds, or a number of them: whole, what is behind the point is cut. */
export function milliseconds(argument: string, value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value <= Number.MAX_SAFE_INTEGER) return Math.floor(value)
  throw invalid(argument, value, `milliseconds from 0 to ${Number.MAX_SAFE_INTEGER}`)
}

/** @internal The time of a cache, asked for only while limits are in use. */
export class Clock {
  readonly #now: () => unknown
  #latest: number | undefined

  constructor(now: () => unknown) {
    this.#now = now
  }

  /** What time it is. */
  read(): number {
    const now = this.#now
    return milliseconds('now()', now())
  }

  /** Notes a limit, up to which the time is to be told. */
  limit(until: number): void {
    this.#latest = Math.max(this.#latest ?? 0, until)
  }

  /** The time, if a limit waits for it. */
  due(): number | undefined {
    if (this.#latest === undefined) return undefined
    const now = this.read()
    if (now >= this.#latest) this.#latest = undefined
    return now
  }
}
