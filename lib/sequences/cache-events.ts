// Events of a cache: which cached blocks became available to prompts, or no longer are. The addon numbers them and keeps the newest; a reader here takes them in
// batches and is woken by changes, without polling. A slow reader misses the oldest events and learns how many; the cache never waits for a reader.
import type { NativeEvent } from '#binding'

import { known, type Names, optional, whole } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { endThis, INTERNAL, nativeArgument, Owner } from '../border/owner.js'
import type { SharedCache, Waiting } from './shared-cache.js'

const OPTIONS: Names<EventsOptions> = { from: 0 }

/** Prompts can reuse a block from now on. */
interface StoredEvent {
  readonly number: number
  readonly type: 'stored'
  /** The key of the block: 64 hexadecimal digits that stand for all tokens up to its end. */
  readonly key: string
  /** The key of the block before it. For the first block of a prompt, a value that is the key of no block. */
  readonly parent: string
  /** True if it is the first block of its prompts. */
  readonly isFirst: boolean
  /** Its tokens. */
  readonly tokens: Uint32Array
}

/** Prompts can no longer reuse a block. */
interface RemovedEvent {
  readonly number: number
  readonly type: 'removed'
  readonly key: string
}

/** Prompts can no longer reuse any block, or any state. */
interface ClearedEvent {
  readonly number: number
  readonly type: 'cleared'
  /** The content of the cache, if it keeps states: a prompt is continued only where there is a state. */
  readonly keeps?: KeptContent
}

/** The content of a cache whose layers keep states: `['tokens', 'states']`, or `['states']` without attention. */
export type KeptContent = readonly ('tokens' | 'states')[]

/** In a cache whose layers keep states: there is a state (a checkpoint) at the end of a block from now on, or no longer. */
interface StateEvent {
  readonly number: number
  readonly type: 'state-stored' | 'state-removed'
  /** The key of the block. */
  readonly key: string
}

/** A change of a cached block or state, or of all of them. Events are numbered without gaps. */
export type CacheEvent = StoredEvent | RemovedEvent | ClearedEvent | StateEvent

/**
 * The events of a cache, as they happen. Waiting for one takes no polling, and does not keep the process alive.
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 *
 * using cache = new PagedKvCache({ capacity: 8, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, events: 1000 })
 * const found = new Map<string, Uint32Array>()
 * const following = (async () => {
 *   for await (const event of cache.events()) {
 *     if (event.type === 'stored') found.set(event.key, event.tokens)
 *     else if (event.type === 'removed') found.delete(event.key)
 *     else found.clear()
 *     if (found.size === 2) break
 *   }
 * })()
 * const rows = { data: new Float32Array(4), shape: [1, 1, 4, 1] }
 * cache.openSequence().append({ tokens: [1, 2, 3, 4], k: rows, v: rows })
 * await following
 * console.log([...found.values()].map(tokens => tokens.length)) // [2, 2]
 * ```
 */
export interface CacheEvents extends AsyncIterableIterator<CacheEvent, undefined>, Disposable {
  /** The number of events that were dropped before they were read here. Numbers skip them. */
  readonly missed: number
  /** Ends the iterator, and a pending `next()` with it. */
  return(): Promise<IteratorReturnResult<undefined>>
  /** As {@link return}, synchronously. */
  dispose(): void
}

/** Options of `events()`. */
export interface EventsOptions {
  /** The number of the first event wanted, 0 by default. Events that the cache no longer keeps count as missed. */
  readonly from?: number
}

type NextEvent = IteratorResult<CacheEvent, undefined>

interface PendingEvent {
  readonly answer: (result: NextEvent) => void
  readonly refuse: (reason: unknown) => void
}

/** The maximum number of events that one call of the addon returns. */
const EVENTS_MAX = 256

const DONE: IteratorReturnResult<undefined> = { done: true, value: undefined }

class Reader implements Waiting {
  readonly #shared: SharedCache
  readonly #pending: PendingEvent[] = []
  #events: readonly CacheEvent[] = []
  #place = 0
  #next: number
  #isEnded = false
  missed = 0

