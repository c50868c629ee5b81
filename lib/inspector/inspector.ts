// The inspector: an HTTP server on this machine that serves a page about a cache in use, its events and its metrics. Every path begins with a secret token, and
// other hosts are refused. It never changes the cache. An open page costs `O(blocks)` forty times a second; without one, one read of the statistics a second.
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

import { count, known, type Names, optional, text } from '../errors/check.js'
import { invalid, isKvTideError, KvTideError, messageOf } from '../errors/errors.js'
import { checkInternal, checkThis, INTERNAL, liveArgument, settle } from '../border/owner.js'
import { here } from '../loading/projects.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { PromptOptions } from '../sequences/prompt.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import type { TokenIds } from '../sequences/tokens.js'
import { BODY_MAX, bodyOf, lastAnswer } from './body.js'
import { metricsText } from './metrics.js'
import { Watcher } from './watcher.js'

/** Options of {@link inspect}. */
export interface InspectOptions {
  /** The name of the cache on the page and in metrics; `cache` by default. */
  readonly name?: string
  /** The secret part of the address, so that other users of this machine cannot open the page: at least 32 characters. Random by default. */
  readonly token?: string
}

const OPTIONS: Names<InspectOptions> = { name: 0, token: 0 }
const LOOPBACK = '127.0.0.1'
/** The page loads nothing from other hosts, and no other page may use it. */
const HEADERS = {
  'cache-control': 'no-store',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
}

/**
 * Shows a cache that is in use: its blocks, its sequences as a tree, cache hits and misses of prompts, and statistics over time. The page is served on this
 * machine only, under an address with a random token; it loads nothing from other hosts. While no page is open, it costs one read of the statistics a
 * second. It does not keep the process alive, and it does not keep the cache: once the cache is disposed of, the page says so.
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 * import { inspect } from 'kvtide/inspector'
 *
 * using cache = new PagedKvCache({ capacity: 64, numLayers: 2, numKvHeads: 1, headDim: 4 })
 * await using inspector = inspect(cache)
 * const url = await inspector.listen()
 * console.log(url.startsWith('http://127.0.0.1:')) // true
 * console.log((await (await fetch(`${url}metrics`)).text()).includes('kvtide_blocks')) // true
 * ```
 */
export class Inspector implements AsyncDisposable {
  /** The name of the cache. */
  declare readonly name: string
  readonly #cache: PagedKvCache
  readonly #token: Buffer
  readonly #path: string
  readonly #watcher: Watcher
  #server: Server | undefined

  /** @internal */
  constructor(internal: unknown, cache: unknown, shared: unknown, options: unknown) {
    checkInternal(internal, 'Inspector', 'inspect(cache) instead')
    const { name, token } = known<InspectOptions>('options', options, OPTIONS)
    settle<Inspector, 'name'>(this, { name: optional(text, 'name', name) ?? 'cache' })
    this.#cache = cache as PagedKvCache
    const given = optional(text, 'token', token) ?? randomBytes(24).toString('base64url')
    if (!/^[\w-]{32,}$/.test(given)) throw invalid('token', given, 'at least 32 letters, digits, - and _')
    this.#path = `/${given}/`
    this.#token = digest(given)
    this.#watcher = new Watcher(this.#cache, shared as SharedCache, this.name)
  }

