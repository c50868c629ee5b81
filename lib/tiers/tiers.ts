// The tiers below a pool: memory, disk and stores. This folder checks their options, drives the addon, which does the work, and calls a store of the caller's.
// This file has the tiers of one cache: they offload blocks after a change, and restore blocks for a match. A cache never waits for a tier.
import type { NativeDriver, NativeFound, NativePagedKvCache, NativeStep, NativeTiers } from '#binding'

import { duration, isArray, list, optional } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import type { DType } from '../border/host-array.js'
import { StopSignal } from '../border/stop-signal.js'
import { timers } from '../border/timers.js'
import { isBusy, isPoisoned, whenFree } from '../border/when-free.js'
import type { PageFormat } from '../sequences/page-format.js'
import type { Prompt, SharedCache, TiersBelow, Waiting } from '../sequences/shared-cache.js'
import { callStore, Garbage, type StoreAnswer, textOf } from './block-store.js'
import type { StoreEvent, StoreFault, StoreHealth } from './shared-store.js'
import type { BringOptions, readStoreTier, readTiers, TiersStats } from './tier-options.js'

/** The bytes to copy at a time. If a sixteenth of the backlog is more, the addon copies that much. */
const TURN_BYTES = 2 ** 20

/** The bits that `offload` returns. */
const [MORE, QUEUED, UNREACHABLE] = [1, 2, 4] as const

const TELL_MS = 100

const LATE: unique symbol = Symbol('late')
const STOPPED: unique symbol = Symbol('stopped')

/** Returns the bytes of each number in a page, for compression. */
function elementBytes(dtype: DType, formats: readonly [PageFormat, PageFormat]): number {
  if (formats[0] !== dtype || formats[1] !== dtype) return formats[0] === 'f16' || formats[0] === 'bf16' ? 2 : 1
  return dtype === 'f32' ? 4 : 2
}

/** Passes the result of an attempt to a driver. */
type Outcome = (driver: NativeDriver, native: NativePagedKvCache, permit: number) => NativeStep

const ABANDONED: Outcome = (driver, native, permit) => driver.abandon(native, permit)

/** The context in which a machine is driven. */
interface Driving {
  /** Makes calls of the addon, which may change the cache; reports about attempts are calls of `settle`. */
  readonly calls: Pick<SharedCache, 'change' | 'settle'>
  /** Returns the milliseconds until the deadline. */
  readonly left: () => number
  /** Aborts the work. */
  readonly stop: StopSignal | undefined
  /** False if its timers do not keep the process alive. */
  readonly ref: boolean
}

/** @internal The tiers of a cache. Newly hashed blocks are offloaded in a microtask after a change, and those that remain in the next turns of the event loop. */
export class CacheTiers implements TiersBelow, Waiting {
  readonly #shared: SharedCache
  readonly native: NativeTiers
  readonly #store: ReturnType<typeof readStoreTier> | undefined
  readonly #deadline: number
  /** The places of the tiers: memory has 0, the others count from 1. */
  readonly #places = new Map<unknown, number>()
  #isWriting: Promise<void> | undefined
  #isProbing = false
  #isOffloading = false
  /** True once the caller's store is no longer called. */
  #isOver = false
  /** Functions that end the calls in progress. */
  readonly #running = new Set<() => void>()
  /** Polls for events of the store. */
  readonly #timer: NodeJS.Timeout | undefined

  constructor(shared: SharedCache, options: ReturnType<typeof readTiers>, dtype: DType) {
    const { store, memory, disk, pendingBytes, deadline } = options
    this.#shared = shared
    this.#store = store
    this.#deadline = deadline
    const tiers = Object.fromEntries(
      Object.entries({ memory, disk, store: store?.form }).filter(([, tier]) => tier !== undefined),
    )
    const envelope = {
      elementBytes: store?.compress === true ? elementBytes(dtype, shared.formats) : 0,
      ...(store?.secret && { secret: store.secret }),
    }
    this.native = shared.native.attachTiers(
      { ...tiers, ...envelope, pendingBytes, canRemove: store?.own?.removeMany !== undefined },
      store?.shared,
    )
    if (memory !== undefined) this.#places.set('memory', 0)
    if (disk !== undefined) this.#places.set('disk', 1)
    if (store !== undefined) this.#places.set('store', disk === undefined ? 1 : 2)
    shared.wait(this)
    if (store?.onChange !== undefined) this.#timer = setInterval(() => this.#tell(), TELL_MS).unref()
  }

