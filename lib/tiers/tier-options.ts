// Options and statistics of tiers, and their checks.
import type { NativeStore } from '#binding'

import { duration, fields, flag, known, type Names, optional, typedArray, whole } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { nativeOf } from '../border/owner.js'
import type { AsyncOptions } from '../border/stop-signal.js'
import { readPath } from '../files/source.js'
import type { BlockStore } from './block-store.js'
import type { ObjectStore } from './object-store.js'
import type { RedisStore } from './redis-store.js'
import { SharedStore, type StoreEvent, type StoreHealth } from './shared-store.js'

/**
 * The offload policy of a tier, which decides when blocks are offloaded to it:
 *
 * - `eviction`: when the tier above evicts them.
 * - `commit`: when they are full and committed.
 * - `second-use`: when a prompt finds them.
 */
export type TierPolicy = 'eviction' | 'commit' | 'second-use'

/** Memory of the process below the pool: for pools on a GPU, and for more prompts than a pool has room for. */
export interface MemoryTier {
  /** The most bytes of blocks to keep. */
  readonly limitBytes: number
  /** `'eviction'` by default. */
  readonly policy?: TierPolicy
}

/** A folder that any number of processes of this machine share. */
export interface DiskTier {
  /** The folder, which is created if it doesn't exist. Its files contain prompts: only their owner may read them. */
  readonly path: string | URL
  /** The most bytes of files, of all processes together; the least recently used entries are evicted. No limit by default. */
  readonly limitBytes?: number
  /** `'commit'` by default. */
  readonly policy?: TierPolicy
}

/** A store that machines share. */
export interface StoreTier {
  /** A built-in store, or one of your own. */
  readonly store: RedisStore | ObjectStore | BlockStore
  /** `'commit'` by default. */
  readonly policy?: TierPolicy
  /** 32 bytes that all users of the store share: an entry that was written without them is a miss. */
  readonly secret?: Uint8Array
  /** True to compress blocks, without loss; `false` by default. */
  readonly compress?: boolean
  /** Called when the store becomes unreachable, with the reason, and when it is reachable again. */
  readonly onChange?: (event: StoreEvent) => void
}

/** The tiers of a cache, from the highest to the lowest. */
export interface TierOptions {
  readonly memory?: MemoryTier
  readonly disk?: DiskTier
  readonly store?: StoreTier
  /** The limit of the offload queue in bytes, 256 MiB by default. Blocks beyond it are not offloaded. */
  readonly pendingBytes?: number
  /**
   * The default deadline for looking in the tiers, in milliseconds: a match then goes on with the blocks that have arrived. 1,000 by default; fractions count.
   */
  readonly deadline?: number
}

/** The name of a tier. */
export type TierName = 'memory' | 'disk' | 'store'

/** The tiers to look in for a prompt, and the deadline. */
export interface BringOptions extends AsyncOptions {
  /** `'all'`, or a list of some. */
  readonly tiers: 'all' | readonly TierName[]
  /**
   * The time in milliseconds after which the match goes on with the blocks that have arrived; by default the `deadline` of the cache's option `tiers`.
   * Fractions count.
   */
  readonly deadline?: number
}

/** The content of a tier, and counts of what happened to its blocks. */
export interface TierStats {
  /** The number of blocks in it; 0 if the tier does not count them. */
  readonly blocks: number
  /** Their bytes; 0 if the tier does not count them. */
  readonly bytes: number
  /** Blocks that were written to it. */
  readonly stored: number
  /** Blocks that were not written: the offload queue was full, or the write failed. */
  readonly dropped: number
  /** Blocks that were restored from it. */
  readonly found: number
  /** Entries that were damaged. */
  readonly damaged: number
}

/** The statistics of each tier that the cache has. */
export interface TiersStats {
  readonly memory?: TierStats
  readonly disk?: TierStats
  /** The store, with its health. */
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

/** Reads a store of the caller's: three functions. */
function readBlockStore(value: unknown): BlockStore {
  const given = fields<BlockStore>('tiers.store.store', value)
  for (const name of ['getMany', 'putMany', 'hasMany'] as const) {
    const method: unknown = given[name]
    if (typeof method !== 'function')
      throw invalid(`tiers.store.store.${name}`, method, 'a function, as a BlockStore has it')
  }
  const { removeMany } = given
  if (removeMany !== undefined && typeof removeMany !== 'function')
    throw invalid('tiers.store.store.removeMany', removeMany, 'a function, or nothing')
  return value as BlockStore
}

/** @internal Reads a store as a tier. */
export function readStoreTier(given: unknown) {
  const tier = known<StoreTier>('tiers.store', given, STORE)
  const shared = nativeOf<NativeStore>(tier.store, SharedStore)
  const own = shared === undefined ? readBlockStore(tier.store) : undefined
  return {
    shared,
    own,
    secret: optional(secret, 'tiers.store.secret', tier.secret),
    compress: optional(flag, 'tiers.store.compress', tier.compress) ?? false,
    onChange: optional(callback, 'tiers.store.onChange', tier.onChange),
    form: { policy: optional(policy, 'tiers.store.policy', tier.policy) ?? ('commit' as const), limitBytes: 0 },
  }
}

/** @internal Reads the tiers of a cache. Nothing is opened yet. */
export function readTiers(value: unknown) {
  const { memory, disk, store, pendingBytes, deadline } = known<TierOptions>('tiers', value, OPTIONS)
  const ofMemory = memory === undefined ? undefined : known<MemoryTier>('tiers.memory', memory, MEMORY)
  const ofDisk = disk === undefined ? undefined : known<DiskTier>('tiers.disk', disk, DISK)
  return {
    store: store === undefined ? undefined : readStoreTier(store),
    memory: ofMemory && {
      limitBytes: atLeastOne('tiers.memory.limitBytes', ofMemory.limitBytes),
      policy: optional(policy, 'tiers.memory.policy', ofMemory.policy) ?? ('eviction' as const),
    },
    disk: ofDisk && {
      path: readPath('tiers.disk.path', ofDisk.path),
      limitBytes: optional(atLeastOne, 'tiers.disk.limitBytes', ofDisk.limitBytes) ?? 0,
      policy: optional(policy, 'tiers.disk.policy', ofDisk.policy) ?? ('commit' as const),
    },
    pendingBytes: optional(whole, 'tiers.pendingBytes', pendingBytes) ?? PENDING_BYTES,
    deadline: optional(duration, 'tiers.deadline', deadline) ?? DEADLINE_MS,
  }
}
