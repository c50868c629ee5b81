import { setTimeout as sleep } from 'node:timers/promises'

import type { NativeBring, NativeLookup, NativePagedKvCache, NativeSharedStore, NativeTiers } from '#binding'

import { count, fields, flag, isArray, known, list, type Names, optional, typedArray, whole } from '../border/check.js'
import { invalid, isKvTideError } from '../border/errors.js'
import type { DType } from '../border/host-array.js'
import { nativeOf } from '../border/owner.js'
import { type AsyncOptions, StopSignal } from '../border/stop-signal.js'
import { binding } from '../loading/binding.js'
import type { PageFormat } from '../sequences/page-format.js'
import type { Prompt } from '../sequences/prompt.js'
import type { SharedCache, Waiting } from '../sequences/shared-cache.js'
import { type BlockStore, GuardedBlockStore } from './block-store.js'
import type { ObjectStore } from './object-store.js'
import type { RedisStore } from './redis-store.js'
import { SharedStore, type StoreEvent, type StoreFault, type StoreHealth } from './shared-store.js'
import { readPath } from './source.js'

/**
 * When blocks go to a tier:
 *
 * - `eviction`: when they make room in the tier above.
 * - `commit`: when they are full and committed.
 * - `second-use`: when a prompt finds them.
 */
export type TierPolicy = 'eviction' | 'commit' | 'second-use'

/** The host's memory, below that of the cache: for caches on a GPU, and for more than a pool has. */
export interface MemoryTier {
  /** The most bytes of blocks that it keeps. */
  readonly limitBytes: number
  /** `'eviction'` by default. */
  readonly policy?: TierPolicy
}

/** A folder that any number of processes of this machine share. */
export interface DiskTier {
  /** The folder, which is made where there is none. Its files hold prompts: only its owner may read them. */
  readonly path: string | URL
  /** The most bytes of files, of all processes together; those that were used longest ago make room. No limit by default. */
  readonly limitBytes?: number
  /** `'commit'` by default. */
  readonly policy?: TierPolicy
}

/** A store that machines share. */
export interface StoreTier {
  /** A store that is built in, or one of your own. */
  readonly store: RedisStore | ObjectStore | BlockStore
  /** `'commit'` by default. */
  readonly policy?: TierPolicy
  /** 32 bytes that all who share it know: what was written without them is a miss. */
  readonly secret?: Uint8Array
  /** Whether blocks are compressed, without loss; `false` by default. */
  readonly compress?: boolean
  /** Called when the store is not asked any more, with the reason, and when it answers again. */
  readonly onChange?: (event: StoreEvent) => void
}

/** What lies below a cache, from above to below. */
export interface TierOptions {
  readonly memory?: MemoryTier
  readonly disk?: DiskTier
  readonly store?: StoreTier
  /** The most bytes that wait to be written to the disk and the store, 256 MiB by default. What comes then is not kept there. */
  readonly pendingBytes?: number
}

/** The name of a tier below a cache. */
export type TierName = 'memory' | 'disk' | 'store'

/** Which tiers are asked for a prompt, and for how long. */
export interface BringOptions extends AsyncOptions {
  /** `'all'`, or some of them. */
  readonly tiers: 'all' | readonly TierName[]
  /** After how many milliseconds it goes on with what is there; 1,000 by default. */
  readonly deadline?: number
}

/** What a tier holds, and what happened there, in blocks. */
export interface TierStats {
  /** Blocks that it holds; 0 where it does not count them. */
  readonly blocks: number
  /** Bytes that it holds; 0 where it does not count them. */
  readonly bytes: number
  /** Blocks that were put there. */
  readonly stored: number
  /** Blocks that were to go there and did not: too many waited, or they could not be written. */
  readonly dropped: number
  /** Blocks that came back. */
  readonly found: number
  /** Entries that were not what was asked for. */
  readonly damaged: number
}

/** What the tiers of a cache hold, of those that it has. */
export interface TiersStats {
  readonly memory?: TierStats
  readonly disk?: TierStats
  /** The store, and how it has done. */
  readonly store?: TierStats & { readonly health: StoreHealth }
}

