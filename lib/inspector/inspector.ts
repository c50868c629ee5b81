import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

import { count, known, type Names, optional, text } from '../border/check.js'
import { invalid, isKvTideError, KvTideError } from '../border/errors.js'
import { checkInternal, INTERNAL, liveArgument, settle } from '../border/owner.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'
import type { PromptOptions } from '../sequences/prompt.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import type { TokenIds } from '../sequences/tokens.js'
import { metricsText } from './metrics.js'
import { Watcher } from './watcher.js'

/** Options of {@link inspect}. */
export interface InspectOptions {
  /** What the cache is called, on the page and in metrics; `cache` by default. */
  readonly name?: string
  /** What stands in the address, so that nobody else on this machine finds the page: 32 characters at least. Random by default. */
  readonly token?: string
}

const OPTIONS: Names<InspectOptions> = { name: 0, token: 0 }
const LOOPBACK = '127.0.0.1'
const BODY_MAX = 2 ** 24
/** Nothing of the page comes from elsewhere, and no other page may use it. */
const HEADERS = {
  'cache-control': 'no-store',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
}

/**
 * Shows a cache that is in use: its blocks, its sequences as a tree, what prompts find, and numbers over time. The page is served on this machine alone, under
 * an address that has a random token; it loads nothing from elsewhere. While nobody looks, it costs one look at the statistics a second. It
 * does not keep the process alive, and does not keep the cache: once that is disposed of, the page says so.
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
  /** What the cache is called. */
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
   * Begins to serve the page, on this machine alone, and gives its address, which ends with a `/`. Behind it `metrics` is what
   * Prometheus reads, or `/metrics` with the token as a bearer's.
   *
   * @param port a port that is free; any by default
   */
  async listen(port = 0): Promise<string> {
    const at = count('port', port, 0, 65_535)
    if (this.#server !== undefined) throw invalid('port', port, 'one call of listen: it is served already')
    const server = createServer((request, response) => {
      this.#answer(request, response).catch((error: unknown) => refuse(response, 500, 'INTERNAL', String(error)))
    })
    this.#server = server
    try {
      await new Promise<void>((resolve, reject) => server.once('error', reject).listen({ port: at, host: LOOPBACK }, resolve))
    } catch (error) {
      this.#server = undefined
      throw invalid('port', at, `a port that is free (${error instanceof Error ? error.message : String(error)})`)
    }
    server.unref()
    this.#watcher.start()
    return `http://${LOOPBACK}:${(server.address() as AddressInfo).port}${this.#path}`
  }

  /** The numbers of the cache in Prometheus' format. */
  metrics(): string {
    return metricsText(this.name, this.#cache.stats(), this.#cache.sequenceIds().length)
  }

  /** Ends the page. A second time does nothing; `listen` may be called again. */
  async close(): Promise<void> {
    const server = this.#server
    this.#server = undefined
    this.#watcher.stop()
    if (server === undefined) return
    server.closeAllConnections()
    await new Promise(resolve => server.close(resolve))
  }

  /** As {@link close}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { port } = (this.#server?.address() ?? { port: 0 }) as AddressInfo
    // A page of somebody else's whose name was made to lead here asks for its own host.
    if (![`${LOOPBACK}:${port}`, `localhost:${port}`].includes(request.headers.host ?? '')) return refuse(response, 403, 'INVALID_ARGUMENT', `the host is ${request.headers.host}, expected ${LOOPBACK}:${port}`)
    const { pathname, searchParams } = new URL(request.url ?? '/', `http://${LOOPBACK}`)
    // In the address, or in a header, as Prometheus sends it.
    const [, bearer] = /^Bearer (\S+)$/.exec(request.headers.authorization ?? '') ?? []
    const [, token = '', what = '', ...rest] = bearer === undefined ? pathname.split('/') : ['', bearer, ...pathname.split('/').slice(1)]
    if (!timingSafeEqual(digest(token), this.#token)) return refuse(response, 403, 'INVALID_ARGUMENT', 'another token is expected: that of the address that listen() gave')
    const call = `${request.method} ${[what, ...rest].join('/')}`
    if (call === 'GET ') return page(response)
    if (call === 'GET events') return this.#watcher.follow(response, Number(searchParams.get('group') ?? 0), HEADERS)
    try {
      if (call === 'GET metrics') return send(response, 'text/plain; version=0.0.4; charset=utf-8', this.metrics())
      if (call === 'POST explain') return send(response, 'application/json', JSON.stringify(await this.#explain(request)))
    } catch (error) {
      if (!isKvTideError(error)) throw error
      return refuse(response, error.code === 'DISPOSED' ? 410 : 400, error.code, error.message)
    }
    return refuse(response, 404, 'INVALID_ARGUMENT', `there is no ${call}: expected the page itself, events, metrics, or a POST of explain`)
  }

  async #explain(request: IncomingMessage): Promise<object> {
    let size = 0
    const parts: Buffer[] = []
    for await (const part of request as AsyncIterable<Buffer>) {
      size += part.length
      if (size > BODY_MAX) throw invalid('body', size, `at most ${BODY_MAX} bytes`)
      parts.push(part)
    }
    let body: { readonly tokens?: TokenIds } & PromptOptions
    try {
      body = JSON.parse(Buffer.concat(parts).toString('utf8')) as typeof body
    } catch {
      throw invalid('body', Buffer.concat(parts).toString('utf8').slice(0, 40), 'JSON: { "tokens": [1, 2, 3], "salt": ".." }')
    }
    const { tokens, ...prompt } = typeof body === 'object' && body !== null ? body : {}
    return this.#cache.explain(tokens as TokenIds, prompt)
  }
}

/** Looks at a cache that is in use; see {@link Inspector}. */
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
  response.end(`${JSON.stringify({ error: { code, message } })}\n`)
}

/** The page, with its script and its style in it. Run from source, it is the one that was built last. */
function page(response: ServerResponse): void {
  const places = ['./page.html', '../../dist/lib/inspector/page.html'].map(place => new URL(place, import.meta.url))
  const found = places.find(place => existsSync(place))
  if (found === undefined) throw new KvTideError('INTERNAL', 'internal error: the page was not built', { reason: 'the page was not built' })
  const html = readFileSync(found, 'utf8')
  // What is in the page runs, and nothing else.
  const hashes = (tag: string): string => [...html.matchAll(new RegExp(`<${tag}[^>]*>([\\s\\S]*?)</${tag}>`, 'g'))].map(([, body = '']) => `'sha256-${createHash('sha256').update(body).digest('base64')}'`).join(' ')
  const policy = `default-src 'none'; script-src ${hashes('script')}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`
  send(response, 'text/html; charset=utf-8', html, { 'content-security-policy': policy })
}
