// The server: OpenAI's routes over a `TextModel`, with admission, tenants, metrics and the inspector.
//
//   request -> key -> body -> parameters -> line -> generations -> events or one response
//
// A refused request has computed nothing. All requests of all clients share the steps of the model.
import { createHash, randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { PrefixRouter } from 'kvtide'

import { Keys, type Tenant } from './access/keys.js'
import { type Address, addressOf, listenAt } from './address.js'
import { Line } from './admission/line.js'
import { EventStream } from './answers/event-stream.js'
import { RequestRun, type Run } from './answers/request-run.js'
import type { ResponseHead } from './answers/form.js'
import { sizeOf } from './body.js'
import { checkThis } from './arguments.js'
import { httpApp } from './http.js'
import { InspectorMount } from './inspector-mount.js'
import { ServerMetrics } from './metrics/server-metrics.js'
import { type ServerOptions, type Settings, settingsOf } from './options.js'
import { PublicPrompt } from './public-prompt.js'
import { overloaded, Refusal, refusalOf, wrong } from './refusal.js'
import { readChat } from './requests/chat.js'
import { timerMs } from './times.js'
import { readCompletion } from './requests/completion.js'
import { type Fields, record } from './requests/fields.js'
import { chatKeys, chatRun, completionKeys, completionRun, type Served } from './requests/runs.js'
import type { ModelFacts, SharedRequest } from './requests/sampling.js'

/** The known paths, for errors about a wrong method. */
const METHODS = {
  '/v1/chat/completions': ['POST'],
  '/v1/completions': ['POST'],
  '/v1/models': ['GET'],
  '/health': ['GET'],
  '/ready': ['GET'],
  '/metrics': ['GET'],
  '/worker': ['GET'],
  '/worker/keys': ['POST'],
}

/** The maximum number of prompts whose keys are computed at once. A router that gets none chooses the worker with the least load. */
const KEYS_MAX = 2

/** Reads a body, and makes its answers. */
type Endpoint = (
  fields: Fields,
  tenant: Tenant,
  head: (includeUsage: boolean) => ResponseHead,
) => { readonly request: SharedRequest; readonly run: Run }

/** An OpenAI server for one model. */
export class TextServer implements AsyncDisposable {
  /** The Fastify instance, for routes and hooks of your own. */
  readonly app: FastifyInstance
  readonly #settings: Settings
  readonly #keys: Keys
  readonly #line: Line
  readonly #metrics: ServerMetrics
  readonly #served: Served
  readonly #inspector: InspectorMount
  readonly #card: object
  readonly #fingerprint: string
  readonly #stopped = new AbortController()
  /** The tenants of requests whose key was checked. */
  readonly #tenants = new WeakMap<FastifyRequest, Tenant>()
  #isDraining = false
  #active = 0
  /** The number of prompts whose keys are being computed. */
  #keyed = 0
  /** Callbacks of calls that wait until no request is active. */
  readonly #idle: (() => void)[] = []

  constructor(options: ServerOptions) {
    const settings = settingsOf(options)
    const { model, name, keys, maxRunning, maxWaiting, maxTokens, publicPrompt, draft } = settings
    this.#settings = settings
    // Each request listens.
    setMaxListeners(0, this.#stopped.signal)
    this.#keys = new Keys(keys)
    this.#line = new Line(maxRunning, maxWaiting, this.#keys.tenants)
    this.#metrics = new ServerMetrics(name)
    this.#inspector = new InspectorMount(model.model.cache, name)
    this.#served = {
      model,
      maxTokens,
      draft,
      publicPrompt: publicPrompt === undefined ? undefined : new PublicPrompt(model, publicPrompt),
    }
    const created = Math.floor(Date.now() / 1000)
    this.#card = { id: name, object: 'model', created, owned_by: 'kvtide', max_model_len: model.contextLength ?? null }
    this.#fingerprint = `kvtide-${createHash('sha256').update(model.model.namespace).digest('hex').slice(0, 12)}`
    this.app = httpApp(
      {
        maxBodyBytes: settings.maxBodyBytes,
        bodySeconds: settings.times.body,
        isLogging: settings.isLogging,
        onRefused: status => this.#metrics.refused(status),
      },
      METHODS,
    )
    this.#route()
  }

  /** Starts to listen, and returns the server's address. */
  async listen(address: Address = {}): Promise<string> {
    TextServer.#check(this)
    return listenAt(this.app, addressOf(address))
  }

  /** The number of requests that are answered or wait. */
  get active(): number {
    TextServer.#check(this)
    return this.#active
  }

  /**
   * Refuses new requests and those that wait, and lets running ones finish, at most for `times.drain` seconds. Health checks fail from now on, so that load
   * balancers send their requests elsewhere. Then closes the server.
   */
  async drain(): Promise<void> {
    TextServer.#check(this)
    this.#isDraining = true
    this.#line.close()
    const timer = setTimeout(() => this.#stop(), timerMs(this.#settings.times.drain))
    await this.#untilIdle()
    clearTimeout(timer)
    await this.close()
  }

  /** Ends all requests, and closes the server. The model stays as it is. */
  async close(): Promise<void> {
    TextServer.#check(this)
    this.#isDraining = true
    this.#line.close()
    this.#stop()
    await this.#untilIdle()
    await this.app.close()
    await this.#inspector.close()
  }

  /** As {@link close}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return TextServer.prototype.close.call(this)
  }

  static #check(self: unknown): void {
    checkThis(self, value => #settings in value, 'a TextServer')
  }

  async #untilIdle(): Promise<void> {
    while (this.#active > 0) await new Promise<void>(resolve => this.#idle.push(resolve))
  }

  #stop(): void {
    this.#stopped.abort(overloaded('the server is shutting down'))
  }

  #route(): void {
    const { app } = this
    const { model } = this.#settings
    const vocabulary = model.model.vocabularySize
    const facts = { names: [this.#settings.name], vocabulary, contextLength: model.contextLength }
    const status = (): { status: string } => {
      if (this.#isDraining) throw overloaded('the server is shutting down')
      return { status: 'ok' }
    }
    app.get('/health', status)
    app.get('/ready', status)
    app.get('/metrics', (_, reply) => {
      reply.type('text/plain; version=0.0.4; charset=utf-8')
      return this.#metrics.text(this.#line, this.#settings.model.model.cache, this.#inspector.metrics())
    })
    app.get('/v1/models', request => {
      this.#tenantOf(request)
      return { object: 'list', data: [this.#card] }
    })
    app.get('/v1/models/*', request => {
      this.#tenantOf(request)
      const name = (request.params as Record<string, string>)['*'] ?? ''
      if (name === this.#settings.name) return this.#card
      throw new Refusal(
        404,
        `the model ${JSON.stringify(name.slice(0, 200))} does not exist`,
        'model',
        'model_not_found',
      )
    })
    this.#routeWorker(facts)
    this.#answer(
      '/v1/chat/completions',
      (fields, tenant, head) => {
        const request = readChat(fields, facts)
        return { request, run: chatRun(this.#served, request, tenant, head(request.includeUsage)) }
      },
      'chatcmpl',
    )
    this.#answer(
      '/v1/completions',
      (fields, tenant, head) => {
        const request = readCompletion(fields, facts)
        return { request, run: completionRun(this.#served, request, tenant, head(request.includeUsage)) }
      },
      'cmpl',
    )
    if (this.#settings.hasInspector) this.#mountInspector()
  }

  /** Adds the routes that a router asks: the worker's model and events, and the keys of a prompt's blocks. */
  #routeWorker(facts: ModelFacts): void {
    const { name, events, model } = this.#settings
    const instance = randomUUID()
    this.app.get('/worker', () => ({ name, instance, form: model.model.cache.form, events: events ?? null }))
    this.app.post(
      '/worker/keys',
      { onRequest: async request => void this.#tenants.set(request, this.#tenantOf(request)) },
      async (request, reply) => {
        const keys = await this.#keysOf(request, reply, facts)
        reply.type('application/octet-stream')
        const short = PrefixRouter.shortKeys(keys)
        return reply.send(Buffer.from(short.buffer, short.byteOffset, short.byteLength))
      },
    )
  }

  /** Returns the keys of the blocks of a prompt, unless those of others are being computed. Ends if the client leaves. */
  async #keysOf(request: FastifyRequest, reply: FastifyReply, facts: ModelFacts): Promise<readonly string[]> {
    const tenant = this.#tenants.get(request) as Tenant
    const fields = record(request.body)
    if (fields === undefined) throw wrong('the body', request.body, 'a JSON object')
    if (this.#keyed >= KEYS_MAX) throw overloaded(`the keys of ${this.#keyed} prompts are being computed already`)
    const gone = new AbortController()
    reply.raw.on('close', () => gone.abort())
    const signal = AbortSignal.any([gone.signal, this.#stopped.signal])
    const { of } = request.query as { readonly of?: string }
    this.#keyed += 1
    try {
      if (of === 'completions') return await completionKeys(this.#served, readCompletion(fields, facts), tenant, signal)
      return await chatKeys(this.#served, readChat(fields, facts), tenant, signal)
    } finally {
      this.#keyed -= 1
    }
  }

  #mountInspector(): void {
    const pass = async (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => {
      if (this.#keys.isNeeded) this.#keys.checkAdmin(request.headers.authorization)
      else InspectorMount.checkLocal(request.raw)
      await this.#inspector.pass(request.url.replace(/^\/inspector\/?/, ''), request.raw, reply)
      return reply
    }
    this.app.get('/inspector', (_, reply) => reply.redirect('/inspector/'))
    this.app.register(async scope => {
      // The inspector reads its bodies itself.
      scope.removeAllContentTypeParsers()
      scope.addContentTypeParser('*', (_request, _payload, done) => done(null))
      scope.get('/inspector/*', { exposeHeadRoute: false }, pass)
      scope.post('/inspector/explain', pass)
    })
  }

  /** Adds an endpoint that answers with generations. */
  #answer(path: string, endpoint: Endpoint, prefix: string): void {
    this.app.post(
      path,
      {
        // The key is checked before the body is read.
        onRequest: async request => {
          if (this.#isDraining) throw overloaded('the server is shutting down')
          this.#tenants.set(request, this.#tenantOf(request))
        },
      },
      async (request, reply) => {
        const fields = record(request.body)
        if (fields === undefined) throw wrong('the body', request.body, 'a JSON object')
        const head = (hasUsage: boolean): ResponseHead => ({
          id: `${prefix}-${randomUUID()}`,
          created: Math.floor(Date.now() / 1000),
          model: this.#settings.name,
          fingerprint: this.#fingerprint,
          hasUsage,
        })
        const { request: asked, run } = endpoint(fields, this.#tenants.get(request) as Tenant, head)
        return this.#run(run, asked.stream, request, reply)
      },
    )
  }

  async #run(run: Run, isStream: boolean, request: FastifyRequest, reply: FastifyReply): Promise<unknown> {
    const { times } = this.#settings
    const begin = (): Readonly<Record<string, string>> => {
      reply.hijack()
      return { 'x-request-id': request.id }
    }
    const stream = isStream ? new EventStream(reply.raw, times.write, begin) : undefined
    const bytes = sizeOf(request.raw)
    const context = { line: this.#line, metrics: this.#metrics, times, bytes, stopped: this.#stopped.signal }
    this.#active += 1
    try {
      const whole = await new RequestRun(context, run, reply.raw, stream).answer()
      return whole === undefined ? reply : reply.send(whole)
    } catch (error) {
      if (stream?.hasBegun !== true) throw error
      // The status was sent already, so the error is sent as the last event.
      const refusal = refusalOf(error, 'messages', unexpected => request.log.error({ err: unexpected }, 'failed'))
      this.#metrics.refused(refusal.status)
      stream.fail(refusal.body)
      return reply
    } finally {
      this.#active -= 1
      if (this.#active === 0) for (const resolve of this.#idle.splice(0)) resolve()
    }
  }

  #tenantOf({ raw }: FastifyRequest): Tenant {
    const apiKey = raw.headersDistinct['api-key'] ?? raw.headersDistinct['x-api-key']
    return this.#keys.tenantOf({
      authorization: raw.headersDistinct['authorization'] ?? [],
      apiKey: apiKey?.length === 1 ? apiKey[0] : undefined,
    })
  }
}

/** Makes an OpenAI server for a model. Call `listen` to start it. */
export function createServer(options: ServerOptions): TextServer {
  return new TextServer(options)
}
