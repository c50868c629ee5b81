// The inspector under `/inspector`: its own server stays on the loopback, and this one passes requests on, once the caller may see the prompts of all tenants.
import { type IncomingMessage, request as httpRequest } from 'node:http'
import { pipeline } from 'node:stream/promises'

import type { FastifyReply } from 'fastify'
import type { PagedKvCache } from 'kvtide'
import { inspect, type Inspector } from 'kvtide/inspector'

import { Refusal } from './refusal.js'

/** Headers that belong to one connection. */
const OWN_HEADERS = ['connection', 'keep-alive', 'transfer-encoding', 'authorization', 'host', 'cookie']

/** Names of this machine. A page of another site whose name resolves to this machine sends its own name. */
const LOCAL = /^(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?$/i

/** Addresses of the loopback, as sockets have them. */
const LOOPBACK = /^(?:::ffff:)?127\.\d+\.\d+\.\d+$|^::1$/i

/** Headers that proxies add. */
const PASSED_ON = /^(?:forwarded|via|x-forwarded|x-forwarded-.*|x-real-ip)$/

/** The inspector of a cache. */
export class InspectorMount {
  readonly #inspector: Inspector
  #address: Promise<string> | undefined

  constructor(cache: PagedKvCache, name: string) {
    this.#inspector = inspect(cache, { name })
  }

  /** The metrics of the cache in Prometheus' format. */
  metrics(): string {
    return this.#inspector.metrics()
  }

  /**
   * Refuses a request from another machine, through a foreign name or through a proxy, on a server without keys. A proxy on this machine that adds no header
   * looks like a browser on this machine.
   */
  static checkLocal({ headers, socket }: IncomingMessage): void {
    const isPassedOn = Object.keys(headers).some(name => PASSED_ON.test(name))
    if (LOCAL.test(headers.host ?? '') && LOOPBACK.test(socket.remoteAddress ?? '') && !isPassedOn) return
    throw new Refusal(
      403,
      'without API keys, the inspector is served on this machine only: open it by localhost and without a proxy, or start the server with --keys',
      null,
      'forbidden',
    )
  }

  /**
   * Passes a request on, and its answer back. `path` is what follows `/inspector/`, with its query. If the inspector does not answer, the request is refused
   * with 502; if its answer breaks off, the connection ends. A client that leaves ends the request to the inspector.
   */
  async pass(path: string, request: IncomingMessage, reply: FastifyReply): Promise<void> {
    const { raw: response } = reply
    const left = new AbortController()
    response.once('close', () => left.abort())
    const answer = await this.#ask(path, request, left.signal).catch((error: unknown) => {
      if (left.signal.aborted) throw new Refusal(499, 'the client closed the request', null, 'aborted')
      // The rest of the body is read, so that the connection can be used again.
      request.unpipe().resume()
      reply.log.error({ err: error }, 'failed')
      throw new Refusal(502, 'the inspector does not answer: send the request again', null, 'inspector_unavailable')
    })
    const passed = Object.entries(answer.headers).filter(([name]) => !OWN_HEADERS.includes(name))
    // Before its first byte, an answer of the inspector can still become an error of this server.
    reply.hijack()
    response.writeHead(answer.statusCode ?? 502, Object.fromEntries(passed))
    // The status was sent already: `pipeline` destroys the response if the answer breaks off.
    await pipeline(answer, response).catch(() => undefined)
  }

  close(): Promise<void> {
    return this.#inspector.close()
  }

  /** Starts the inspector's own server with the first request. A failure is not kept: the next request tries again. */
  #listen(): Promise<string> {
    this.#address ??= this.#inspector.listen().catch((error: unknown) => {
      this.#address = undefined
      throw error
    })
    return this.#address
  }

  /** Sends a request to the inspector, and returns its answer. */
  async #ask(path: string, request: IncomingMessage, signal: AbortSignal): Promise<IncomingMessage> {
    const target = new URL(await this.#listen())
    const headers = { ...request.headers }
    for (const name of OWN_HEADERS) delete headers[name]
    return new Promise((resolve, reject) => {
      const asked = httpRequest(
        {
          hostname: target.hostname,
          port: target.port,
          path: `${target.pathname}${path}`,
          method: request.method,
          headers: { ...headers, host: target.host },
          agent: false,
          signal,
        },
        resolve,
      )
      asked.on('error', reject)
      request.pipe(asked)
    })
  }
}
