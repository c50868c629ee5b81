import type { NativeSharedStore } from '#binding'

import { fields, flag, known, milliseconds, type Names, optional, typedArray, whole } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { nativeOf } from '../border/owner.js'
import type { AsyncOptions } from '../border/stop-signal.js'
import { type BlockStore, GuardedBlockStore } from './block-store.js'
import type { ObjectStore } from './object-store.js'
import type { RedisStore } from './redis-store.js'
import { SharedStore, type StoreEvent, type StoreHealth } from './shared-store.js'
import { readPath } from './source.js'

/**
 * When blocks go to a tier:
 *
 * - `eviction`: when they make room in the tier above.
 * - `commit`: when they are full and committed.
 * - `second-use`: when a prompt finds them.
 */
export type TierPolicy = 'eviction' | 'commit' | 'second-use'

/** Memory of the process, below that of the cache: for caches on a GPU, and for more than a pool has. */
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
  /** After how many milliseconds whoever looks in the tiers goes on with what is there, unless it says so itself; 1,000 by default. */
  readonly deadline?: number
}

/** The name of a tier below a cache. */
export type TierName = 'memory' | 'disk' | 'store'

/** Which tiers are asked for a prompt, and for how long. */
export interface BringOptions extends AsyncOptions {
  /** `'all'`, or some of them. */
  readonly tiers: 'all' | readonly TierName[]
  /** After how many milliseconds it goes on with what is there; what the option `tiers` of the cache says by default. */
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

const OPTIONS: Names<TierOptions> = { memory: 0, disk: 0, store: 0, pendingBytes: 0, deadline: 0 }
const MEMORY: Names<MemoryTier> = { limitBytes: 0, policy: 0 }
const DISK: Names<DiskTier> = { path: 0, limitBytes: 0, policy: 0 }
const STORE: Names<StoreTier> = { store: 0, policy: 0, secret: 0, compress: 0, onChange: 0 }

const POLICIES: readonly TierPolicy[] = ['eviction', 'commit', 'second-use']

const PENDING_BYTES = 256 * 2 ** 20
const DEADLINE_MS = 1000

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
  const { removeMany } = given
  if (removeMany !== undefined && typeof removeMany !== 'function') throw invalid('tiers.store.store.removeMany', removeMany, 'a function, or nothing')
  return value as BlockStore
}

/** @internal A store as a tier, read. */
export function readStoreTier(given: unknown) {
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
  const { memory, disk, store, pendingBytes, deadline } = known<TierOptions>('tiers', value, OPTIONS)
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
    deadline: optional(milliseconds, 'tiers.deadline', deadline) ?? DEADLINE_MS,
  }
}
