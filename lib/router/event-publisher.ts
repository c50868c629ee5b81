// Publishes the events of a cache over ZeroMQ, in vLLM's format. The addon owns the sockets and their thread. New events are handed to that thread in a microtask
// after each change of the cache, and those of tiers ten times a second; the cache never waits for a subscriber.
import type { NativePublisher } from '#binding'

import { count, known, type Names, optional, text, whole } from '../errors/check.js'
import { liveArgument, INTERNAL, nativeThis, Owner, settle } from '../border/owner.js'
import { isPoisoned } from '../border/when-free.js'
import { binding } from '../loading/binding.js'
import { needsNet } from '../loading/net.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { SharedCache, Waiting } from '../sequences/shared-cache.js'
import { invalid } from '../errors/errors.js'
import { readEndpoint } from './endpoint.js'

/** Options of {@link publishEvents}. */
export interface PublishOptions {
  /** The address to bind, to which subscribers connect: `tcp://host:port`. Port 0 takes a free port. */
  readonly endpoint: string
  /** The address at which a subscriber asks for events that it missed. */
  readonly replayEndpoint?: string
  /** The first part of each message, for instance `kv@pod@model`; empty by default. */
  readonly topic?: string
  /** The worker rank: the number of this worker among those that serve one model together. */
  readonly rank?: number
  /** The number of the first batch, 0 by default. A worker that restarts on the same endpoint continues with the number behind its last batch. */
  readonly first?: number
}

const OPTIONS: Names<PublishOptions> = { endpoint: 0, replayEndpoint: 0, topic: 0, rank: 0, first: 0 }

const LOOK_MS = 100

/** The maximum number of tokens per block, so that an event with their ids fits into a message. */
const BLOCK_SIZE_MAX = 2 ** 20

/** Publishes in a microtask after each change of the cache, and every `LOOK_MS`, until it is disposed of. */
class Publishing implements Waiting {
  readonly #shared: SharedCache
  readonly native: NativePublisher
  /** Publishes events from tiers, which write in the background, and serves subscribers that missed more events than are kept. */
  readonly #timer: NodeJS.Timeout

  constructor(shared: SharedCache, native: NativePublisher) {
    this.#shared = shared
    this.native = native
    try {
      this.#publish()
    } catch (error) {
      native.dispose()
      throw error
    }
    shared.wait(this)
    this.#timer = setInterval(() => this.wake(), LOOK_MS).unref()
  }

  #publish(): void {
    this.native.publish(this.#shared.native, this.#shared.tiers?.native)
  }

  wake(): void {
    try {
      this.#publish()
    } catch (error) {
      // No caller waits here: the next call on the cache says that it is poisoned.
      if (!isPoisoned(error)) throw error
      this.end()
    }
  }

  end(): void {
    clearInterval(this.#timer)
    this.#shared.leave(this)
  }

  dispose(): void {
    this.end()
    this.native.dispose()
  }
}

/** Publishes the events of a cache for routers, until it is disposed of. */
export class EventPublisher extends Owner {
  /** The address that is bound. */
  declare readonly endpoint: string
  /** The address for requests of missed events, if there is one. */
  declare readonly replayEndpoint: string | undefined

  /** @internal */
  constructor(token: unknown, publishing: Publishing) {
    super(token, publishing, EventPublisher)
    const [endpoint, replayEndpoint] = publishing.native.endpoints()
    settle(this, { endpoint: endpoint as string, replayEndpoint: replayEndpoint ?? undefined })
  }

  /** The number of the next batch. */
  get next(): number {
    return nativeThis<Publishing>(this, EventPublisher).native.nextNumber()
  }
}

/**
 * Publishes the events of a cache's prefix cache over ZeroMQ, in vLLM's format: for {@link PrefixRouter.follow}, for Dynamo's indexer, for llm-d. The current
 * content is published first. Blocks of the cache itself have the medium `GPU`, for any kind of memory; blocks of its tiers in memory and on disk have `CPU` and
 * `DISK`. Blocks that other processes remove from a folder are not reported. The cache does not wait for subscribers: one that is too slow sees a gap in the
 * numbers, and asks for a replay. Each endpoint accepts at most 256 peers. A peer that breaks the protocol, or reads nothing for 30 seconds, is disconnected.
 *
 * Events contain the tokens of all prompts of all tenants: publish them only where every listener may read them. The cache needs the option `events`.
 */
export async function publishEvents(cache: PagedKvCache, options: PublishOptions): Promise<EventPublisher> {
  const shared = liveArgument<SharedCache>('cache', cache, PagedKvCache)
  const { endpoint, replayEndpoint, topic, rank, first } = known<PublishOptions>('options', options, OPTIONS)
  const given = {
    endpoint: readEndpoint('endpoint', endpoint),
    replayEndpoint: optional(readEndpoint, 'replayEndpoint', replayEndpoint),
    topic: optional(text, 'topic', topic) ?? '',
    rank: optional(count, 'rank', rank),
    first: optional(whole, 'first', first) ?? 0,
  }
  if (shared.events === 0) throw invalid('cache', 'a cache without events', 'one that was made with the option events')
  if (cache.blockSize > BLOCK_SIZE_MAX)
    throw invalid('cache', `blocks of ${cache.blockSize} tokens`, `blocks of at most ${BLOCK_SIZE_MAX} tokens`)
  needsNet('publishEvents', binding.bindPublisher)
  const native = await binding.bindPublisher(given)
  if (shared.isEnded) {
    native.dispose()
    liveArgument('cache', cache, PagedKvCache)
  }
  return new EventPublisher(INTERNAL, new Publishing(shared, native))
}
