// A front for several workers: each prompt goes to the worker that has the longest prefix of it cached, weighed against the work that waits there.
//
//   request -> keys of its blocks, from any worker -> PrefixRouter -> a worker -> its answer
//
// The router has no model, no tokenizer, no API keys and no secrets: a worker checks the key of the client, and computes the keys of the blocks with its salt. Until
// the first byte of an answer, a request moves to another worker if its own is gone, hangs or has no room.
import { setMaxListeners } from 'node:events'
import type { IncomingMessage } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { KvTideError, PrefixRouter } from 'kvtide'

import { type Address, addressOf, checkUnused, listenAt } from '../address.js'
import { checkThis } from '../arguments.js'
import { httpApp } from '../http.js'
import { Counts, metric } from '../metrics/prometheus.js'
import { overloaded, Refusal } from '../refusal.js'
import { type RouterOptions, routerSettings } from './options.js'
import { Proxy } from './proxy.js'
import { Worker } from './worker.js'

/** The time for receiving a request, in seconds. */
const BODY_SECONDS = 60
/** The time in which a worker returns the keys of a prompt, in milliseconds. Without them, the request goes to the worker with the least load. */
const KEYS_MS = 2000
/** The load of an answer after its first byte, in blocks of prompts. */
const ANSWER_LOAD = 1

const ROUTED = ['/v1/chat/completions', '/v1/completions'] as const
const METHODS = {
  ...Object.fromEntries(ROUTED.map(path => [path, ['POST']])),
  '/v1/models': ['GET'],
  '/health': ['GET'],
  '/ready': ['GET'],
  '/metrics': ['GET'],
}

/** A request on its way to a worker. */
interface Routed {
  readonly request: FastifyRequest
  readonly reply: FastifyReply
  readonly body: Buffer | undefined
  /** Aborted when the client leaves or the router ends. */
  readonly signal: AbortSignal
}

/** The blocks of a prompt. */
interface Blocks {
  readonly keys: BigUint64Array
  readonly count: number
}

const NO_BLOCKS: Blocks = { keys: new BigUint64Array(0), count: 1 }

/** A front for several workers. */
export class RouterServer implements AsyncDisposable {
  /** The Fastify instance. */
  readonly app: FastifyInstance
  readonly #index = new PrefixRouter()
  readonly #workers: readonly Worker[]
  readonly #proxy = new Proxy()
  readonly #stopped = new AbortController()
  readonly #drainSeconds: number
  readonly #counts = new Counts()
  #isDraining = false
  #active = 0
  #turn = 0

