// Routing: sends each prompt to the worker that has the longest prefix of it cached. Workers publish the events of their caches (event-publisher); a router
// follows them here, or asks Dynamo's indexer (dynamo-router). A router has no tokens and no cache. Lost events are never ignored: the router asks for
// a replay, or counts the worker as empty. The index is in the addon; `route` costs one call.
import type { NativeCacheEvent, NativeFollowing, NativePrefixRouter } from '#binding'

import {
  arrayKind,
  fields,
  flag,
  float,
  isArray,
  known,
  list,
  type Names,
  optional,
  text,
  typedArray,
} from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { INTERNAL, nativeThis, Owner } from '../border/owner.js'
import { binding } from '../loading/binding.js'
import { needsNet } from '../loading/net.js'
import type { KeptContent } from '../sequences/cache-events.js'
import { readEndpoint } from './endpoint.js'
import { readRouteOptions, type RouteOptions } from './route-options.js'

/** The worker for a prompt. */
export interface Route {
  /** The worker. */
  readonly worker: string
  /** The number of the prompt's blocks that it has; up to a state, if its model keeps states. */
  readonly blocks: number
}

/** The address of a worker's events. */
export interface FollowOptions {
  /** The address of the events: `tcp://host:port`. */
  readonly endpoint: string
  /** The address for missed events. Without it, missed events are lost, and the worker counts as empty until new events arrive. */
  readonly replayEndpoint?: string
  /** Takes only messages whose topic begins with this; all by default. */
  readonly topic?: string
}

/** Statistics of a worker that is followed. */
export interface FollowStats {
  /** Batches of events that arrived. */
  readonly batches: number
  /** The number of times that events were lost. */
  readonly losses: number
}

const FOLLOW: Names<FollowOptions> = { endpoint: 0, replayEndpoint: 0, topic: 0 }

const WORKERS_MAX = 1024

/** The warning that no prompt ever matches a block. */
const MISMATCH =
  "workers store blocks, but no prompt matches any of them: their keys differ. Make the keys of prompts with new PrefixNamer({ ...cache.form, prefixKey }) of a worker's cache"

/** A router and the workers that it follows. It follows them until it is disposed of, even if `Following` objects are garbage collected. */
class Routing {
  readonly native: NativePrefixRouter = new binding.NativePrefixRouter()
  readonly followed = new Set<Followed>()

  /** Called after each lookup. Warns once if the lookups so far show that no prompt will ever match. */
  looked(blocks: number): void {
    if (blocks > 0 || !this.native.takeDifference()) return
    process.emitWarning(`PrefixRouter: ${MISMATCH}`, { type: 'KvTideWarning', code: 'KVTIDE_ROUTER_MISMATCH' })
  }

  /** Stops following a worker. */
  leave(worker: string): void {
    for (const following of this.followed) if (following.worker === worker) following.dispose()
  }

  dispose(): void {
    for (const following of this.followed) following.dispose()
    this.native.dispose()
  }
}

class Followed {
  readonly worker: string
  readonly native: NativeFollowing
  readonly #routing: Routing

  constructor(routing: Routing, worker: string, native: NativeFollowing) {
    this.#routing = routing
    this.worker = worker
    this.native = native
    routing.followed.add(this)
  }

  dispose(): void {
    this.#routing.followed.delete(this)
    this.native.dispose()
  }
}

/** The part of a {@link CacheEvent} that a router needs: no tokens. */
export type RoutedEvent =
  | { readonly type: 'stored'; readonly key: string; readonly parent: string; readonly isFirst: boolean }
  | { readonly type: 'removed' | 'state-stored' | 'state-removed'; readonly key: string }
  | { readonly type: 'cleared'; readonly keeps?: KeptContent }

const EVENTS: readonly string[] = ['stored', 'removed', 'cleared', 'state-stored', 'state-removed']
const KEPT: ReadonlySet<unknown> = new Set(['tokens', 'states'])

