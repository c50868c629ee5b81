// The state that all objects of one cache share, and the handle of a sequence. Every call that changes a cache goes through `SharedCache.change`, which passes
// the time if it is needed, and wakes waiting readers and publishers.
import type { NativeFound, NativePagedKvCache, NativeTiers } from '#binding'

import { count, milliseconds } from '../errors/check.js'
import type { Class } from '../border/owner.js'
import { AGAIN_MS, isBusy } from '../border/when-free.js'
import type { BringOptions, TiersStats } from '../tiers/tier-options.js'
import type { PageFormat } from './page-format.js'

/** The group of a layer without keys and values, as the addon numbers groups. */
const NO_GROUP = 2 ** 32 - 1

/** @internal The clock of a cache, read only while a time limit is in use. */
export class Clock {
  readonly #now: () => unknown
  #latest: number | undefined

  constructor(now: () => unknown) {
    this.#now = now
  }

  read(): number {
    const now = this.#now
    return milliseconds('now()', now())
  }

  /** Notes a time limit: until then the cache needs the time. */
  limit(until: number): void {
    this.#latest = Math.max(this.#latest ?? 0, until)
  }

  /** Passes the time on if a limit needs it. A limit that has passed counts until `advance` has returned, so that a cache in use is told later. */
  tick(advance: (now: number) => void): void {
    if (this.#latest === undefined) return
    const now = this.read()
    advance(now)
    if (this.#latest !== undefined && now >= this.#latest) this.#latest = undefined
  }
}

/** An object that is called after changes of a cache. */
export interface Waiting {
  wake(): void
  end(): void
}

/** @internal Salt and extras after they were checked. */
export interface Prompt {
  readonly salt: Uint8Array
  readonly saltFrom: number
  readonly extra: { start: number; end: number; key: Uint8Array }[] | undefined
}

/** @internal The tiers of a cache. */
export interface TiersBelow {
  readonly native: NativeTiers
  /** Returns the statistics of each tier. */
  stats(): TiersStats
  /** Waits until the offload queue is empty; returns true if it is. */
  flush(milliseconds: number): Promise<boolean>
  /** Makes entries that were offloaded so far unusable for this cache. */
  forget(): void
  /**
   * Restores blocks of a prompt from the tiers. Then finds the prompt, unless `isPartial` is missing or the cache was in use until the deadline. The caller must
   * not change tokens or prompt meanwhile.
   */
  restore(
    tokens: Uint32Array,
    prompt: Prompt,
    isPartial: boolean | undefined,
    options: { readonly [Name in keyof BringOptions]?: unknown },
  ): Promise<NativeFound | undefined>
}

/** @internal The state that all objects of one cache share: the native cache, its clock, and the objects that wait for changes. */
export class SharedCache {
  readonly native: NativePagedKvCache
  readonly clock: Clock
  /** The maximum number of events that are kept for readers. */
  readonly events: number
  readonly sequence: Class
  /** The page formats of K and V. */
  readonly formats: readonly [key: PageFormat, value: PageFormat]
  readonly #groups: readonly number[]
  /** True if the model has a learned sink logit for each query head. */
  readonly hasSinkLogits: boolean
  /** The tiers below the pool, if there are any. */
  tiers: TiersBelow | undefined
  readonly #waiting = new Set<Waiting>()
  /** Attempts of calls that wait for background work to end; see {@link beforeChanges}. */
  readonly #attempts = new Set<() => void>()
  #isWaking = false
  #isEnded = false

  constructor(
    native: NativePagedKvCache,
    clock: Clock,
    events: number,
    sequence: Class,
    formats: SharedCache['formats'],
  ) {
    this.native = native
    this.clock = clock
    this.events = events
    this.sequence = sequence
    this.formats = formats
    this.#groups = native.groupOfLayers()
    this.hasSinkLogits = native.hasSinkLogits()
  }

  /** The number of layers. */
  get layers(): number {
    return this.#groups.length
  }

  /** The group of a layer's keys and values. Refuses a layer that does not exist or has none. */
  groupOf(layer: unknown): number {
    const index = count('layer', layer, 0, this.#groups.length - 1)
    const group = this.#groups[index] as number
    if (group === NO_GROUP) this.native.checkLayer(index)
    return group
  }

  /** Returns 0 for an empty sequence. Refuses a sequence that does not exist. */
  zeroOf(sequence: number): 0 {
    this.native.checkSequence(sequence)
    return 0
  }

  get isEnded(): boolean {
    return this.#isEnded
  }

  /** The native cache with its clock set, for a call that changes it. Calls that wait for background work come first. */
  ticked(): NativePagedKvCache {
    if (this.#attempts.size > 0) Array.from(this.#attempts).forEach(attempt => attempt())
    this.clock.tick(now => this.native.advanceClock(now))
    return this.native
  }

  /** Makes a call that changes the cache, and wakes the waiting objects. */
  change<R>(call: (native: NativePagedKvCache) => R): R {
    const answer = call(this.ticked())
    this.changed()
    return answer
  }

  /**
   * As {@link change}, for a report that must not be lost. It is made even if the clock cannot be set, because background work uses the cache or `now` throws;
   * the next change sets the clock or throws.
   */
  settle<R>(call: (native: NativePagedKvCache) => R): R {
    try {
      this.ticked()
    } catch {
      // The report counts all the same.
    }
    const answer = call(this.native)
    this.changed()
    return answer
  }

  /**
   * Makes a call now, or, if background work uses the cache, once it no longer does, but before any change of the cache: the call sees the cache as it is
   * now. `check` is called once a millisecond meanwhile, and throws if the wait is to end.
   */
  async beforeChanges<T>(call: () => T, check: () => void): Promise<T> {
    let outcome: { readonly value: T } | { readonly error: unknown } | undefined
    const attempt = (): void => {
      // The call may be a change itself.
      this.#attempts.delete(attempt)
      try {
        outcome = { value: call() }
      } catch (error) {
        if (isBusy(error)) this.#attempts.add(attempt)
        else outcome = { error }
      }
    }
    attempt()
    try {
      for (;;) {
        const made = outcome as { readonly value: T } | { readonly error: unknown } | undefined
        if (made !== undefined) {
          if ('error' in made) throw made.error
          return made.value
        }
        await new Promise(resolve => setTimeout(resolve, AGAIN_MS))
        if (outcome !== undefined) continue
        check()
        attempt()
      }
    } finally {
      this.#attempts.delete(attempt)
    }
  }

  /** Called after a call that may have changed something. Wakes the waiting objects once the running code has ended, once for all its calls. */
  changed(): void {
    if (this.#waiting.size === 0 || this.#isWaking) return
    this.#isWaking = true
    queueMicrotask(() => {
      this.#isWaking = false
      for (const waiting of this.#waiting) waiting.wake()
    })
  }

  /** Adds a waiting object, until `leave` removes it. */
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

/** @internal A sequence: its number, and its cache. */
export class SequenceHandle {
  readonly shared: SharedCache
  readonly id: number

  constructor(shared: SharedCache, id: number) {
    this.shared = shared
    this.id = id
  }

  dispose(): void {
    this.shared.native.releaseSequence(this.id)
    this.shared.changed()
  }
}
