import type { NativeEvent } from '#binding'

import { known, optional, whole, type Names } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { endThis, INTERNAL, nativeArgument, Owner } from '../border/owner.js'
import type { Engine, Waiting } from './engine.js'

const OPTIONS: Names<EventsOptions> = { from: 0 }

/** A block can be found now. */
export interface StoredEvent {
  readonly number: number
  readonly type: 'stored'
  /** The name of the tokens up to and with this block: 64 hexadecimal digits. */
  readonly key: string
  /** The name of the tokens before it; the first block of a prompt follows one that no block has. */
  readonly parent: string
  /** Its tokens. */
  readonly tokens: Uint32Array
}

/** A block cannot be found any more. */
export interface RemovedEvent {
  readonly number: number
  readonly type: 'removed'
  readonly key: string
}

/** No block can be found any more. */
export interface ClearedEvent {
  readonly number: number
  readonly type: 'cleared'
}

/** What happened to the blocks that prompts find, numbered without gaps. */
export type CacheEvent = StoredEvent | RemovedEvent | ClearedEvent

/**
 * Events as they come. It waits for them without asking again and again, and does not keep the process alive.
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
  /** Events that were gone before they were read here: the number of the next one is so much higher. */
  readonly missed: number
  /** Ends it, also for who waits for an event. */
  return(): Promise<IteratorReturnResult<undefined>>
  /** As {@link return}, at once. */
  dispose(): void
}

/** Where reading begins. */
export interface EventsOptions {
  /** The number of the first event wanted, 0 unless said otherwise: those that are kept no longer are missed. */
  readonly from?: number
}

type Result = IteratorResult<CacheEvent, undefined>

/** Who waits for an event. */
interface Asker {
  readonly answer: (result: Result) => void
  readonly refuse: (reason: unknown) => void
}

/** Events that are taken over the border at once. */
const PIECE = 256

const DONE: IteratorReturnResult<undefined> = { done: true, value: undefined }

/** Reads events from a number on. */
class Reader implements Waiting {
  readonly #engine: Engine
  readonly #askers: Asker[] = []
  #piece: readonly CacheEvent[] = []
  #place = 0
  #next: number
  #isEnded = false
  missed = 0

  constructor(engine: Engine, from: number) {
    this.#engine = engine
    this.#next = from
  }

  ask(): Promise<Result> {
    return new Promise((answer, refuse) => {
      this.#askers.push({ answer, refuse })
      this.wake()
    })
  }

  /** Answers who waits, in order, as far as there are events. */
  wake(): void {
    while (this.#askers.length > 0) {
      let result: Result | undefined
      try {
        result = this.#take()
      } catch (reason) {
        this.#askers.shift()?.refuse(reason)
        continue
      }
      if (result === undefined) return this.#engine.wait(this)
      this.#askers.shift()?.answer(result)
    }
    this.#engine.leave(this)
  }

  end(): void {
    this.#isEnded = true
    this.#piece = []
    this.wake()
  }

  dispose(): void {
    this.end()
  }

  /** The next event; nothing when there is none yet. */
  #take(): Result | undefined {
    if (this.#isEnded || this.#engine.isEnded) return DONE
    if (this.#place >= this.#piece.length) this.#fetch()
    const value = this.#piece[this.#place]
    if (value === undefined) return undefined
    this.#place += 1
    return { done: false, value }
  }

  #fetch(): void {
    const { missed, first, events } = this.#engine.native.events(this.#next, PIECE)
    this.missed += missed
    this.#piece = events.map((event, place) => eventOf(first + place, event))
    this.#place = 0
    if (events.length > 0) this.#next = first + events.length
    else this.#next += missed
  }
}

function eventOf(number: number, { kind, key, parent, tokens }: NativeEvent): CacheEvent {
  if (kind === 'stored') return { number, type: kind, key: key as string, parent: parent as string, tokens: new Uint32Array(tokens as number[]) }
  return kind === 'removed' ? { number, type: kind, key: key as string } : { number, type: kind }
}

/** What `events()` returns. */
class Events extends Owner implements CacheEvents {
  constructor(reader: Reader) {
    super(INTERNAL, reader, Events)
  }

  get missed(): number {
    return own(this).missed
  }

  next(): Promise<Result> {
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

/** @internal The events of a cache from a number on. */
export function readEvents(engine: Engine, options: unknown): CacheEvents {
  const { from } = known<EventsOptions>('options', options, OPTIONS)
  const first = optional(whole, 'from', from) ?? 0
  if (engine.events === 0) throw invalid('this', 'a cache without events', 'one that was made with the option events')
  return new Events(new Reader(engine, first))
}
