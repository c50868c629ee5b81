// Passes one request on to a worker, and its answer back, byte by byte with back-pressure: a slow reader pauses the worker's generation.
import { Agent, type IncomingMessage, request as httpRequest, type ServerResponse } from 'node:http'

import { Refusal } from '../refusal.js'

/** Headers that belong to one connection. */
const HOP = new Set([
  'connection',
  'keep-alive',
  'transfer-encoding',
  'te',
  'trailer',
  'upgrade',
  'proxy-authorization',
  'content-length',
  'host',
  'expect',
])

/** An answer of a lost worker ends if nothing of it has come for so many milliseconds. */
const QUIET_MS = 3000

/** A request to be passed on. */
export interface Passed {
  readonly method: string
  readonly path: string
  readonly headers: IncomingMessage['headers']
  readonly body: Buffer | undefined
  /** Ends the request and its answer. */
  readonly signal: AbortSignal
  /** Ends the request unless its answer has begun. */
  readonly lost?: AbortSignal
}

/** Connections to workers. */
export class Proxy {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: Infinity, maxFreeSockets: 256 })

  /** Sends a request. Rejects if the worker cannot be reached, is lost, or ends before its answer begins. */
  ask(worker: URL, { method, path, headers, body, signal, lost }: Passed): Promise<IncomingMessage> {
    const passed = Object.fromEntries(Object.entries(headers).filter(([name]) => !HOP.has(name)))
    return new Promise((resolve, reject) => {
      const asked = httpRequest(
        {
          hostname: worker.hostname.replace(/^\[|\]$/g, ''),
          port: worker.port === '' ? 80 : worker.port,
          path,
          method,
          headers: { ...passed, ...(body === undefined ? {} : { 'content-length': body.length }) },
          agent: this.#agent,
          signal,
        },
        answer => {
          lost?.removeEventListener('abort', end)
          resolve(answer)
        },
      )
      const end = (): void => void asked.destroy(new Error('the worker is lost'))
      lost?.addEventListener('abort', end, { once: true })
      asked.on('close', () => lost?.removeEventListener('abort', end))
      asked.on('error', reject)
      asked.end(body)
      if (lost?.aborted === true) end()
    })
  }

  /**
   * Passes an answer on. Settles at its end: true if all of it was passed on. `whileLost` calls a function while the worker answers no health check: an answer of
   * which nothing has come for a while ends then.
   */
  answer(
    from: IncomingMessage,
    to: ServerResponse,
    whileLost: (call: () => void) => () => void = () => () => undefined,
  ): Promise<boolean> {
    // A closed response emits no further event.
    if (to.destroyed) {
      from.destroy()
      return Promise.resolve(false)
    }
    return new Promise(resolve => {
      const headers = Object.entries(from.headers).filter(([name]) => !HOP.has(name) || name === 'content-length')
      to.writeHead(from.statusCode ?? 502, Object.fromEntries(headers))
      let heard = performance.now()
      from.on('data', () => (heard = performance.now()))
      const leave = whileLost(() => {
        if (performance.now() - heard >= QUIET_MS) from.destroy()
      })
      from.pipe(to, { end: false })
      from.on('end', () => {
        to.end()
        resolve(true)
      })
      from.on('close', () => {
        leave()
        if (!from.complete) broken(from, to)
        resolve(from.complete)
      })
      from.on('error', () => resolve(false))
      // The signal of the request ends the worker's answer.
      to.on('close', () => resolve(false))
    })
  }

  close(): void {
    this.#agent.destroy()
  }
}

/** Ends an answer whose worker has gone: a stream with an error as its last event, anything else without an end. */
function broken(from: IncomingMessage, to: ServerResponse): void {
  if (to.destroyed || to.writableEnded) return
  if (!(from.headers['content-type'] ?? '').startsWith('text/event-stream')) return void to.destroy()
  const { body } = new Refusal(502, 'the worker ended during the answer', null, 'worker_lost')
  to.end(`data: ${JSON.stringify(body)}\n\n`)
}