/** Checks the key of a block. */
function readName(argument: string, value: unknown): string {
  if (typeof value === 'string' && /^[\da-f]{64}$/.test(value)) return value
  throw invalid(argument, value, '64 hexadecimal digits')
}

function readEvent(argument: string, value: unknown): NativeCacheEvent {
  const { type, key, parent, isFirst, keeps } = fields<{
    type: string
    key: string
    parent: string
    isFirst: boolean
    keeps: string[]
  }>(argument, value)
  if (typeof type !== 'string' || !EVENTS.includes(type))
    throw invalid(`${argument}.type`, type, EVENTS.map(name => `'${name}'`).join(' or '))
  const none = { key: undefined, parent: undefined, keeps: undefined }
  if (type === 'cleared') return { ...none, kind: type, keeps: optional(readKept, `${argument}.keeps`, keeps) }
  const name = readName(`${argument}.key`, key)
  if (type !== 'stored') return { ...none, kind: type as NativeCacheEvent['kind'], key: name }
  const before = readName(`${argument}.parent`, parent)
  return { ...none, kind: type, key: name, parent: flag(`${argument}.isFirst`, isFirst) ? undefined : before }
}

function readKept(argument: string, value: unknown): KeptContent {
  const kept = isArray(value) ? [...value] : []
  if (kept.length === 0 || !kept.every(of => KEPT.has(of)))
    throw invalid(argument, value, "['tokens', 'states'] or ['states']")
  return kept as ('tokens' | 'states')[]
}

/**
 * Routes each prompt to the worker with the longest cached prefix of it. The router learns from the workers' events which worker has which blocks. It has no
 * tokens and no cache; the keys of a prompt's blocks come from {@link PagedKvCache.keys} or {@link PrefixNamer.keys}.
 *
 * @example
 * ```ts
 * import { PagedKvCache, PrefixRouter } from 'kvtide'
 *
 * const options = { capacity: 8, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, events: 1000, prefixKey: new Uint8Array(32) }
 * using one = new PagedKvCache(options)
 * using other = new PagedKvCache(options)
 * using router = new PrefixRouter()
 * router.addWorker('one')
 * router.addWorker('other')
 * const rows = { data: new Float32Array(4), shape: [1, 1, 4, 1] }
 * other.openSequence().append({ tokens: [1, 2, 3, 4], k: rows, v: rows })
 * const events = other.events() // of a worker process they come as messages, or over ZeroMQ: follow()
 * router.apply('other', [(await events.next()).value!, (await events.next()).value!])
 * console.log(router.route(one.keys([1, 2, 3, 4, 5]))) // { worker: 'other', blocks: 2 }
 * ```
 */
export class PrefixRouter extends Owner {
  constructor() {
    super(INTERNAL, new Routing(), PrefixRouter)
  }

  /** Adds a worker, which has no blocks yet; at most 1,024 workers. */
  addWorker(worker: string): void {
    const native = own(this)
    const name = text('worker', worker)
    if (native.usage()[0] === WORKERS_MAX) throw invalid('worker', name, `at most ${WORKERS_MAX} workers`)
    if (!native.addWorker(name)) throw invalid('worker', name, 'a name that no other worker has')
  }

  /** Removes a worker and its blocks. */
  removeWorker(worker: string): void {
    const routing = nativeThis<Routing>(this, PrefixRouter)
    const name = text('worker', worker)
    routing.native.removeWorker(name)
    routing.leave(name)
  }

  /** Sets a worker's load, in any unit; 0 by default. */
  setLoad(worker: string, load: number): void {
    own(this).setLoad(text('worker', worker), float('load', load))
  }

  /** Applies events of a worker's cache, in order, all or none of them. If some were missed, begin again with `cleared`. */
  apply(worker: string, events: readonly RoutedEvent[]): void {
    const native = own(this)
    const name = text('worker', worker)
    if (!isArray(events)) throw invalid('events', events, 'an array of events')
    native.apply(name, list('events', events, readEvent))
  }

