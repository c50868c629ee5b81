// Routing with Dynamo's indexer, which is queried over HTTP. The indexer follows the workers and hashes tokens itself, and returns how much of a prompt each
// worker has. This file chooses the worker, by the same rule as PrefixRouter. Every call has a deadline, and a malformed answer is an error.
import { createHash } from 'node:crypto'

import { count, duration, fields, float, known, type Names, optional, text } from '../errors/check.js'
import { invalid, KvTideError } from '../errors/errors.js'
import { INTERNAL, nativeThis, Owner } from '../border/owner.js'
import { readTokens, type TokenIds } from '../sequences/tokens.js'
import { readEndpoint } from './endpoint.js'
import type { FollowOptions, Route } from './prefix-router.js'
import { readRouteOptions, type RouteOptions } from './route-options.js'

/** Options of a {@link DynamoRouter}. */
export interface DynamoRouterOptions {
  /** The URL of the indexer: `http://host:port`, or `https:`. */
  readonly url: string
  /** The tokens per block, the same for all workers. */
  readonly blockSize: number
  /** The name of the model in the indexer; `'default'` by default. */
  readonly model?: string
  /** The deadline of a call in milliseconds, which may have a fraction; 1,000 by default. */
  readonly deadline?: number
}

const OPTIONS: Names<DynamoRouterOptions> = { url: 0, blockSize: 0, model: 0, deadline: 0 }
const WORKER: Names<Omit<FollowOptions, 'topic'>> = { endpoint: 0, replayEndpoint: 0 }

const DEADLINE_MS = 1000

/** The maximum number of characters of an answer that an error shows. */
const SHOWN = 200

/** The maximum number of bytes of an answer after decompression: each worker takes about 200. */
const BODY_BYTES_MAX = 8 * 2 ** 20

interface Answer {
  readonly status: number
  readonly body: string
}

/** The indexer and the calls in progress. */
class Indexer {
  readonly url: string
  readonly blockSize: number
  readonly model: string
  /** The workers by name, with their numbers in the indexer. */
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

  /** Returns the worker of a name, or refuses the name. */
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
    // After a garbage collection, fetch no longer aborts a body that is being read, so the signal is also handled here.
    const ended = new Promise<never>((_, reject) =>
      call.signal.addEventListener('abort', () => reject(call.signal.reason)),
    )
    try {
      const headers = { 'accept-encoding': 'identity' }
      const sent =
        body === undefined
          ? { headers }
          : { method: 'POST', body: JSON.stringify(body), headers: { ...headers, 'content-type': 'application/json' } }
      return await Promise.race([answerOf(this.url + path, { ...sent, redirect: 'error', signal: call.signal }), ended])
    } catch (error) {
      if (this.#isEnded)
        throw new KvTideError('DISPOSED', 'the DynamoRouter was disposed of', { object: 'DynamoRouter' })
      throw this.failed(path, isLate ? `no answer in ${this.#deadline} ms` : reasonOf(error), error)
    } finally {
      clearTimeout(timer)
      this.#calls.delete(call)
    }
  }

  failed(path: string, reason: string, cause?: unknown): KvTideError<'IO_ERROR'> {
    const [operation, url] = ['ask', this.url + path]
    return new KvTideError(
      'IO_ERROR',
      `cannot ${operation} ${url}: ${reason}`,
      { operation, path: url, reason },
      cause === undefined ? {} : { cause },
    )
  }

  /** The error for an answer that is a refusal or cannot be parsed. */
  odd(path: string, { status, body }: Answer): KvTideError<'IO_ERROR'> {
    return this.failed(path, `it answered ${status}, ${JSON.stringify(body.slice(0, SHOWN))}`)
  }

