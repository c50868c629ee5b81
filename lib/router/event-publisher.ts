import type { NativePublisher } from '#binding'

import { count, known, type Names, optional, text, whole } from '../border/check.js'
import { liveArgument, INTERNAL, nativeThis, Owner, settle } from '../border/owner.js'
import { binding } from '../loading/binding.js'
import { needsNet } from '../loading/net.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'
import type { SharedCache, Waiting } from '../sequences/shared-cache.js'
import { invalid } from '../border/errors.js'
import { readEndpoint } from './endpoint.js'

/** Where the events of a cache are published. */
export interface PublishOptions {
  /** Where others connect: `tcp://host:port`, of which port 0 takes a free one. */
  readonly endpoint: string
  /** Where what somebody missed is asked for again. */
  readonly replayEndpoint?: string
  /** The first part of each message, for instance `kv@pod@model`; empty by default. */
  readonly topic?: string
  /** Which of the workers that serve one model together. */
  readonly rank?: number
  /** The number of the first batch, 0 by default. A worker that is started again on the same endpoint goes on behind its last one's. */
  readonly first?: number
}

const OPTIONS: Names<PublishOptions> = { endpoint: 0, replayEndpoint: 0, topic: 0, rank: 0, first: 0 }

const LOOK_MS = 100

/** What is published, until this is disposed of: at the end of each turn in which the cache has changed. */
class Publishing implements Waiting {
  readonly #shared: SharedCache
  readonly native: NativePublisher
  /** Looks for what tiers have written by themselves, and for those who have missed more than is kept. */
  readonly #timer: NodeJS.Timeout

  constructor(shared: SharedCache, native: NativePublisher) {
    this.#shared = shared
    this.native = native
    shared.wait(this)
    this.wake()
    this.#timer = setInterval(() => this.wake(), LOOK_MS).unref()
  }

  wake(): void {
    this.native.publish(this.#shared.native, this.#shared.tiers?.native)
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

/** The events of a cache, published for routers until this is disposed of. */
export class EventPublisher extends Owner {
  /** Where it is bound. */
  declare readonly endpoint: string
  /** Where what was missed is asked for, if anywhere. */
  declare readonly replayEndpoint: string | undefined

  /** @internal */
  constructor(token: unknown, publishing: Publishing) {
    super(token, publishing, EventPublisher)
    const [endpoint, replayEndpoint] = publishing.native.endpoints()
    settle(this, { endpoint: endpoint as string, replayEndpoint: replayEndpoint ?? undefined })
  }

  /** The number that the next batch gets. */
  get next(): number {
    return nativeThis<Publishing>(this, EventPublisher).native.nextNumber()
  }
}

/**
 * Publishes what happens to the blocks that prompts find in a cache, over ZeroMQ, as vLLM does: for {@link PrefixRouter.follow}, for Dynamo's
 * indexer, for llm-d. Everything that is there is published first. Blocks of the cache itself have the medium `GPU`, whatever memory they lie in; those of
 * its tiers in memory and on disk `CPU` and `DISK`, without what other processes remove from a folder. Nobody is waited for: who is too slow sees a gap in the numbers, and asks again.
 *
 * Events tell the tokens of all prompts, of all tenants: publish them where only those may listen who may know. The cache needs the option `events`.
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
  needsNet('publishEvents', binding.bindPublisher)
  const native = await binding.bindPublisher(given)
  if (shared.isEnded) {
    native.dispose()
    liveArgument('cache', cache, PagedKvCache)
  }
  return new EventPublisher(INTERNAL, new Publishing(shared, native))
}