  constructor(options: RouterOptions) {
    const { workers, maxBodyBytes, drainSeconds, isLogging } = routerSettings(options)
    this.#drainSeconds = drainSeconds
    // Each request listens.
    setMaxListeners(0, this.#stopped.signal)
    this.#workers = workers.map(url => new Worker(url, this.#index))
    this.app = httpApp({ maxBodyBytes, bodySeconds: BODY_SECONDS, isLogging, isRaw: true }, METHODS)
    this.#route()
  }

  /** Starts to listen, and returns the router's address. Workers that are not there yet are used once they answer. */
  async listen(address: Address = {}): Promise<string> {
    RouterServer.#check(this)
    const read = addressOf(address)
    if (this.#isDraining) throw new KvTideError('DISPOSED', 'the server was closed', { object: 'server' })
    checkUnused(this.app)
    try {
      await Promise.all(this.#workers.map(worker => worker.watch()))
    } catch (error) {
      for (const worker of this.#workers) worker.end()
      throw error
    }
    return listenAt(this.app, read)
  }

  /** The number of requests that are answered. */
  get active(): number {
    RouterServer.#check(this)
    return this.#active
  }

  /** Refuses new requests, and lets running ones finish. Then closes the router. */
  async drain(): Promise<void> {
    RouterServer.#check(this)
    this.#isDraining = true
    const deadline = performance.now() + this.#drainSeconds * 1000
    while (this.#active > 0 && performance.now() < deadline) await sleep(20)
    await this.close()
  }

  /** Ends all requests, and closes the router. */
  async close(): Promise<void> {
    RouterServer.#check(this)
    this.#isDraining = true
    this.#stopped.abort(overloaded('the router is shutting down'))
    await this.app.close()
    for (const worker of this.#workers) worker.end()
    this.#proxy.close()
    this.#index.dispose()
  }

  /** As {@link close}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return RouterServer.prototype.close.call(this)
  }

  static #check(self: unknown): void {
    checkThis(self, value => #index in value, 'a RouterServer')
  }

  #route(): void {
    const { app } = this
    const status = (): object => {
      if (this.#isDraining) throw overloaded('the router is shutting down')
      const up = this.#workers.filter(({ isUp }) => isUp).length
      if (up === 0) throw overloaded('no worker answers')
      return { status: 'ok', workers: this.#workers.length, up }
    }
    app.get('/health', status)
    app.get('/ready', status)
    app.get('/metrics', (_, reply) => {
      reply.type('text/plain; version=0.0.4; charset=utf-8')
      return this.#metrics()
    })
    for (const path of ['/v1/models', '/v1/models/*'])
      app.get(path, (request, reply) => this.#pass(request, reply, undefined))
    for (const path of ROUTED)
      app.post(path, async (request, reply) => {
        const body = request.body as Buffer | undefined
        if (body === undefined) throw new Refusal(400, 'the body is not JSON', null, 'invalid_json')
        return this.#pass(request, reply, body)
      })
  }

  /** Passes a request on to a worker. A request with a body has a prompt. */
  async #pass(request: FastifyRequest, reply: FastifyReply, body: Buffer | undefined): Promise<FastifyReply> {
    if (this.#isDraining) throw overloaded('the router is shutting down')
    const gone = new AbortController()
    // The client may leave at any time from here on, also while a worker computes the keys.
    reply.raw.on('close', () => gone.abort(new Refusal(499, 'the client closed the request')))
    const routed = { request, reply, body, signal: AbortSignal.any([gone.signal, this.#stopped.signal]) }
    this.#active += 1
    try {
      return await this.#toWorkers(routed, await this.#blocksOf(routed))
    } finally {
      this.#active -= 1
    }
  }

  /** Returns the keys of a prompt's blocks, computed by a worker; none if no worker returns them in time. */
  async #blocksOf({ request, body, signal }: Routed): Promise<Blocks> {
    if (body === undefined) return NO_BLOCKS
    const up = this.#workers.filter(({ isUp }) => isUp)
    // One worker needs no choice.
    if (up.length < 2) return NO_BLOCKS
    this.#turn += 1
    const worker = up[this.#turn % up.length] as Worker
    try {
      const answer = await this.#proxy.ask(worker.url, {
        method: 'POST',
        path: `/worker/keys?of=${request.url.startsWith('/v1/chat/') ? 'chat' : 'completions'}`,
        headers: request.raw.headers,
        body,
        signal: AbortSignal.any([signal, AbortSignal.timeout(KEYS_MS)]),
      })
      const parts: Buffer[] = []
      for await (const part of answer) parts.push(part as Buffer)
      // A refused request gets its answer from the worker that it is sent to.
      if (answer.statusCode !== 200) return NO_BLOCKS
      const bytes = Buffer.concat(parts)
      const keys = new BigUint64Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + (bytes.length & ~7)))
      return { keys, count: Math.max(1, keys.length) }
    } catch {
      return NO_BLOCKS
    }
  }

  /** The worker for a prompt among those that were not tried, with the number of blocks that it has. */
  #choose(
    keys: BigUint64Array,
    tried: ReadonlySet<Worker>,
  ): { readonly worker: Worker; readonly blocks: number } | undefined {
    const release = this.#workers
      .filter(worker => !worker.isUp || tried.has(worker))
      .map(worker => worker.addLoad(AWAY))
    const found = this.#index.route(keys, { loadWeight: 1 })
    for (const end of release) end()
    const worker = this.#workers.find(({ name }) => name === found?.worker)
    if (found === undefined || worker === undefined || !worker.isUp || tried.has(worker)) return undefined
    return { worker, blocks: found.blocks }
  }

  /** Passes a request on to workers, one after the other, until one answers. */
  async #toWorkers(routed: Routed, { keys, count }: Blocks): Promise<FastifyReply> {
    const tried = new Set<Worker>()
    routed.signal.throwIfAborted()
    for (let next = this.#choose(keys, tried); next !== undefined; next = this.#choose(keys, tried)) {
      const { worker, blocks } = next
      tried.add(worker)
      const isLast = this.#workers.every(other => !other.isUp || tried.has(other))
      const answered = await this.#try(worker, Math.max(1, count - blocks), isLast, routed)
      if (answered) return routed.reply
      routed.signal.throwIfAborted()
      this.#counts.add('failovers')
    }
    throw overloaded('no worker answers')
  }

  /** Asks one worker. Returns false if another one may be asked: the client has received nothing. */
  async #try(worker: Worker, blocks: number, isLast: boolean, routed: Routed): Promise<boolean> {
    const { request, reply, body, signal } = routed
    let release = worker.addLoad(blocks)
    try {
      let answer: IncomingMessage
      try {
        const { method, url, raw } = request
        const headers = { ...raw.headers, 'x-request-id': request.id }
        answer = await this.#proxy.ask(worker.url, { method, path: url, headers, body, signal, lost: worker.lost })
      } catch {
        if (!signal.aborted) worker.fail()
        return false
      }
      // A worker that drains or is full has done nothing for the request.
      if (answer.statusCode === 503 && !isLast) {
        answer.resume()
        return false
      }
      release()
      release = worker.addLoad(ANSWER_LOAD)
      worker.requests += 1
      reply.hijack()
      await this.#proxy.answer(answer, reply.raw, call => worker.whileLost(call))
      return true
    } finally {
      release()
    }
  }

  #metrics(): string {
    const each = (of: (worker: Worker) => number) =>
      this.#workers.map(worker => [{ worker: worker.name }, of(worker)] as const)
    return [
      metric(
        'kvtide_router_up',
        'gauge',
        '1 for a worker that answers',
        each(({ isUp }) => (isUp ? 1 : 0)),
      ),
      metric(
        'kvtide_router_requests_total',
        'counter',
        'Requests that a worker answered',
        each(({ requests }) => requests),
      ),
      metric('kvtide_router_failovers_total', 'counter', 'Requests that moved to another worker', [
        [{}, this.#counts.of('failovers')],
      ]),
      metric('kvtide_router_active', 'gauge', 'Requests that are answered', [[{}, this.#active]]),
      metric('kvtide_router_blocks', 'gauge', 'Blocks in the index', [[{}, this.#index.stats().blocks]]),
      '',
    ].join('\n')
  }
}

/** A load that no worker which answers can have. */
const AWAY = 2 ** 40

/** Makes a front for several workers. Call `listen` to start it. */
export function createRouter(options: RouterOptions): RouterServer {
  return new RouterServer(options)
}