  /** The number of the prompt's blocks that each worker has, by the workers' numbers. */
  async query(tokens: Uint32Array): Promise<ReadonlyMap<string, number>> {
    // A partial block has no key.
    const most = Math.floor(tokens.length / this.blockSize)
    if (most === 0) return new Map()
    const answer = await this.ask('/query', { token_ids: [...tokens], model_name: this.model })
    // No worker of the model has been registered.
    if (answer.status === 404 && answer.body.includes('no indexer for model')) return new Map()
    const lengths = answer.status === 200 ? lengthsOf(answer.body) : undefined
    if (lengths === undefined) throw this.odd('/query', answer)
    return new Map(lengths.map(([id, length]) => [id, Math.min(Math.floor(length / this.blockSize), most)]))
  }

  /** True if the worker that is registered under this number has this endpoint. */
  async has(id: number, endpoint: string): Promise<boolean> {
    const answer = await this.ask('/workers')
    if (answer.status !== 200) return false
    try {
      const workers = JSON.parse(answer.body) as readonly {
        instance_id: unknown
        model_name: unknown
        endpoints?: Record<string, unknown>
      }[]
      return workers.some(
        of =>
          of.instance_id === id && of.model_name === this.model && Object.values(of.endpoints ?? {}).includes(endpoint),
      )
    } catch {
      return false
    }
  }
}

async function answerOf(url: string, sent: RequestInit & { readonly signal: AbortSignal }): Promise<Answer> {
  const response = await fetch(url, sent)
  return { status: response.status, body: await bodyOf(response, sent.signal) }
}

/**
 * The text of an answer. fetch also decompresses answers that were not requested as compressed, so the decompressed bytes are counted. The signal is
 * checked between pieces, because a busy stream may keep the timer from running.
 */
async function bodyOf({ body }: Response, signal: AbortSignal): Promise<string> {
  const [decoder, pieces] = [new TextDecoder(), [] as string[]]
  let bytes = 0
  for await (const piece of (body ?? []) as AsyncIterable<Uint8Array>) {
    signal.throwIfAborted()
    bytes += piece.length
    // Leaving the loop cancels the body.
    if (bytes > BODY_BYTES_MAX) throw new Error(`the answer has more than ${BODY_BYTES_MAX} bytes`)
    pieces.push(decoder.decode(piece, { stream: true }))
  }
  return pieces.join('') + decoder.decode()
}

/** Checks a deadline, and limits it to the longest time of a timer. */
function deadlineOf(argument: string, value: unknown): number {
  const milliseconds = duration(argument, value)
  if (milliseconds === 0) throw invalid(argument, value, 'milliseconds above 0')
  return Math.min(milliseconds, 2 ** 31 - 1)
}

/** The number of matched tokens by worker number; `undefined` for a malformed answer. */
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

/** The number of a worker in the indexer: a hash of its name, so that all routers of one indexer use the same number. */
function numberOf(name: string): number {
  return createHash('sha256').update(name).digest().readUIntBE(0, 6)
}

function readUrl(argument: string, value: unknown): string {
  const given = text(argument, value)
  const url = URL.canParse(given) ? new URL(given) : undefined
  const isPlain =
    url !== undefined &&
    /^https?:$/.test(url.protocol) &&
    url.username === '' &&
    url.password === '' &&
    url.search === '' &&
    url.hash === ''
  if (!isPlain) throw invalid(argument, value, 'an http: or https: URL without a user, a query or a fragment')
  return url.href.replace(/\/+$/, '')
}

