import { setTimeout as sleep } from 'node:timers/promises'

import type { NativeGate } from '#binding'

import { arrayKind, isArray, typedArray } from '../border/check.js'
import { binding } from '../loading/binding.js'

/** An entry of a store: a block under its key. */
export interface StoreEntry {
  /** 64 hexadecimal digits, a point, the number of a group of layers, and what the entry is put into. */
  readonly key: string
  readonly value: Uint8Array
}

/** What each call of a {@link BlockStore} is told besides. */
export interface BlockStoreCall {
  /** Aborted when nobody waits for the answer any more. */
  readonly signal: AbortSignal
}

/**
 * A store of your own: any client that you have, behind three calls for many keys each. What it answers is verified before anything is done with
 * it; what it throws, answers late or answers wrongly is a miss. Values never change: one that is there need not be written again.
 */
export interface BlockStore {
  /** The values of keys, in their order; `undefined` or `null` where there is none. */
  getMany(keys: readonly string[], call: BlockStoreCall): PromiseLike<readonly (Uint8Array | null | undefined)[]>
  /** Adds values. Resolves once they are there. */
  putMany(entries: readonly StoreEntry[], call: BlockStoreCall): PromiseLike<unknown>
  /** Whether there are values of keys, in their order. */
  hasMany(keys: readonly string[], call: BlockStoreCall): PromiseLike<readonly boolean[]>
  /** Removes values that were found to be damaged. Without it they stay, and are misses. */
  removeMany?(keys: readonly string[], call: BlockStoreCall): PromiseLike<unknown>
}

/** For how long one attempt is waited for before it counts as a failure of the store. */
const ATTEMPT_MS = 2000

const ATTEMPTS = 3

/** The longest pause before the second attempt; it doubles with each one. */
const PAUSE_MS = 20

/** A key of no block, and how long the question for it may take: it finds out whether a store is there again. */
const NOBODY = `${'0'.repeat(64)}.0`
const ASK_MS = 3000

const BUSY = -2

/** What an answer held, for the gate: values that were found and that were not, bytes that came in and went out. */
interface Held<T> {
  readonly answer: T
  readonly hits: number
  readonly misses: number
  readonly bytesIn: number
  readonly bytesOut: number
}

/** Something is wrong with an answer. */
class Garbage extends Error {}

const LATE: unique symbol = Symbol('late')
const REFUSED: unique symbol = Symbol('refused')

/** What somebody threw, which may be anything. */
function textOf(error: unknown): string {
  try {
    return String(error instanceof Error ? error.message : error).slice(0, 200)
  } catch {
    return 'something that has no text'
  }
}

/** @internal A store of the caller's, asked so that nobody has to wait for it: the same gate as for those that are built in. */
export class GuardedBlockStore {
  readonly gate: NativeGate = new binding.NativeGate()
  readonly #store: BlockStore
  #asking: NodeJS.Timeout | undefined
  #isEnded = false

  constructor(store: BlockStore) {
    this.#store = store
  }

  /** Whether it is worth a call: it can be reached, as far as is known, or the call would find out. */
  isWorth(): boolean {
    return this.gate.unavailableFor() <= 0
  }