  /** Offloads newly hashed blocks: some of them now, and more in each of the next turns of the event loop. */
  wake(): void {
    if (this.#isOffloading || this.#shared.isEnded) return
    try {
      this.#isOffloading = this.#offload()
    } catch (error) {
      // No caller waits here: the next call on the cache says that it is poisoned.
      if (!isPoisoned(error)) throw error
    }
    if (this.#isOffloading) {
      setImmediate(() => {
        this.#isOffloading = false
        this.wake()
      })
    }
    this.#tell()
  }

  /** Returns true if there are more blocks to offload, or if a background call holds the cache. */
  #offload(): boolean {
    let state: number = MORE
    try {
      state = this.native.offload(this.#shared.native, TURN_BYTES)
    } catch (error) {
      if (!isBusy(error)) throw error
    }
    if ((state & UNREACHABLE) !== 0) this.#probe()
    if ((state & QUEUED) !== 0) this.#write()
    return (state & MORE) !== 0
  }

  /** Writes the blocks that are queued for the caller's store, one call at a time. */
  #write(): void {
    if (this.#isWriting !== undefined || this.#isOver) return
    this.#isWriting = this.#driveAside(this.native.writer(), true).finally(() => {
      this.#isWriting = undefined
      this.wake()
    })
  }

  /** Finds out when the caller's store is reachable again. */
  #probe(): void {
    if (this.#isProbing || this.#isOver) return
    this.#isProbing = true
    void this.#driveAside(this.native.prober(), false).finally(() => {
      this.#isProbing = false
    })
  }

  /** Ends the use of disk and store: entries that were offloaded so far are no longer found. */
  forget(): void {
    this.#isOver = true
    for (const stop of this.#running) stop()
  }

  end(): void {
    clearInterval(this.#timer)
    this.forget()
    this.native.end()
    this.#shared.leave(this)
  }

  /** Returns the statistics of each tier. */
  stats(): TiersStats {
    const each = this.native
      .stats()
      .map(({ name, ...stats }) => [
        name,
        name === 'store' ? { ...stats, health: this.native.health() as StoreHealth } : stats,
      ])
    return Object.fromEntries(each) as TiersStats
  }

  /** Waits until all blocks offloaded so far are written; returns true if they are. */
  async flush(most: number): Promise<boolean> {
    const deadline = timers.now() + most
    const left = (): number => leftUntil(deadline)
    while (left() > 0 && this.#offload()) await new Promise(resolve => setImmediate(resolve))
    const ended = new AbortController()
    // The caller's store may take any time, so the wait is limited here.
    const late = timers.sleep(left(), false, { signal: ended.signal }).catch(() => false)
    const isWritten = await Promise.race([this.#isWriting?.then(() => true) ?? true, late])
    ended.abort()
    // The offload queue of an ended cache is dropped.
    return isWritten && !this.#shared.isEnded && this.native.flush(left())
  }

  /** As {@link TiersBelow.restore}. */
  async restore(
    tokens: Uint32Array,
    { salt, saltFrom, extra }: Prompt,
    isPartial: boolean | undefined,
    options: { readonly [Name in keyof BringOptions]?: unknown },
  ): Promise<NativeFound | undefined> {
    const places = readPlaces(options.tiers, this.#places)
    const until = timers.now() + (optional(duration, 'deadline', options.deadline) ?? this.#deadline)
    const left = (): number => leftUntil(until)
    return StopSignal.guard(options.signal, async stop => {
      let since = -1
      const begun = await whenFree(
        () => {
          try {
            return this.#shared.change(native =>
              this.native.restore(native, tokens, salt, saltFrom, extra, [left(), since, ...places]),
            )
          } catch (error) {
            // Blocks that are forgotten while the cache is in use must not be found afterwards.
            if (since < 0 && isBusy(error)) since = this.#shared.native.forgotten()
            throw error
          }
        },
        () => {
          stop?.check()
          return left() > 0
        },
      )
      if (begun === undefined) return undefined
      const { driver, step } = begun
      try {
        await this.#drive(driver, { calls: this.#shared, left, stop, ref: true }, step)
        return (
          (await whenFree(
            () => this.#shared.change(native => driver.end(native, isPartial)),
            () => {
              stop?.check()
              return true
            },
          )) ?? undefined
        )
      } catch (error) {
        driver.dispose()
        throw error
      } finally {
        this.#tell()
      }
    })
  }

  /** Drives a machine until it ends or its deadline passes, and makes the calls of the caller's store. */
  async #drive(driver: NativeDriver, driving: Driving, first?: NativeStep): Promise<void> {
    let step = first ?? (await this.#advance(driver, driving))
    while (step !== undefined && step.kind !== 'done') {
      if (step.kind === 'work') step = await this.#work(driver, driving)
      else if (step.kind === 'pause') step = await this.#pause(driver, step.milliseconds, driving)
      else if (step.kind === 'cache') step = await this.#advance(driver, driving)
      else step = await this.#call(driver, step, driving)
    }
    driving.stop?.check()
  }

  /** Drives a machine that does not change the cache, without a deadline. */
  #driveAside(driver: NativeDriver, ref: boolean): Promise<void> {
    const call = <R>(of: (native: NativePagedKvCache) => R): R => of(this.#shared.native)
    return this.#drive(driver, { calls: { change: call, settle: call }, left: () => Infinity, stop: undefined, ref })
  }

  /** Returns the next step, once no background work uses the cache; `undefined` if that takes until the deadline. */
  async #advance(driver: NativeDriver, { calls, left, stop }: Driving): Promise<NativeStep | undefined> {
    stop?.check()
    return whenFree(
      () => calls.change(native => driver.advance(native)),
      () => {
        stop?.check()
        return left() > 0
      },
    )
  }

  /** Does the next work, and returns the step after it. */
  async #work(driver: NativeDriver, driving: Driving): Promise<NativeStep | undefined> {
    const { stop } = driving
    stop?.check()
    const working = driver.work()
    const worked = await firstOf([working], [stop?.listeners])
    // The thread has the machine until its work has ended, so it cannot be freed before.
    if (worked === STOPPED) void working.finally(() => driver.dispose()).catch(() => {})
    return this.#advance(driver, driving)
  }

  /** Waits until more of the store's calls may be in flight, but not beyond the deadline. Returns the next step. */
  async #pause(driver: NativeDriver, milliseconds: number, driving: Driving): Promise<NativeStep | undefined> {
    const { calls, left, stop, ref } = driving
    await this.#stoppable(stop, timers.sleep(Math.min(milliseconds, left()), undefined, { ref }))
    if (!this.#isOver && left() > 0) return this.#advance(driver, driving)
    stop?.check()
    return calls.settle(native => driver.miss(native))
  }

  /** Makes a call of the caller's store with all its attempts, until the deadline. Returns the next step. */
  async #call(driver: NativeDriver, call: NativeStep, driving: Driving): Promise<NativeStep | undefined> {
    const { calls, left, stop, ref } = driving
    // After an abort, the machine must not begin anything: its attempts are settled with the gate alone.
    if (stop?.isAborted() === true) driver.dispose()
    if (stop?.isAborted() === true || this.#isOver || left() <= 0) {
      const next = calls.settle(native => driver.abandon(native, call.permit))
      stop?.check()
      return next
    }
    const ended = new AbortController()
    const late: Promise<typeof LATE> = timers.sleep(Math.min(call.within, left()), LATE, { signal: ended.signal, ref })
    try {
      for (let { permit } = call; ;) {
        const [number, attempt] = [permit, this.#attempt(call, stop)]
        const outcome = await this.#stoppable<Outcome | typeof LATE>(stop, attempt, late)
        const isAborted = stop?.isAborted() === true
        if (isAborted) driver.dispose()
        if (isAborted || typeof outcome === 'symbol') {
          // The attempt holds its permit until it ends, and is counted then.
          void attempt.then(later => calls.settle(native => later(driver, native, number))).catch(() => {})
          stop?.check()
          return calls.settle(native => driver.miss(native))
        }
        const next = calls.settle(native => outcome(driver, native, number))
        if (next.kind !== 'pause') return next
        const paused = await this.#stoppable<unknown>(stop, timers.sleep(next.milliseconds, undefined, { ref }), late)
        if (paused !== undefined) {
          stop?.check()
          return calls.settle(native => driver.miss(native))
        }
        const again = await this.#advance(driver, driving)
        if (again?.kind !== 'again') return again
        permit = again.permit
      }
    } finally {
      ended.abort()
    }
  }

  /** Makes one attempt, and returns its result for the driver. An attempt that is stopped does not count for or against the store. */
  async #attempt(call: NativeStep, stop: StopSignal | undefined): Promise<Outcome> {
    const patience = new AbortController()
    const { own } = this.#store as { own: NonNullable<ReturnType<typeof readStoreTier>['own']> }
    try {
      const late: Promise<typeof LATE> = timers.sleep(call.milliseconds, LATE, { signal: patience.signal, ref: false })
      const answer = await this.#stoppable<StoreAnswer | typeof LATE>(stop, callStore(own, call, patience.signal), late)
      if (answer === STOPPED) return ABANDONED
      if (answer !== LATE) return (driver, native, permit) => driver.answer(native, permit, ...answer)
      return (driver, native, permit) =>
        driver.failed(native, permit, 'timedOut', `no answer in ${call.milliseconds} ms`)
    } catch (error) {
      if (this.#isOver) return ABANDONED
      const [kind, about] = [error instanceof Garbage ? 'garbage' : 'unreachable', textOf(error)]
      return (driver, native, permit) => driver.failed(native, permit, kind, about)
    } finally {
      patience.abort()
    }
  }

  /** Returns the first result of some promises; `STOPPED` as soon as the store is no longer called, or the signal is aborted. */
  #stoppable<T>(stop: StopSignal | undefined, ...promises: readonly Promise<T>[]): Promise<T | typeof STOPPED> {
    return firstOf(promises, [this.#running, stop?.listeners], this.#isOver || stop?.isAborted() === true)
  }

  /** Reports events of the store. */
  #tell(): void {
    const onChange = this.#store?.onChange
    if (onChange === undefined) return
    for (let event = this.native.nextEvent(); event !== null; event = this.native.nextEvent()) {
      const { kind, about } = event
      const told: StoreEvent =
        kind === undefined
          ? { type: 'available' }
          : { type: 'unavailable', reason: kind as StoreFault, about: about as string }
      // An error in the callback is the caller's, and must not end this loop.
      queueMicrotask(() => onChange(told))
    }
  }
}

/** Returns the first result of some promises; `STOPPED` if `isStopped`, or as soon as the function is called that it adds to the sets meanwhile. */
async function firstOf<T>(
  promises: readonly Promise<T>[],
  sets: readonly (Set<() => void> | undefined)[],
  isStopped = false,
): Promise<T | typeof STOPPED> {
  let stop!: () => void
  const stopped = new Promise<typeof STOPPED>(resolve => {
    stop = () => resolve(STOPPED)
  })
  if (isStopped) stop()
  for (const set of sets) set?.add(stop)
  try {
    return await Promise.race([stopped, ...promises])
  } finally {
    for (const set of sets) set?.delete(stop)
  }
}

/** Returns the milliseconds until a time, limited to what a timer accepts. */
const leftUntil = (until: number): number => Math.min(Math.max(0, until - timers.now()), 2 ** 31 - 1)

/** Reads the places of some of the cache's tiers. */
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