/**
 * Routes each prompt to the worker with the longest cached prefix, as {@link PrefixRouter} does, but asks Dynamo's indexer, which follows events from
 * {@link publishEvents} or from vLLM. If the indexer does not answer before the deadline, or its answer is malformed, the call throws `IO_ERROR`.
 *
 * An indexer that was restarted has forgotten its workers, so all prompts are misses. Remove the workers here, and add them again.
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
      optional(deadlineOf, 'deadline', deadline) ?? DEADLINE_MS,
    )
    super(INTERNAL, indexer, DynamoRouter)
  }

  /** Makes the indexer follow a worker. If the indexer already follows it at the same endpoint, it is only added here. */
  async addWorker(worker: string, options: Omit<FollowOptions, 'topic'>): Promise<void> {
    const indexer = own(this)
    const name = text('worker', worker)
    const given = known<Omit<FollowOptions, 'topic'>>('options', options, WORKER)
    const [endpoint, replay] = [
      readEndpoint('endpoint', given.endpoint),
      optional(readEndpoint, 'replayEndpoint', given.replayEndpoint),
    ]
    if (indexer.workers.has(name)) throw invalid('worker', name, 'a name that no other worker has')
    const added = { id: numberOf(name), load: 0 }
    indexer.workers.set(name, added)
    let isThere = false
    try {
      const answer = await indexer.ask('/register', {
        instance_id: added.id,
        endpoint,
        replay_endpoint: replay,
        model_name: indexer.model,
        block_size: indexer.blockSize,
      })
      isThere = answer.status === 201 || (answer.status === 409 && (await indexer.has(added.id, endpoint)))
      if (!isThere) throw indexer.odd('/register', answer)
    } finally {
      // Removed and added again meanwhile, the name belongs to a newer call.
      if (!isThere && indexer.workers.get(name) === added) indexer.workers.delete(name)
    }
  }

  /** Removes a worker: it gets no more prompts, and the indexer no longer follows it. */
  async removeWorker(worker: string): Promise<void> {
    const indexer = own(this)
    const name = text('worker', worker)
    const { id } = indexer.worker(name)
    indexer.workers.delete(name)
    const answer = await indexer.ask('/unregister', { instance_id: id, model_name: indexer.model })
    if (answer.status !== 200 && answer.status !== 404) throw indexer.odd('/unregister', answer)
  }

  /** Sets a worker's load, in any unit; 0 by default. */
  setLoad(worker: string, load: number): void {
    const indexer = own(this)
    const [name, busy] = [text('worker', worker), float('load', load)]
    indexer.worker(name).load = busy
  }

  /** Returns the worker for a prompt; `undefined` if there are no workers. */
  async route(tokens: TokenIds, options: RouteOptions = {}): Promise<Route | undefined> {
    const indexer = own(this)
    const [ids, weight] = [readTokens('tokens', tokens), readRouteOptions(options)]
    const blocks = indexer.workers.size === 0 ? new Map<string, number>() : await indexer.query(ids)
    const start = ids.subarray(0, indexer.blockSize)
    let best: (Route & { readonly load: number; readonly cost: number; readonly rank: number }) | undefined
    for (const [worker, { id, load }] of indexer.workers) {
      const has = blocks.get(String(id)) ?? 0
      // Ties in cost are broken by the longer prefix, then by the lower load, then by a hash of the prompt's first block.
      const [cost, rank] = [weight === undefined ? -has : weight * load - has, rankOf(id, start)]
      const order =
        best === undefined ? -1 : cost - best.cost || best.blocks - has || load - best.load || rank - best.rank
      if (order < 0) best = { worker, blocks: has, load, cost, rank }
    }
    return best && { worker: best.worker, blocks: best.blocks }
  }

  /** Returns the workers that have cached a prefix of a prompt, with the number of blocks, the longest prefix first. */
  async lengths(tokens: TokenIds): Promise<Route[]> {
    const indexer = own(this)
    const blocks = await indexer.query(readTokens('tokens', tokens))
    const all = [...indexer.workers].map(([worker, { id }]) => ({ worker, blocks: blocks.get(String(id)) ?? 0 }))
    return all.filter(of => of.blocks > 0).sort((one, other) => other.blocks - one.blocks)
  }
}

/** A hash of a worker and of the first block of a prompt, which spreads prompts over workers of equal cost. */
function rankOf(id: number, tokens: Uint32Array): number {
  let mixed = id
  for (const token of tokens) mixed = Math.imul(mixed ^ token, 0x9e37_79b1) ^ (mixed >>> 15)
  return Math.imul(mixed ^ (mixed >>> 16), 0x85eb_ca6b) >>> 0
}

function own(self: unknown): Indexer {
  return nativeThis<Indexer>(self, DynamoRouter)
}
