import { setTimeout as sleep } from 'node:timers/promises'

import type { NativeBring, NativeLookup, NativePagedKvCache, NativeTiers } from '#binding'

import { isArray, list, milliseconds, optional } from '../border/check.js'
import { invalid, isKvTideError } from '../border/errors.js'
import type { DType } from '../border/host-array.js'
import { StopSignal } from '../border/stop-signal.js'
import { binding } from '../loading/binding.js'
import type { PageFormat } from '../sequences/page-format.js'
import { type Prompt, type SharedCache, type TiersBelow, type Waiting } from '../sequences/shared-cache.js'
import type { GuardedBlockStore } from './block-store.js'
import type { StoreEvent, StoreFault, StoreHealth } from './shared-store.js'
import type { BringOptions, readStoreTier, readTiers, TiersStats } from './tier-options.js'

/** What is copied in one turn of the event loop. */
const TURN_BYTES = 2 ** 20
/** For how long a call that writes to a store of the caller's is waited for, and how many bytes of entries are read in one call. */
const WRITE_MS = 10_000
const READ_BYTES = 8 * 2 ** 20
const AGAIN_MS = 1

const TELL_MS = 100

/** How many bytes the numbers of a page have, for compression. */
function elementBytes(dtype: DType, formats: readonly [PageFormat, PageFormat]): number {
  if (formats[0] !== dtype || formats[1] !== dtype) return formats[0] === 'f16' || formats[0] === 'bf16' ? 2 : 1
  return dtype === 'f32' ? 4 : 2
}

/** @internal The tiers of a cache: blocks go down at the end of each turn in which something changed. */
export class CacheTiers implements TiersBelow, Waiting {
  readonly #shared: SharedCache
  readonly native: NativeTiers
  readonly #store: ReturnType<typeof readStoreTier> | undefined
  readonly #deadline: number
  /** The places of the tiers: memory is 0, the others are counted from 1. */
  readonly #places = new Map<unknown, number>()
  #isWriting: Promise<void> | undefined
  #isHanding = false
  /** Asks the store whether something has changed. */
  readonly #timer: NodeJS.Timeout | undefined

  constructor(shared: SharedCache, options: ReturnType<typeof readTiers>, dtype: DType) {
    const { store, memory, disk, pendingBytes, deadline } = options
    const envelope = new binding.NativeEnvelope(store?.secret, store?.compress === true ? elementBytes(dtype, shared.formats) : 0)
    this.#shared = shared
    this.#store = store
    this.#deadline = deadline
    const tiers = Object.fromEntries(Object.entries({ memory, disk, store: store?.form }).filter(([, tier]) => tier !== undefined))
    this.native = shared.native.attachTiers({ ...tiers, pendingBytes }, store?.shared, envelope)
    if (memory !== undefined) this.#places.set('memory', 0)
    if (disk !== undefined) this.#places.set('disk', 1)
    if (store !== undefined) this.#places.set('store', disk === undefined ? 1 : 2)
    shared.wait(this)
    if (store?.onChange !== undefined) this.#timer = setInterval(() => this.#tell(), TELL_MS).unref()
  }

