// A worker as the router sees it: whether it answers, how busy it is, and where it publishes the events of its cache.
import { setMaxListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'

import { type Following, isKvTideError, type PrefixRouter } from 'kvtide'

/** The answer of a worker to `GET /worker`. */
interface WorkerFacts {
  /** A number that a worker draws when it starts. */
  readonly instance: string
  readonly events: { readonly endpoint: string; readonly replayEndpoint?: string } | null
}

/** The pause between two health checks, and the time that one may take, in milliseconds. */
const CHECK_MS = 1000
const ANSWER_MS = 2000
/** The number of health checks in a row without any answer after which a worker is lost. */
const SILENT_MAX = 3

/** An endpoint as the worker bound it, with the host by which the router reaches the worker. */
function reachable(endpoint: string, url: URL): string {
  const { port } = new URL(endpoint.replace(/^tcp:/, 'http:'))
  return `tcp://${url.hostname}:${port}`
}

/** One worker behind a router. */
export class Worker {
  readonly url: URL
  /** Its name in the router's index and in metrics. */
  readonly name: string
  readonly #index: PrefixRouter
  readonly #ended = new AbortController()
  #following: Following | undefined
  #instance: string | undefined
  #isUp = false
  #isWarned = false
  #load = 0
  /** The number of health checks in a row that got no answer. */
  #silent = 0
  #lost: AbortController = forRequests()
  /** Called at each health check without an answer while it is lost, for the answers that have begun. */
  readonly #answers = new Set<() => void>()
  /** The number of requests that it got. */
  requests = 0

  constructor(url: URL, index: PrefixRouter) {
    this.url = url
    this.name = url.origin
    this.#index = index
    index.addWorker(this.name)
  }

  /** True if it answered the last health check, and no request since has failed to reach it. */
  get isUp(): boolean {
    return this.#isUp
  }

  /**
   * Aborted once it has answered no health check for several times: its process hangs, or its machine is gone. Requests whose answer has not begun then move to
   * another worker. A worker that drains still answers. After an answer, a new signal takes the place of an aborted one.
   */
  get lost(): AbortSignal {
    return this.#lost.signal
  }

  /** Calls a function at each health check without an answer while the worker is lost. Returns a function that ends this. */
  whileLost(call: () => void): () => void {
    this.#answers.add(call)
    return () => void this.#answers.delete(call)
  }

  /** Adds load in blocks, and returns a function that takes it away again, once. */
  addLoad(blocks: number): () => void {
    let left = blocks
    this.#setLoad(this.#load + left)
    return () => {
      this.#setLoad(this.#load - left)
      left = 0
    }
  }

  #setLoad(load: number): void {
    this.#load = load
    if (!this.#ended.signal.aborted) this.#index.setLoad(this.name, load)
  }

  /** Notes that it could not be reached: it gets no requests until it answers a health check. */
  fail(): void {
    this.#isUp = false
  }

  /** Checks its health from now on, until {@link end}. The promise settles after the first check. It is rejected if this process cannot follow events. */
  async watch(): Promise<void> {
    await this.#check()
    void this.#loop()
  }

  end(): void {
    this.#ended.abort()
    this.#following?.dispose()
  }

  async #loop(): Promise<void> {
    const { signal } = this.#ended
    while (!signal.aborted) {
      await sleep(CHECK_MS, undefined, { signal, ref: false }).catch(() => {})
      // A worker that begins to publish later is not used if this process cannot follow it.
      if (!signal.aborted) await this.#check().catch((error: unknown) => this.#warn(error as Error))
    }
  }

  async #check(): Promise<void> {
    try {
      const health = await this.#get('health').catch((error: unknown) => {
        this.#missed()
        throw error
      })
      this.#answered()
      await health.arrayBuffer()
      if (!health.ok) return void (this.#isUp = false)
      const facts = (await (await this.#get('worker')).json()) as WorkerFacts
      if (this.#ended.signal.aborted) return
      if (facts.instance !== this.#instance) this.#follow(facts)
      this.#isUp = true
    } catch (error) {
      this.#isUp = false
      if (isKvTideError(error) && error.code === 'BINDING_NOT_FOUND') throw error
    }
  }

  #missed(): void {
    this.#silent += 1
    if (this.#silent < SILENT_MAX) return
    this.#lost.abort()
    for (const call of this.#answers) call()
  }

  #answered(): void {
    this.#silent = 0
    if (this.#lost.signal.aborted) this.#lost = forRequests()
  }

  #warn(error: Error): void {
    if (this.#isWarned) return
    this.#isWarned = true
    process.emitWarning(`${this.name} cannot be followed: ${error.message}`, { code: 'BINDING_NOT_FOUND' })
  }

  #get(path: string): Promise<Response> {
    return fetch(new URL(path, this.url), {
      signal: AbortSignal.any([this.#ended.signal, AbortSignal.timeout(ANSWER_MS)]),
    })
  }

  /** Follows the cache of a worker that has started. A cache of an earlier process is forgotten. */
  #follow({ instance, events }: WorkerFacts): void {
    this.#following?.dispose()
    this.#index.removeWorker(this.name)
    this.#index.addWorker(this.name)
    this.#index.setLoad(this.name, this.#load)
    this.#following = undefined
    if (events !== null) {
      const { endpoint, replayEndpoint } = events
      this.#following = this.#index.follow(this.name, {
        endpoint: reachable(endpoint, this.url),
        ...(replayEndpoint === undefined ? {} : { replayEndpoint: reachable(replayEndpoint, this.url) }),
      })
    }
    this.#instance = instance
  }
}

/** Makes a controller to whose signal each request listens. */
function forRequests(): AbortController {
  const controller = new AbortController()
  setMaxListeners(0, controller.signal)
  return controller
}