  /** Asks for no block, as often as the store may be asked, until it answers or `end` is called. */
  ask(): void {
    const pause = this.gate.unavailableFor()
    if (pause < 0 || this.#asking !== undefined || this.#isEnded) return
    this.#asking = setTimeout(() => {
      this.#asking = undefined
      if (this.gate.unavailableFor() !== 0) return this.ask()
      // What it throws the gate has heard.
      this.hasMany([NOBODY], ASK_MS).then(() => this.ask(), () => {})
    }, pause).unref()
  }

  /** Nobody asks it of its own accord any more. */
  end(): void {
    this.#isEnded = true
    clearTimeout(this.#asking)
  }

  /** The values of keys, at most `bytesMax` long: those that come within this many milliseconds. */
  async getMany(keys: readonly string[], bytesMax: number, milliseconds: number): Promise<readonly (Uint8Array | undefined)[]> {
    const none = keys.map(() => undefined)
    return this.#call(keys.length * bytesMax, milliseconds, none, async call => {
      const given = await this.#store.getMany(keys, call)
      if (!isArray(given) || given.length !== keys.length) throw new Garbage(`getMany answered no list of ${keys.length}`)
      const answer = given.map(value => {
        if (value === undefined || value === null) return undefined
        if (arrayKind(value) !== 'Uint8Array') throw new Garbage('getMany answered a value that is no Uint8Array')
        const bytes = typedArray<Uint8Array>('value', value, ['Uint8Array'])
        return bytes.length <= bytesMax ? bytes : undefined
      })
      const found = answer.filter(value => value !== undefined)
      return { answer, hits: found.length, misses: keys.length - found.length, bytesIn: found.reduce((sum, value) => sum + value.length, 0), bytesOut: 0 }
    })
  }

  async hasMany(keys: readonly string[], milliseconds: number): Promise<readonly boolean[]> {
    const none = keys.map(() => false)
    return this.#call(keys.length, milliseconds, none, async call => {
      const given = await this.#store.hasMany(keys, call)
      if (!isArray(given) || given.length !== keys.length) throw new Garbage(`hasMany answered no list of ${keys.length}`)
      return { answer: given.map(value => value === true), hits: 0, misses: 0, bytesIn: 0, bytesOut: 0 }
    })
  }

  /** Whether values are certainly there now. */
  async putMany(entries: readonly StoreEntry[], milliseconds: number): Promise<boolean> {
    const bytesOut = entries.reduce((sum, { value }) => sum + value.length, 0)
    return this.#call(bytesOut, milliseconds, false, async call => {
      await this.#store.putMany(entries, call)
      return { answer: true, hits: 0, misses: 0, bytesIn: 0, bytesOut }
    })
  }

  /** Removes values, if it can. */
  async removeMany(keys: readonly string[], milliseconds: number): Promise<void> {
    if (this.#store.removeMany === undefined) return
    await this.#call(keys.length, milliseconds, undefined, async call => {
      await this.#store.removeMany?.(keys, call)
      return { answer: undefined, hits: 0, misses: 0, bytesIn: 0, bytesOut: 0 }
    })
  }

  /** A call that ends in time, with `miss` where there is no answer: tried again after a random while, as long as there is time. */
  async #call<T>(bytes: number, milliseconds: number, miss: T, work: (call: BlockStoreCall) => Promise<Held<T>>): Promise<T> {
    const deadline = performance.now() + milliseconds
    const ended = new AbortController()
    let pause = PAUSE_MS
    try {
      for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
        const left = deadline - performance.now()
        if (left <= 0) break
        const outcome = await Promise.race([this.#attempt(bytes, work), sleep(left, LATE, { signal: ended.signal })])
        if (outcome === LATE || outcome === REFUSED) break
        if (outcome !== undefined) return outcome.answer
        await sleep(Math.min(Math.random() * pause, Math.max(deadline - performance.now(), 0)))
        pause *= 2
      }
      return miss
    } finally {
      ended.abort()
    }
  }

  /** One attempt, which the gate hears of also when its caller has left. */
  async #attempt<T>(bytes: number, work: (call: BlockStoreCall) => Promise<Held<T>>): Promise<Held<T> | typeof REFUSED | undefined> {
    const permit = this.gate.admit(bytes)
    if (permit === BUSY) return undefined
    if (permit < 0) return REFUSED
    const patience = new AbortController()
    try {
      const late = sleep(ATTEMPT_MS, LATE, { signal: patience.signal, ref: false })
      const held = await Promise.race([work({ signal: patience.signal }), late])
      if (held === LATE) {
        this.gate.failed(permit, 'timedOut', `no answer in ${ATTEMPT_MS} ms`)
        return undefined
      }
      this.gate.answered(permit, held.hits, held.misses, held.bytesIn, held.bytesOut)
      return held
    } catch (error) {
      this.gate.failed(permit, error instanceof Garbage ? 'garbage' : 'unreachable', textOf(error))
      return undefined
    } finally {
      patience.abort()
    }
  }
}
