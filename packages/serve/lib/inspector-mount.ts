// The inspector under `/inspector`: its own server stays on the loopback, and this one passes requests on, once the caller may see the prompts of all tenants.
import { type IncomingMessage, request as httpRequest, type ServerResponse } from 'node:http'

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

  /** Passes a request on. `path` is what follows `/inspector/`, with its query. */
  async pass(path: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const base = await (this.#address ??= this.#inspector.listen())
    const target = new URL(base)
    const headers = { ...request.headers }
    for (const name of OWN_HEADERS) delete headers[name]
    await new Promise<void>((resolve, reject) => {
      const asked = httpRequest(
        {
          hostname: target.hostname,
          port: target.port,
          path: `${target.pathname}${path}`,
          method: request.method,
          headers: { ...headers, host: target.host },
          agent: false,
        },
        answer => {
          const passed = Object.entries(answer.headers).filter(([name]) => !OWN_HEADERS.includes(name))
          response.writeHead(answer.statusCode ?? 502, Object.fromEntries(passed))
          answer.pipe(response)
          answer.on('error', () => response.destroy())
          response.on('close', () => {
            asked.destroy()
            resolve()
          })
        },
      )
      asked.on('error', error => (response.headersSent ? resolve() : reject(error)))
      request.pipe(asked)
    })
  }

  close(): Promise<void> {
    return this.#inspector.close()
  }
}