  /**
   * Starts the server, on this machine only, and returns the page's address, which ends with a `/`. Prometheus reads `metrics` behind that address, or
   * `/metrics` with the token as a bearer token.
   *
   * @param port a free port; any free one by default
   */
  async listen(port = 0): Promise<string> {
    Inspector.#check(this)
    const at = count('port', port, 0, 65_535)
    if (this.#server !== undefined) throw invalid('port', port, 'a single call of listen(): the page is already served')
    const server = createServer((request, response) => {
      this.#answer(request, response).catch((error: unknown) => refuse(response, 500, 'INTERNAL', String(error)))
    })
    this.#server = server
    try {
      await new Promise<void>((resolve, reject) =>
        server.once('error', reject).listen({ port: at, host: LOOPBACK }, resolve),
      )
    } catch (error) {
      this.#server = undefined
      throw invalid('port', at, `a free port (${messageOf(error)})`)
    }
    server.unref()
    this.#watcher.start()
    return `http://${LOOPBACK}:${(server.address() as AddressInfo).port}${this.#path}`
  }

  /** Returns the statistics of the cache in Prometheus' format. */
  metrics(): string {
    Inspector.#check(this)
    return metricsText(this.name, this.#cache.stats(), this.#cache.sequenceIds().length)
  }

  /** Stops the server. A second call does nothing; `listen` may be called again. */
  async close(): Promise<void> {
    Inspector.#check(this)
    const server = this.#server
    this.#server = undefined
    this.#watcher.stop()
    if (server === undefined) return
    server.closeAllConnections()
    await new Promise(resolve => server.close(resolve))
  }

  /** As {@link close}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return Inspector.prototype.close.call(this)
  }

  static #check(self: unknown): void {
    checkThis(self, value => #watcher in value, 'an Inspector')
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { port } = (this.#server?.address() ?? { port: 0 }) as AddressInfo
    // DNS rebinding: a foreign page whose name resolves to this machine sends its own name as the host.
    if (![`${LOOPBACK}:${port}`, `localhost:${port}`].includes(request.headers.host ?? ''))
      return refuse(
        response,
        403,
        'INVALID_ARGUMENT',
        `the host is ${request.headers.host}, expected ${LOOPBACK}:${port}`,
      )
    const { pathname, searchParams } = targetOf(request)
    // The token is in the address, or in a header, as Prometheus sends it.
    const [, bearer] = /^bearer +(\S+) *$/i.exec(request.headers.authorization ?? '') ?? []
    const [, token = '', what = '', ...rest] =
      bearer === undefined ? pathname.split('/') : ['', bearer, ...pathname.split('/').slice(1)]
    if (!timingSafeEqual(digest(token), this.#token))
      return refuse(
        response,
        403,
        'INVALID_ARGUMENT',
        'wrong token, expected the one in the address that listen() returned',
      )
    const call = `${request.method} ${[what, ...rest].join('/')}`
    if (call === 'GET ') return page(response)
    if (call === 'GET events') return this.#watcher.follow(response, Number(searchParams.get('group') ?? 0), HEADERS)
    try {
      if (call === 'GET metrics') return send(response, 'text/plain; version=0.0.4; charset=utf-8', this.metrics())
      if (call === 'POST explain') {
        const body = await bodyOf(request)
        return body === undefined
          ? tooLarge(request, response)
          : send(response, 'application/json', JSON.stringify(this.#explain(body.toString('utf8'))))
      }
    } catch (error) {
      if (!isKvTideError(error)) throw error
      return refuse(response, error.code === 'DISPOSED' ? 410 : 400, error.code, error.message)
    }
    return refuse(
      response,
      404,
      'INVALID_ARGUMENT',
      `unknown request ${call}, expected GET of the page, events or metrics, or POST explain`,
    )
  }

  #explain(posted: string): object {
    let body: { readonly tokens?: TokenIds } & PromptOptions
    try {
      body = JSON.parse(posted) as typeof body
    } catch {
      // A body may contain a salt, and is not shown.
      throw invalid('body', posted, 'JSON: { "tokens": [1, 2, 3], "salt": ".." }', true)
    }
    const { tokens, ...prompt } = typeof body === 'object' && body !== null ? body : {}
    return this.#cache.explain(tokens as TokenIds, prompt)
  }
}

/** Makes an inspector for a cache that is in use; see {@link Inspector}. */
export function inspect(cache: PagedKvCache, options: InspectOptions = {}): Inspector {
  return new Inspector(INTERNAL, cache, liveArgument<SharedCache>('cache', cache, PagedKvCache), options)
}

function digest(token: string): Buffer {
  return createHash('sha256').update(token).digest()
}

function send(response: ServerResponse, type: string, body: string, headers: object = {}): void {
  response.writeHead(200, { ...HEADERS, ...headers, 'content-type': type })
  response.end(body)
}

function refuse(response: ServerResponse, status: number, code: string, message: string): void {
  if (response.headersSent) return void response.end()
  response.writeHead(status, { ...HEADERS, 'content-type': 'application/json' })
  response.end(refusal(code, message))
}

/** Refuses a body without reading the rest of it. The connection cannot be used again, and a header says so. */
function tooLarge(request: IncomingMessage, response: ServerResponse): void {
  const body = refusal('INVALID_ARGUMENT', `the body is too long, expected at most ${BODY_MAX} bytes`)
  response.writeHead(413, {
    ...HEADERS,
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
    connection: 'close',
  })
  lastAnswer(request, response, body)
}

function refusal(code: string, message: string): string {
  return `${JSON.stringify({ error: { code, message } })}\n`
}

/** The path and query of a request, for any text in its place: if it is not a URL, the path `/`, where nothing is served. */
function targetOf({ url = '/' }: IncomingMessage): URL {
  const base = `http://${LOOPBACK}`
  // A path that begins with two slashes would be taken for a host.
  const target = url.startsWith('/') ? `${base}${url}` : url
  return new URL(URL.canParse(target, base) ? target : '/', base)
}

/** Sends the page, with its script and style inside. When run from source, it is the page that was built last. */
function page(response: ServerResponse): void {
  const places = ['../inspector/page.html', '../../dist/lib/inspector/page.html'].map(place => new URL(place, here))
  const found = places.find(place => existsSync(place))
  if (found === undefined)
    throw new KvTideError('INTERNAL', 'internal error: the page was not built', { reason: 'the page was not built' })
  const html = readFileSync(found, 'utf8')
  // Only the page's own scripts may run: the policy has their hashes.
  const hashes = (tag: string): string =>
    [...html.matchAll(new RegExp(`<${tag}[^>]*>([\\s\\S]*?)</${tag}>`, 'g'))]
      .map(([, body = '']) => `'sha256-${createHash('sha256').update(body).digest('base64')}'`)
      .join(' ')
  const policy = `default-src 'none'; script-src ${hashes('script')}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`
  send(response, 'text/html; charset=utf-8', html, { 'content-security-policy': policy })
}
