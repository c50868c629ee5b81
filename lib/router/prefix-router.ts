import type { NativeCacheEvent, NativeFollowing, NativePrefixRouter } from '#binding'

import { arrayKind, fields, flag, float, isArray, known, list, type Names, optional, text, typedArray } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { INTERNAL, nativeThis, Owner } from '../border/owner.js'
import { binding } from '../loading/binding.js'
import { needsNet } from '../loading/net.js'
import { readEndpoint } from './endpoint.js'
import { readRouteOptions, type RouteOptions } from './route-options.js'

/** Where a prompt goes. */
export interface Route {
  /** The worker. */
  readonly worker: string
  /** What it has of the prompt, in blocks. */
  readonly blocks: number
}

/** Where a worker publishes its events. */
export interface FollowOptions {
  /** Where they are published: `tcp://host:port`. */
  readonly endpoint: string
  /** Where what was missed is asked for. Without one, whatever is missed is lost, and the worker counts as empty until it says more. */
  readonly replayEndpoint?: string
  /** What topics begin with; all by default. */
  readonly topic?: string
}

/** The events of a worker, as they are followed. */
export interface FollowStats {
  /** Batches of events that came. */
  readonly batches: number
  /** How often some were lost. */
  readonly losses: number
}

const FOLLOW: Names<FollowOptions> = { endpoint: 0, replayEndpoint: 0, topic: 0 }

const WORKERS_MAX = 1024

/** A router, and what it follows: that goes on until it is ended, whoever holds its object. */
class Routing {
  readonly native: NativePrefixRouter = new binding.NativePrefixRouter()
  readonly followed = new Set<Followed>()

  /** Ends what is followed of a worker. */
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

/** What a router has to know of a {@link CacheEvent}: no tokens. */
export type RoutedEvent = { readonly type: 'stored'; readonly key: string; readonly parent: string; readonly isFirst: boolean } | { readonly type: 'removed'; readonly key: string } | { readonly type: 'cleared' }

const EVENTS: readonly string[] = ['stored', 'removed', 'cleared']

/** The name of a block. */
function readName(argument: string, value: unknown): string {
  if (typeof value === 'string' && /^[\da-f]{64}$/.test(value)) return value
  throw invalid(argument, value, '64 hexadecimal digits')
}

function readEvent(argument: string, value: unknown): NativeCacheEvent {
  const { type, key, parent, isFirst } = fields<{ type: string; key: string; parent: string; isFirst: boolean }>(argument, value)
  if (typeof type !== 'string' || !EVENTS.includes(type)) throw invalid(`${argument}.type`, type, EVENTS.map(name => `'${name}'`).join(' or '))
  if (type === 'cleared') return { kind: type } as NativeCacheEvent
  const name = readName(`${argument}.key`, key)
  if (type === 'removed') return { kind: type, key: name, parent: undefined }
  const before = readName(`${argument}.parent`, parent)
  return { kind: 'stored', key: name, parent: flag(`${argument}.isFirst`, isFirst) ? undefined : before }
}

/**
 * Sends prompts to where their start is: it knows which worker has which blocks, from their events, and answers the one with the longest
 * prefix. It holds no tokens and no cache; the names of a prompt's blocks come from {@link PagedKvCache.keys} or {@link PrefixNamer.keys}.
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

  /** Adds a worker, which has nothing yet; at most 1,024. */
  addWorker(worker: string): void {
    const native = own(this)
    const name = text('worker', worker)
    if (native.usage()[0] === WORKERS_MAX) throw invalid('worker', name, `at most ${WORKERS_MAX} workers`)
    if (!native.addWorker(name)) throw invalid('worker', name, 'a name that no other worker has')
  }

  /** A worker is gone, with all that it had. */
  removeWorker(worker: string): void {
    const routing = nativeThis<Routing>(this, PrefixRouter)
    const name = text('worker', worker)
    routing.native.removeWorker(name)
    routing.leave(name)
  }

