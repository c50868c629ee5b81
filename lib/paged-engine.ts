import type { NativeEvents, NativeExplanation, NativeExtra, NativePagedKvCache, NativePrefixKeys } from '#binding'

import type { Class } from './owner.js'
import type { PagedClock } from './paged-clock.js'

/** Who waits for a change of a cache, or for its end. */
export interface Waiting {
  /** Something has changed. */
  wake(): void
  /** The cache has ended. */
  end(): void
}

/** @internal A prefix as the addon holds it. */
export interface NativePrefix {
  length(): number
  dispose(): void
}

/** @internal The calls that native caches of many sequences have alike. */
export interface NativeSequences {
  advanceClock(now: number): void
  createSequence(salt: Uint8Array, extra?: NativeExtra[]): number
  createSequenceFrom(prefix: NativePrefix): number
  findPrefix(tokens: Uint32Array, salt: Uint8Array, extra: NativeExtra[] | undefined, partial: boolean): NativePrefix
  canAllocate(tokens: number, watermark: number): boolean
  canAllocatePrompt(tokens: Uint32Array, salt: Uint8Array, extra: NativeExtra[] | undefined, watermark: number): boolean
  explain(tokens: Uint32Array, salt: Uint8Array, extra?: NativeExtra[]): NativeExplanation
  events(since: number, most: number): NativeEvents
  keys(tokens: Uint32Array, salt: Uint8Array, extra?: NativeExtra[]): string[]
  indexedKeys(): NativePrefixKeys
  retain(sequence: number, from: number, to: number, priority: number, until?: number): void
  checkSequence(sequence: number): void
  sequenceLength(sequence: number): number
  committedLength(sequence: number): number
  dispose(): void
}

/** @internal Classes of the objects that belong to a cache: of its sequences, and of the native prefixes that it finds. */
export interface Kinds {
  readonly sequence: Class
  readonly prefix: abstract new (...args: never[]) => NativePrefix
}

/** @internal What all objects of one cache of many sequences share: the native one, its clock, and who waits for changes. */
export class PagedEngine<N extends NativeSequences = NativePagedKvCache> {
  readonly native: N
  readonly clock: PagedClock
  /** Events that are kept for readers. */
  readonly events: number
  readonly kinds: Kinds
  readonly #waiting = new Set<Waiting>()
  #isWaking = false
  #isEnded = false

  constructor(native: N, clock: PagedClock, events: number, kinds: Kinds) {
    this.native = native
    this.clock = clock
    this.events = events
    this.kinds = kinds
  }

  /** True when the cache was disposed of. */
  get isEnded(): boolean {
    return this.#isEnded
  }

  /** The native cache for a call that changes it: it knows the time. */
  ticked(): N {
    const now = this.clock.due()
    if (now !== undefined) this.native.advanceClock(now)
    return this.native
  }

  /** Makes a call that changes the cache. */
  change<R>(call: (native: N) => R): R {
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

/** @internal That of any cache of many sequences. */
export type SequencesEngine = PagedEngine<NativeSequences>
