// Dynamo's indexer, asked over HTTP: it follows the workers itself, hashes tokens itself, and says who has how much of a prompt. Who is chosen is
// decided here, by the same rule as in PrefixRouter. Every call ends in time, and what cannot be right of an answer is an error.
import { createHash } from 'node:crypto'

import { count, fields, float, known, type Names, optional, text } from '../border/check.js'
import { invalid, KvTideError } from '../border/errors.js'
import { INTERNAL, nativeThis, Owner } from '../border/owner.js'
import { readTokens, type TokenIds } from '../sequences/tokens.js'
import { readEndpoint } from './endpoint.js'
import type { FollowOptions, Route } from './prefix-router.js'
import { readRouteOptions, type RouteOptions } from './route-options.js'

/** Where Dynamo's indexer is, and what it indexes. */
export interface DynamoRouterOptions {
  /** `http://host:port` of the indexer, or `https:`. */
  readonly url: string
  /** The tokens of a block, which all workers have. */
  readonly blockSize: number
  /** The name of the model there; `'default'` by default. */
  readonly model?: string
  /** After how many milliseconds a call is given up; 1,000 by default. */
  readonly deadline?: number
}

const OPTIONS: Names<DynamoRouterOptions> = { url: 0, blockSize: 0, model: 0, deadline: 0 }
const WORKER: Names<Omit<FollowOptions, 'topic'>> = { endpoint: 0, replayEndpoint: 0 }

const DEADLINE_MS = 1000

/** What an answer is shown with at most, in characters. */
const SHOWN = 200

interface Answer {
  readonly status: number
  readonly body: string
}

/** The indexer, and the calls that are under way. */
class Indexer {
  readonly url: string
  readonly blockSize: number
  readonly model: string
  /** The workers by their names, with their numbers there. */
  readonly workers = new Map<string, { readonly id: number; load: number }>()
  readonly #deadline: number
  readonly #calls = new Set<AbortController>()
  #isEnded = false

  constructor(url: string, blockSize: number, model: string, deadline: number) {
    this.url = url
    this.blockSize = blockSize
    this.model = model
    this.#deadline = deadline
  }