  /**
   * Follows the events that a worker publishes with {@link publishEvents}, or that vLLM publishes. Ends when the result is disposed of, the worker is removed, or
   * the router is disposed of. No loss goes unnoticed: the router asks for missed events again, and if they are not available, the worker counts as empty.
   */
  follow(worker: string, options: FollowOptions): Following {
    const routing = nativeThis<Routing>(this, PrefixRouter)
    const { native } = routing
    const name = text('worker', worker)
    const given = known<FollowOptions>('options', options, FOLLOW)
    const [endpoint, replay, topic] = [
      readEndpoint('endpoint', given.endpoint),
      optional(readEndpoint, 'replayEndpoint', given.replayEndpoint),
      optional(text, 'topic', given.topic) ?? '',
    ]
    needsNet('PrefixRouter.follow', native.follow)
    return new Following(INTERNAL, new Followed(routing, name, native.follow(name, endpoint, replay, topic)))
  }

  /**
   * Returns the worker for a prompt, given the keys of its blocks; `undefined` if there are no workers.
   *
   * If prompts never match a block although workers store blocks, their keys differ: the process then emits one warning per router, with the code
   * `KVTIDE_ROUTER_MISMATCH` (after 32 prompts without a match, 256 stored blocks, none of these prompts, and 32 more prompts without a match).
   */
  route(keys: readonly string[] | BigUint64Array, options: RouteOptions = {}): Route | undefined {
    const routing = nativeThis<Routing>(this, PrefixRouter)
    const { native } = routing
    const weight = readRouteOptions(options) ?? -1
    const found = isArray(keys)
      ? native.routeNames(list('keys', keys, readName), weight)
      : native.route(readKeys(keys), weight)
    if (found === null) return undefined
    routing.looked(found.blocks)
    return { worker: found.worker, blocks: found.blocks }
  }

  /** Returns the workers that have cached a prefix of a prompt, with the number of blocks, the longest prefix first. */
  lengths(keys: readonly string[]): Route[] {
    const routing = nativeThis<Routing>(this, PrefixRouter)
    if (!isArray(keys)) throw invalid('keys', keys, 'an array of block keys')
    const found = routing.native.lengths(list('keys', keys, readName))
    routing.looked(found.length)
    return found.map(({ worker, blocks }) => ({ worker, blocks }))
  }

  /** Returns keys in the form with which {@link route} is fastest: eight bytes each. */
  static shortKeys(keys: readonly string[]): BigUint64Array {
    if (!isArray(keys)) throw invalid('keys', keys, 'an array of block keys')
    const names = list('keys', keys, readName)
    const view = new DataView(new ArrayBuffer(names.length * 8))
    // The first eight bytes of each key, in the order of its digits.
    for (const [at, name] of names.entries()) {
      view.setUint32(at * 8, Number.parseInt(name.slice(0, 8), 16))
      view.setUint32(at * 8 + 4, Number.parseInt(name.slice(8, 16), 16))
    }
    return new BigUint64Array(view.buffer)
  }

  /** Returns the number of workers, the number of different blocks that they have or whose children they have, and the memory of the index in bytes. */
  stats(): { readonly workers: number; readonly blocks: number; readonly bytes: number } {
    const [workers, blocks, bytes] = own(this).usage() as [number, number, number]
    return { workers, blocks, bytes }
  }
}

function readKeys(keys: unknown): BigUint64Array {
  if (arrayKind(keys) === 'BigUint64Array') return typedArray<BigUint64Array>('keys', keys, ['BigUint64Array'])
  throw invalid('keys', keys, 'an array of block keys, or a BigUint64Array')
}

function own(self: unknown): NativePrefixRouter {
  return nativeThis<Routing>(self, PrefixRouter).native
}

/** A worker that is followed, until this object is disposed of. */
export class Following extends Owner {
  /** @internal */
  constructor(token: unknown, followed: Followed) {
    super(token, followed, Following)
  }

  /** Returns the number of batches that arrived and of losses. */
  stats(): FollowStats {
    const [batches, losses] = nativeThis<Followed>(this, Following).native.counts() as [number, number]
    return { batches, losses }
  }
}