  /** How busy a worker is, in any unit; 0 until it is said. */
  setLoad(worker: string, load: number): void {
    own(this).setLoad(text('worker', worker), float('load', load))
  }

  /** Takes in events of a worker's cache, in their order, all of them or none. Where some were missed, begin again with `cleared`. */
  apply(worker: string, events: readonly RoutedEvent[]): void {
    const native = own(this)
    const name = text('worker', worker)
    if (!isArray(events)) throw invalid('events', events, 'an array of events')
    native.apply(name, list('events', events, readEvent))
  }

  /**
   * Follows what a worker publishes with {@link publishEvents}, or what vLLM does, until the answer is disposed of, the worker removed, or the router
   * disposed of. Nothing is lost silently: what
   * was missed is asked for again, and where that is not to be had the worker counts as empty.
   */
  follow(worker: string, options: FollowOptions): Following {
    const routing = nativeThis<Routing>(this, PrefixRouter)
    const { native } = routing
    const name = text('worker', worker)
    const given = known<FollowOptions>('options', options, FOLLOW)
    const [endpoint, replay, topic] = [readEndpoint('endpoint', given.endpoint), optional(readEndpoint, 'replayEndpoint', given.replayEndpoint), optional(text, 'topic', given.topic) ?? '']
    needsNet('PrefixRouter.follow', native.follow)
    return new Following(INTERNAL, new Followed(routing, name, native.follow(name, endpoint, replay, topic)))
  }

  /** The worker for a prompt, by the names of its blocks; `undefined` where there are no workers. */
  route(keys: readonly string[] | BigUint64Array, options: RouteOptions = {}): Route | undefined {
    const native = own(this)
    const weight = readRouteOptions(options) ?? -1
    const found = isArray(keys) ? native.routeNames(list('keys', keys, readName), weight) : native.route(readKeys(keys), weight)
    return found === null ? undefined : { worker: found.worker, blocks: found.blocks }
  }

  /** What each worker has of a prompt that has anything, the longest first. */
  lengths(keys: readonly string[]): Route[] {
    const native = own(this)
    if (!isArray(keys)) throw invalid('keys', keys, 'an array of names')
    return native.lengths(list('keys', keys, readName)).map(({ worker, blocks }) => ({ worker, blocks }))
  }

  /** Names in the form in which {@link route} is fastest: eight bytes each. */
  static shortKeys(keys: readonly string[]): BigUint64Array {
    if (!isArray(keys)) throw invalid('keys', keys, 'an array of names')
    const names = list('keys', keys, readName)
    const view = new DataView(new ArrayBuffer(names.length * 8))
    // The bytes of each in the order of its digits.
    for (const [at, name] of names.entries()) {
      view.setUint32(at * 8, Number.parseInt(name.slice(0, 8), 16))
      view.setUint32(at * 8 + 4, Number.parseInt(name.slice(8, 16), 16))
    }
    return new BigUint64Array(view.buffer)
  }

  /** How many workers it knows, how many different blocks they have or name as the ones before, and the bytes of memory that this takes. */
  stats(): { readonly workers: number; readonly blocks: number; readonly bytes: number } {
    const [workers, blocks, bytes] = own(this).usage() as [number, number, number]
    return { workers, blocks, bytes }
  }
}

function readKeys(keys: unknown): BigUint64Array {
  if (arrayKind(keys) === 'BigUint64Array') return typedArray<BigUint64Array>('keys', keys, ['BigUint64Array'])
  throw invalid('keys', keys, 'an array of names, or a BigUint64Array')
}

function own(self: unknown): NativePrefixRouter {
  return nativeThis<Routing>(self, PrefixRouter).native
}

/** A worker that is followed, until this is disposed of. */
export class Following extends Owner {
  /** @internal */
  constructor(token: unknown, followed: Followed) {
    super(token, followed, Following)
  }

  /** How much has come. */
  stats(): FollowStats {
    const [batches, losses] = nativeThis<Followed>(this, Following).native.counts() as [number, number]
    return { batches, losses }
  }
}