const OPTIONS: Names<TierOptions> = { memory: 0, disk: 0, store: 0, pendingBytes: 0 }
const MEMORY: Names<MemoryTier> = { limitBytes: 0, policy: 0 }
const DISK: Names<DiskTier> = { path: 0, limitBytes: 0, policy: 0 }
const STORE: Names<StoreTier> = { store: 0, policy: 0, secret: 0, compress: 0, onChange: 0 }

const POLICIES: readonly TierPolicy[] = ['eviction', 'commit', 'second-use']

const PENDING_BYTES = 256 * 2 ** 20
const DEADLINE_MS = 1000

/** What is copied in one turn of the event loop. */
const TURN_BYTES = 8 * 2 ** 20

/** For how long a call that writes to a store of the caller's is waited for, and how many bytes of entries are read in one call. */
const WRITE_MS = 10_000
const READ_BYTES = 8 * 2 ** 20

const AGAIN_MS = 1

function policy(argument: string, value: unknown): TierPolicy {
  if (POLICIES.includes(value as TierPolicy)) return value as TierPolicy
  throw invalid(argument, value, POLICIES.map(name => `'${name}'`).join(' or '))
}

function secret(argument: string, value: unknown): Uint8Array {
  const bytes = typedArray<Uint8Array>(argument, value, ['Uint8Array'])
  if (bytes.length !== 32) throw invalid(argument, value, 'a Uint8Array of 32 bytes')
  return bytes
}

function callback(argument: string, value: unknown): (event: StoreEvent) => void {
  if (typeof value === 'function') return value as (event: StoreEvent) => void
  throw invalid(argument, value, 'a function')
}

const atLeastOne = (argument: string, value: unknown): number => {
  const bytes = whole(argument, value)
  if (bytes === 0) throw invalid(argument, value, 'at least 1')
  return bytes
}

/** A store of the caller's: three functions. */
function readBlockStore(value: unknown): BlockStore {
  const given = fields<BlockStore>('tiers.store.store', value)
  for (const name of ['getMany', 'putMany', 'hasMany'] as const) {
    const method: unknown = given[name]
    if (typeof method !== 'function') throw invalid(`tiers.store.store.${name}`, method, 'a function, as a BlockStore has it')
  }
  return value as BlockStore
}

function readStoreTier(given: unknown) {
  const tier = known<StoreTier>('tiers.store', given, STORE)
  const shared = nativeOf<NativeSharedStore>(tier.store, SharedStore)
  const own = shared === undefined ? new GuardedBlockStore(readBlockStore(tier.store)) : undefined
  return {
    shared,
    own,
    secret: optional(secret, 'tiers.store.secret', tier.secret),
    compress: optional(flag, 'tiers.store.compress', tier.compress) ?? false,
    onChange: optional(callback, 'tiers.store.onChange', tier.onChange),
    form: { policy: optional(policy, 'tiers.store.policy', tier.policy) ?? ('commit' as const), limitBytes: 0 },
  }
}

/** @internal What lies below a cache, read: nothing is opened yet. */
export function readTiers(value: unknown) {
  const { memory, disk, store, pendingBytes } = known<TierOptions>('tiers', value, OPTIONS)
  const ofMemory = memory === undefined ? undefined : known<MemoryTier>('tiers.memory', memory, MEMORY)
  const ofDisk = disk === undefined ? undefined : known<DiskTier>('tiers.disk', disk, DISK)
  return {
    store: store === undefined ? undefined : readStoreTier(store),
    memory: ofMemory && { limitBytes: atLeastOne('tiers.memory.limitBytes', ofMemory.limitBytes), policy: optional(policy, 'tiers.memory.policy', ofMemory.policy) ?? ('eviction' as const) },
    disk: ofDisk && {
      path: readPath('tiers.disk.path', ofDisk.path),
      limitBytes: optional(atLeastOne, 'tiers.disk.limitBytes', ofDisk.limitBytes) ?? 0,
      policy: optional(policy, 'tiers.disk.policy', ofDisk.policy) ?? ('commit' as const),
    },
    pendingBytes: optional(whole, 'tiers.pendingBytes', pendingBytes) ?? PENDING_BYTES,
  }
}

