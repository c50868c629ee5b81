import type { NativePagedKvCache, NativeTiers } from '#binding'

import { count, milliseconds } from '../border/check.js'
import type { Class } from '../border/owner.js'
import type { BringOptions, TiersStats } from '../store/tier-options.js'
import type { PageFormat } from './page-format.js'

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

  /** Notes a limit: until then the cache has to know the time. */
  limit(until: number): void {
    this.#latest = Math.max(this.#latest ?? 0, until)
  }

  /** The time now, if a limit needs it. */
  due(): number | undefined {
    if (this.#latest === undefined) return undefined
    const now = this.read()
    if (now >= this.#latest) this.#latest = undefined
    return now
  }
}

/** Something that waits for changes of a cache. */
export interface Waiting {
  wake(): void
  end(): void
}

/** @internal Salt and extras, read. */
export interface Prompt {
  readonly salt: Uint8Array
  readonly saltFrom: number
  readonly extra: { start: number; end: number; key: Uint8Array }[] | undefined
}

/** @internal What lies below a cache. */
export interface TiersBelow {
  readonly native: NativeTiers
  /** What there is in each tier. */
  stats(): TiersStats
  /** Waits until what went down is where it belongs; answers whether it is. */
  flush(milliseconds: number): Promise<boolean>
  /** Nothing that went down counts any more. */
  forget(): void
  /** Brings what the tiers have of a prompt: how many blocks came. Tokens and prompt stay as they are meanwhile. */
  bring(tokens: Uint32Array, prompt: Prompt, options: { readonly [Name in keyof BringOptions]?: unknown }): Promise<number>
}

/** @internal What all objects of one cache share: the native cache, its clock, and who waits for changes. */
export class SharedCache {
  readonly native: NativePagedKvCache
  readonly clock: Clock
  /** The most events that are kept for readers. */
  readonly events: number
  readonly sequence: Class
  /** How pages store K and V. */
  readonly formats: readonly [key: PageFormat, value: PageFormat]
  readonly #groups: readonly number[]
  /** Whether the model has a learned logit for each query head. */
  readonly hasSinkLogits: boolean
  /** What lies below it. */
  tiers: TiersBelow | undefined
  readonly #waiting = new Set<Waiting>()
  #isWaking = false
  #isEnded = false

  constructor(native: NativePagedKvCache, clock: Clock, events: number, sequence: Class, formats: SharedCache['formats']) {
    this.native = native
    this.clock = clock
    this.events = events
    this.sequence = sequence
    this.formats = formats
    this.#groups = native.groupOfLayers()
    this.hasSinkLogits = native.hasSinkLogits()
  }

  /** How many layers there are. */
  get layers(): number {
    return this.#groups.length
  }

  /** The group of a layer; a layer that does not exist is refused. */
  groupOf(layer: unknown): number {
    return this.#groups[count('layer', layer, 0, this.#groups.length - 1)] as number
  }

  /** The answer 0 about a sequence: right for an empty one; one that does not exist is refused. */
  zeroOf(sequence: number): 0 {
    this.native.checkSequence(sequence)
    return 0
  }

  get isEnded(): boolean {
    return this.#isEnded
  }

  /** The native cache, told the time, for a call that changes it. */
  ticked(): NativePagedKvCache {
    const now = this.clock.due()
    if (now !== undefined) this.native.advanceClock(now)
    return this.native
  }

  /** Makes a call that changes the cache, and wakes who waits. */
  change<R>(call: (native: NativePagedKvCache) => R): R {
    const answer = call(this.ticked())
    this.changed()
    return answer
  }

  /** Notes that a call may have changed something. Those who wait are woken once the running code has ended, once for all its calls. */
  changed(): void {
    if (this.#waiting.size === 0 || this.#isWaking) return
    this.#isWaking = true
    queueMicrotask(() => {
      this.#isWaking = false
      for (const waiting of this.#waiting) waiting.wake()
    })
  }

  /** Adds one that waits, until it leaves. */
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