  constructor(shared: SharedCache, from: number) {
    this.#shared = shared
    this.#next = from
  }

  ask(): Promise<NextEvent> {
    return new Promise((answer, refuse) => {
      this.#pending.push({ answer, refuse })
      this.wake()
    })
  }

  /** Settles pending promises in order, as long as there are events. */
  wake(): void {
    while (this.#pending.length > 0) {
      let result: NextEvent | undefined
      try {
        result = this.#take()
      } catch (reason) {
        this.#pending.shift()?.refuse(reason)
        continue
      }
      if (result === undefined) return this.#shared.wait(this)
      this.#pending.shift()?.answer(result)
    }
    this.#shared.leave(this)
  }

  end(): void {
    this.#isEnded = true
    this.#events = []
    this.wake()
  }

  dispose(): void {
    this.end()
  }

  /** The next event; `undefined` if there is none yet. */
  #take(): NextEvent | undefined {
    if (this.#isEnded || this.#shared.isEnded) return DONE
    if (this.#place >= this.#events.length) this.#fetch()
    const value = this.#events[this.#place]
    if (value === undefined) return undefined
    this.#place += 1
    return { done: false, value }
  }

  #fetch(): void {
    const { missed, first, events } = this.#shared.native.events(this.#next, EVENTS_MAX)
    this.missed += missed
    this.#events = events.map((event, place) => eventOf(this.#shared, first + place, event))
    this.#place = 0
    if (events.length > 0) this.#next = first + events.length
    else this.#next += missed
  }
}

function eventOf(shared: SharedCache, number: number, { kind, key, parent, tokens, isFirst }: NativeEvent): CacheEvent {
  if (kind === 'stored')
    return {
      number,
      type: kind,
      key: key as string,
      parent: parent as string,
      isFirst,
      tokens: new Uint32Array(tokens as number[]),
    }
  return kind === 'cleared' ? cleared(shared, number) : { number, type: kind, key: key as string }
}

function cleared(shared: SharedCache, number: number): ClearedEvent {
  const keeps = keptContent(shared)
  return { number, type: 'cleared', ...(keeps !== undefined && { keeps }) }
}

/** @internal The content of a cache with states; `undefined` for a cache of tokens alone. */
export function keptContent({ native }: SharedCache): KeptContent | undefined {
  const states = native.groups().findIndex(({ tensors }) => tensors !== undefined)
  if (states < 0) return undefined
  return states > 0 ? ['tokens', 'states'] : ['states']
}

/** The content of a prefix cache as events, and the number of the next event. */
export interface CacheReplay {
  /** A `cleared`, a `stored` for each block, each behind its parent's, and a `state-stored` for each state. All have the number `next`. */
  readonly events: readonly CacheEvent[]
  /** `events({ from: next })` continues from there. */
  readonly next: number
}

/** @internal */
export function readReplay(shared: SharedCache): CacheReplay {
  const { first: next, events } = shared.native.foundEvents()
  return { events: [cleared(shared, next), ...events.map(event => eventOf(shared, next, event))], next }
}

class Events extends Owner implements CacheEvents {
  constructor(reader: Reader) {
    super(INTERNAL, reader, Events)
  }

  get missed(): number {
    return own(this).missed
  }

  next(): Promise<NextEvent> {
    return own(this).ask()
  }

  return(): Promise<IteratorReturnResult<undefined>> {
    endThis(this, Events)
    return Promise.resolve(DONE)
  }

  [Symbol.asyncIterator](): this {
    own(this)
    return this
  }
}

function own(self: unknown): Reader {
  return nativeArgument<Reader>('this', self, Events)
}

/** @internal The events of a cache, starting with a number. */
export function readEvents(shared: SharedCache, options: unknown): CacheEvents {
  const { from } = known<EventsOptions>('options', options, OPTIONS)
  const first = optional(whole, 'from', from) ?? 0
  if (shared.events === 0) throw invalid('this', 'a cache without events', 'a cache made with the option events')
  return new Events(new Reader(shared, first))
}