/** How many bytes the numbers of a page have, for compression. */
function elementBytes(dtype: DType, formats: readonly [PageFormat, PageFormat]): number {
  if (formats[0] !== dtype || formats[1] !== dtype) return formats[0] === 'f16' || formats[0] === 'bf16' ? 2 : 1
  return dtype === 'f32' ? 4 : 2
}

/** @internal The tiers of a cache: blocks go down at the end of each turn in which something changed. */
export class CacheTiers implements Waiting {
  readonly #shared: SharedCache
  readonly native: NativeTiers
  readonly #store: ReturnType<typeof readStoreTier> | undefined
  /** The places of the tiers: memory is 0, the others are counted from 1. */
  readonly #places = new Map<unknown, number>()
  #isWriting: Promise<void> | undefined
  #isHanding = false

  constructor(shared: SharedCache, options: ReturnType<typeof readTiers>, dtype: DType) {
    const { store, memory, disk, pendingBytes } = options
    const envelope = new binding.NativeEnvelope(store?.secret, store?.compress === true ? elementBytes(dtype, shared.formats) : 0)
    this.#shared = shared
    this.#store = store
    const tiers = Object.fromEntries(Object.entries({ memory, disk, store: store?.form }).filter(([, tier]) => tier !== undefined))
    this.native = shared.native.attachTiers({ ...tiers, pendingBytes }, store?.shared, envelope)
    if (memory !== undefined) this.#places.set('memory', 0)
    if (disk !== undefined) this.#places.set('disk', 1)
    if (store !== undefined) this.#places.set('store', disk === undefined ? 1 : 2)
    shared.wait(this)
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
    try {
      return this.#shared.native.handDown(TURN_BYTES)
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'BUSY') throw error
      return true
    }
  }

  end(): void {
    this.#shared.leave(this)
  }

  /** What there is in each tier. */
  stats(): TiersStats {
    const each = this.native.stats().map(({ name, ...stats }) => [name, name === 'store' ? { ...stats, health: this.#health() } : stats])
    return Object.fromEntries(each) as TiersStats
  }

  #health(): StoreHealth {
    return (this.#store?.shared ?? (this.#store?.own as GuardedBlockStore).gate).health()
  }

  /** Waits until what went down so far is where it belongs; answers whether it is. */
  async flush(milliseconds: number): Promise<boolean> {
    const deadline = performance.now() + milliseconds
    const left = (): number => Math.max(0, Math.floor(deadline - performance.now()))
    while (left() > 0 && this.#handDown()) await new Promise(resolve => setImmediate(resolve))
    this.#write()
    const ended = new AbortController()
    // A store of the caller's may take as long as it likes.
    await Promise.race([this.#isWriting, sleep(left(), undefined, { signal: ended.signal }).catch(() => {})])
    ended.abort()
    return this.native.flush(left())
  }

  /** Brings what the tiers have of a prompt into the cache: how many blocks came. Tokens and prompt stay as they are meanwhile. */
  async bring(tokens: Uint32Array, prompt: Prompt, { tiers, deadline, signal }: { readonly [Name in keyof BringOptions]?: unknown }): Promise<number> {
    const places = readPlaces(tiers, this.#places)
    const until = performance.now() + (optional(count, 'deadline', deadline) ?? DEADLINE_MS)
    const left = (): number => Math.max(0, Math.floor(until - performance.now()))
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
    const keys = this.#store?.own === undefined || left() === 0 ? [] : lookup.missing()
    if (keys.length > 0) lookup.note([...(await (this.#store?.own as GuardedBlockStore).hasMany(keys, left()))])
  }

  /** Brings what a store of the caller's has, in the prompt's order, some at a time. */
  async #fetchOwn(bring: NativeBring, left: () => number): Promise<void> {
    const store = this.#store?.own
    const keys = store === undefined ? [] : bring.asked()
    const most = keys.length === 0 ? 1 : bring.bytesMax()
    const together = Math.max(1, Math.floor(READ_BYTES / most))
    for (let first = 0; first < keys.length && left() > 0; first += together) {
      const values = await (store as GuardedBlockStore).getMany(keys.slice(first, first + together), most, left())
      for (const [at, value] of values.entries()) if (value !== undefined) bring.accept(first + at, value)
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