  dispose(): void {
    this.#isEnded = true
    for (const call of this.#calls) call.abort()
  }

  /** The worker of a name; refused where there is none. */
  worker(name: string): { readonly id: number; load: number } {
    const worker = this.workers.get(name)
    if (worker === undefined) throw invalid('worker', name, 'the name of a worker that was added')
    return worker
  }

  async ask(path: string, body?: object): Promise<Answer> {
    const call = new AbortController()
    let isLate = false
    const timer = setTimeout(() => {
      isLate = true
      call.abort()
    }, this.#deadline)
    this.#calls.add(call)
    // fetch forgets the signal of a body that is being read once garbage was collected: so it is heard here as well.
    const ended = new Promise<never>((_, reject) => call.signal.addEventListener('abort', () => reject(call.signal.reason)))
    try {
      const sent = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }
      return await Promise.race([answerOf(this.url + path, { ...sent, redirect: 'error', signal: call.signal }), ended])
    } catch (error) {
      if (this.#isEnded) throw new KvTideError('DISPOSED', 'the DynamoRouter was disposed of', { object: 'DynamoRouter' })
      throw this.failed(path, isLate ? `no answer in ${this.#deadline} ms` : reasonOf(error), error)
    } finally {
      clearTimeout(timer)
      this.#calls.delete(call)
    }
  }

  failed(path: string, reason: string, cause?: unknown): KvTideError<'IO_ERROR'> {
    const [operation, url] = ['ask', this.url + path]
    return new KvTideError('IO_ERROR', `cannot ${operation} ${url}: ${reason}`, { operation, path: url, reason }, cause === undefined ? {} : { cause })
  }

  /** What an answer is that says no, or nothing that can be read. */
  odd(path: string, { status, body }: Answer): KvTideError<'IO_ERROR'> {
    return this.failed(path, `it answered ${status}, ${JSON.stringify(body.slice(0, SHOWN))}`)
  }

  /** The blocks that workers have of a prompt, by their numbers. */
  async query(tokens: Uint32Array): Promise<ReadonlyMap<string, number>> {
    // A block that is not whole has no name.
    const most = Math.floor(tokens.length / this.blockSize)
    if (most === 0) return new Map()
    const answer = await this.ask('/query', { token_ids: [...tokens], model_name: this.model })
    // No worker of the model has registered.
    if (answer.status === 404 && answer.body.includes('no indexer for model')) return new Map()
    const lengths = answer.status === 200 ? lengthsOf(answer.body) : undefined
    if (lengths === undefined) throw this.odd('/query', answer)
    return new Map(lengths.map(([id, length]) => [id, Math.min(Math.floor(length / this.blockSize), most)]))
  }

  /** Whether a worker that is registered already is this one. */
  async has(id: number, endpoint: string): Promise<boolean> {
    const answer = await this.ask('/workers')
    if (answer.status !== 200) return false
    try {
      const workers = JSON.parse(answer.body) as readonly { instance_id: unknown; model_name: unknown; endpoints?: Record<string, unknown> }[]
      return workers.some(of => of.instance_id === id && of.model_name === this.model && Object.values(of.endpoints ?? {}).includes(endpoint))
    } catch {
      return false
    }
  }
}

async function answerOf(url: string, sent: RequestInit): Promise<Answer> {
  const response = await fetch(url, sent)
  return { status: response.status, body: await response.text() }
}

/** Tokens that were found, by the numbers of workers; nothing where an answer is not one. */
function lengthsOf(body: string): [id: string, length: number][] | undefined {
  try {
    const { instances } = JSON.parse(body) as { instances?: unknown }
    return Object.entries(fields<Record<string, unknown>>('instances', instances)).map(([id, about]) => {
      const { longest_matched } = fields<{ longest_matched: unknown }>('instance', about)
      return [id, count('longest_matched', longest_matched)]
    })
  } catch {
    return undefined
  }
}

function reasonOf(error: unknown): string {
  const { message, cause } = error as { message?: string; cause?: { code?: string; message?: string } }
  return cause?.code ?? cause?.message ?? message ?? String(error)
}

/** The number of a worker there: made of its name, so that all who ask one indexer mean the same one. */
function numberOf(name: string): number {
  return createHash('sha256').update(name).digest().readUIntBE(0, 6)
}

function readUrl(argument: string, value: unknown): string {
  const given = text(argument, value)
  const url = URL.canParse(given) ? new URL(given) : undefined
  const isPlain = url !== undefined && /^https?:$/.test(url.protocol) && url.username === '' && url.password === '' && url.search === '' && url.hash === ''
  if (!isPlain) throw invalid(argument, value, 'an http: or https: URL without a user, a query or a fragment')
  return url.href.replace(/\/+$/, '')
}

/**
 * Sends prompts to where their start is, as {@link PrefixRouter} does, with the answers of Dynamo's indexer: it follows what workers publish with
 * {@link publishEvents}, or what vLLM does. A call that it does not answer in time, or with nonsense, is `IO_ERROR`.
 *
 * An indexer that was started again knows no workers: what it is asked for then is nowhere. Remove them here, and add them again.
 *
 * @example
 * ```ts
 * import { DynamoRouter, isKvTideError } from 'kvtide'
 *
 * using router = new DynamoRouter({ url: 'http://127.0.0.1:1', blockSize: 16, model: 'llama' })
 * try {
 *   await router.addWorker('one', { endpoint: 'tcp://10.0.0.1:5557', replayEndpoint: 'tcp://10.0.0.1:5558' })
 *   console.log(await router.route([1, 2, 3]))
 * } catch (error) {
 *   if (!isKvTideError(error)) throw error
 *   console.log(error.code) // IO_ERROR
 * }
 * ```
 */
export class DynamoRouter extends Owner {
  constructor(options: DynamoRouterOptions) {
    const { url, blockSize, model, deadline } = known<DynamoRouterOptions>('options', options, OPTIONS)
    const indexer = new Indexer(
      readUrl('url', url),
      count('blockSize', blockSize, 1),
      optional(text, 'model', model) ?? 'default',
      optional((argument, value) => count(argument, value, 1), 'deadline', deadline) ?? DEADLINE_MS,
    )
    super(INTERNAL, indexer, DynamoRouter)
  }

  /** Has the indexer follow a worker. One that it follows already, at the same endpoint, is added here alone. */
  async addWorker(worker: string, options: Omit<FollowOptions, 'topic'>): Promise<void> {
    const indexer = own(this)
    const name = text('worker', worker)
    const given = known<Omit<FollowOptions, 'topic'>>('options', options, WORKER)
    const [endpoint, replay] = [readEndpoint('endpoint', given.endpoint), optional(readEndpoint, 'replayEndpoint', given.replayEndpoint)]
    if (indexer.workers.has(name)) throw invalid('worker', name, 'a name that no other worker has')
    const added = { id: numberOf(name), load: 0 }
    indexer.workers.set(name, added)
    let isThere = false
    try {
      const answer = await indexer.ask('/register', { instance_id: added.id, endpoint, replay_endpoint: replay, model_name: indexer.model, block_size: indexer.blockSize })
      isThere = answer.status === 201 || (answer.status === 409 && (await indexer.has(added.id, endpoint)))
      if (!isThere) throw indexer.odd('/register', answer)
    } finally {
      if (!isThere) indexer.workers.delete(name)
    }
  }

  /** A worker is gone: nobody sends prompts there any more, and the indexer no longer follows it. */
  async removeWorker(worker: string): Promise<void> {
    const indexer = own(this)
    const name = text('worker', worker)
    const { id } = indexer.worker(name)
    indexer.workers.delete(name)
    const answer = await indexer.ask('/unregister', { instance_id: id, model_name: indexer.model })
    if (answer.status !== 200 && answer.status !== 404) throw indexer.odd('/unregister', answer)
  }

  /** How busy a worker is, in any unit; 0 until it is said. */
  setLoad(worker: string, load: number): void {
    const indexer = own(this)
    const [name, busy] = [text('worker', worker), float('load', load)]
    indexer.worker(name).load = busy
  }

  /** The worker for a prompt; `undefined` where there are no workers. */
  async route(tokens: TokenIds, options: RouteOptions = {}): Promise<Route | undefined> {
    const indexer = own(this)
    const [ids, weight] = [readTokens('tokens', tokens), readRouteOptions(options)]
    const blocks = indexer.workers.size === 0 ? new Map<string, number>() : await indexer.query(ids)
    const start = ids.subarray(0, indexer.blockSize)
    let best: (Route & { readonly load: number; readonly cost: number; readonly rank: number }) | undefined
    for (const [worker, { id, load }] of indexer.workers) {
      const has = blocks.get(String(id)) ?? 0
      // Of two that cost as much, the one with more of the prompt, then the one with less load, then the one that the prompt's start says.
      const [cost, rank] = [weight === undefined ? -has : weight * load - has, rankOf(id, start)]
      const order = best === undefined ? -1 : cost - best.cost || best.blocks - has || load - best.load || rank - best.rank
      if (order < 0) best = { worker, blocks: has, load, cost, rank }
    }
    return best && { worker: best.worker, blocks: best.blocks }
  }

  /** What each worker has of a prompt that has anything, the longest first. */
  async lengths(tokens: TokenIds): Promise<Route[]> {
    const indexer = own(this)
    const blocks = await indexer.query(readTokens('tokens', tokens))
    const all = [...indexer.workers].map(([worker, { id }]) => ({ worker, blocks: blocks.get(String(id)) ?? 0 }))
    return all.filter(of => of.blocks > 0).sort((one, other) => other.blocks - one.blocks)
  }
}

/** A number that a worker has for prompts that begin alike, as good as random: prompts spread over workers that are alike. */
function rankOf(id: number, tokens: Uint32Array): number {
  let mixed = id
  for (const token of tokens) mixed = Math.imul(mixed ^ token, 0x9e37_79b1) ^ (mixed >>> 15)
  return Math.imul(mixed ^ (mixed >>> 16), 0x85eb_ca6b) >>> 0
}

function own(self: unknown): Indexer {
  return nativeThis<Indexer>(self, DynamoRouter)
}