  /** Hands down what got a name, a part of it in each turn. */
  wake(): void {
    if (this.#isHanding || this.#shared.isEnded) return
    if (this.#handDown()) {
      this.#isHanding = true
      setImmediate(() => {
        this.#isHanding = false
        this.wake()
      })
    }
    this.#write()
    this.#tell()
  }

  /** Whether there is more to hand down: also where a background call has the cache. */
  #handDown(): boolean {
    const own = this.#store?.own
    if (own !== undefined) {
      const isWorth = own.isWorth()
      this.native.setReachable(isWorth)
      if (!isWorth) own.ask()
    }
    try {
      return this.#shared.native.handDown(TURN_BYTES)
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'BUSY') throw error
      return true
    }
  }

  /** Nothing that went down counts any more: neither disk nor store is asked. */
  forget(): void {
    this.#store?.own?.end()
  }

  end(): void {
    clearInterval(this.#timer)
    this.#store?.own?.end()
    this.native.end()
    this.#shared.leave(this)
  }

  /** What there is in each tier. */
  stats(): TiersStats {
    const each = this.native.stats().map(({ name, ...stats }) => [name, name === 'store' ? { ...stats, health: this.#health() } : stats])
    return Object.fromEntries(each) as TiersStats
  }

  #health(): StoreHealth {
    const { shared, own } = this.#store as ReturnType<typeof readStoreTier>
    return (shared ?? (own as GuardedBlockStore).gate).health()
  }

  /** Waits until what went down so far is where it belongs; answers whether it is. */
  async flush(most: number): Promise<boolean> {
    const deadline = performance.now() + most
    const left = (): number => Math.min(Math.max(0, Math.floor(deadline - performance.now())), 2 ** 31 - 1)
    while (left() > 0 && this.#handDown()) await new Promise(resolve => setImmediate(resolve))
    this.#write()
    const ended = new AbortController()
    // A store of the caller's may take as long as it likes.
    const late = sleep(left(), false, { signal: ended.signal }).catch(() => false)
    const isWritten = await Promise.race([this.#isWriting?.then(() => true) ?? true, late])
    ended.abort()
    return isWritten && this.native.flush(left())
  }

  /** Brings what the tiers have of a prompt into the cache: how many blocks came. Tokens and prompt stay as they are meanwhile. */
  async bring(tokens: Uint32Array, prompt: Prompt, { tiers, deadline, signal }: { readonly [Name in keyof BringOptions]?: unknown }): Promise<number> {
    const places = readPlaces(tiers, this.#places)
    const until = performance.now() + (optional(milliseconds, 'deadline', deadline) ?? this.#deadline)
    const left = (): number => Math.min(Math.max(0, Math.floor(until - performance.now())), 2 ** 31 - 1)
    return StopSignal.guard(signal, async stop => {
      const lookup = await this.#whenFree(left, native => this.native.lookUp(native, tokens, prompt.salt, prompt.saltFrom, prompt.extra, places))
      if (lookup === undefined) return 0
      await lookup.ask(left())
      await this.#askOwn(lookup, left)
      stop?.check()
      if (!lookup.isWorth()) return 0
      const bring = await this.#whenFree(left, native => lookup.begin(native, tokens, prompt.salt, prompt.saltFrom, prompt.extra))
      if (bring === undefined) return 0
      try {
        await Promise.all([bring.fetch(left()), this.#fetchOwn(bring, left)])
        stop?.check()
        const came = await this.#whenFree(left, native => bring.end(native), true)
        return (came as number[]).reduce((sum, blocks) => sum + blocks, 0)
      } finally {
        bring.dispose()
        this.#tell()
      }
    })
  }

  /** Makes a call once nobody uses the cache in the background, and wakes who waits; nothing where the time is over before. */
  async #whenFree<T>(left: () => number, call: (native: NativePagedKvCache) => T, isLast = false): Promise<T | undefined> {
    for (;;) {
      try {
        return this.#shared.change(call)
      } catch (error) {
        if (!isKvTideError(error) || error.code !== 'BUSY') throw error
        if (left() === 0 && !isLast) return undefined
      }
      await new Promise(resolve => setTimeout(resolve, AGAIN_MS))
    }
  }

  async #askOwn(lookup: NativeLookup, left: () => number): Promise<void> {
    const store = this.#store?.own
    const keys = store === undefined || left() === 0 ? [] : lookup.missing()
    if (store !== undefined && keys.length > 0) lookup.note([...(await store.hasMany(keys, left()))])
  }

  /** Brings what a store of the caller's has, in the prompt's order, some at a time. */
  async #fetchOwn(bring: NativeBring, left: () => number): Promise<void> {
    const store = this.#store?.own
    const keys = store === undefined ? [] : bring.asked()
    const most = keys.length === 0 ? 1 : bring.bytesMax()
    const together = Math.max(1, Math.floor(READ_BYTES / most))
    for (let first = 0; first < keys.length && left() > 0; first += together) {
      const values = await (store as GuardedBlockStore).getMany(keys.slice(first, first + together), most, left())
      const damaged = values.flatMap((value, at) => (value === undefined || bring.accept(first + at, value) ? [] : [keys[first + at] as string]))
      if (damaged.length > 0) await (store as GuardedBlockStore).removeMany(damaged, left())
      if (values.every(value => value === undefined)) return
    }
  }

  /** Writes what waits for a store of the caller's, one call at a time. */
  #write(): void {
    if (this.#store?.own === undefined || this.#isWriting !== undefined) return
    this.#isWriting = this.#writeAll(this.#store.own).finally(() => {
      this.#isWriting = undefined
    })
  }

  async #writeAll(store: GuardedBlockStore): Promise<void> {
    for (let pending = this.native.takePending(); pending !== null; pending = this.native.takePending()) {
      if (!store.isWorth()) {
        pending.settle(false)
        continue
      }
      const given = await pending.encode()
      const entries = []
      for (let entry = given.next(); entry !== null; entry = given.next()) entries.push(entry)
      const has = await store.hasMany(entries.map(({ key }) => key), WRITE_MS)
      const absent = entries.filter((_, at) => has[at] !== true)
      pending.settle(absent.length === 0 || (await store.putMany(absent, WRITE_MS)))
      this.#tell()
    }
  }

  /** Tells of changes of the store. */
  #tell(): void {
    const source = this.#store?.shared ?? this.#store?.own?.gate
    for (let event = source?.nextEvent(); event !== undefined && event !== null; event = source?.nextEvent()) {
      const { kind, about } = event
      const told: StoreEvent = kind === undefined ? { type: 'available' } : { type: 'unavailable', reason: kind as StoreFault, about: about as string }
      const { onChange } = this.#store as ReturnType<typeof readStoreTier>
      // What it throws is its caller's, and breaks nothing here.
      if (onChange !== undefined) queueMicrotask(() => onChange(told))
    }
  }
}

/** The places of some of the tiers that there are. */
function readPlaces(tiers: unknown, places: ReadonlyMap<unknown, number>): number[] {
  if (tiers === 'all') return [...places.values()]
  const expected = `'all', or a list of ${[...places.keys()].map(name => `'${String(name)}'`).join(', ')}, which this cache has`
  if (!isArray(tiers)) throw invalid('tiers', tiers, expected)
  return list('tiers', tiers, (argument, name) => {
    const place = places.get(name)
    if (place === undefined) throw invalid(argument, name, expected)
    return place
  })
}
