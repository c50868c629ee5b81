// Server-sent events with back-pressure: a write waits until the client has read enough, and a client that reads nothing for too long loses its connection. So the
// memory of a stream is bounded by the socket's buffer, and the generation behind it pauses meanwhile.
import type { ServerResponse } from 'node:http'

import { timerMs } from '../times.js'

/** The time-out of a slow reader. */
export class SlowReader extends Error {
  constructor(seconds: number) {
    super(`the client read nothing for ${seconds} seconds`)
  }
}

const HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  // Proxies such as nginx pass each event on at once.
  'x-accel-buffering': 'no',
}

/** A response of events. The first event starts it. */
export class EventStream {
  readonly #response: ServerResponse
  readonly #seconds: number
  readonly #onBegin: () => Readonly<Record<string, string>>
  /** Settles when the client has read enough; shared by the answers of a request. */
  #drained: Promise<void> | undefined

  /** A client that reads nothing for `seconds` loses its connection. `onBegin` is called before the first event, and returns further headers. */
  constructor(response: ServerResponse, seconds: number, onBegin: () => Readonly<Record<string, string>>) {
    this.#response = response
    this.#seconds = seconds
    this.#onBegin = onBegin
  }

  /** True once the status was sent. */
  get hasBegun(): boolean {
    return this.#response.headersSent
  }

  /** Sends an event, given as JSON. Settles once the next one may be sent. */
  async send(json: string): Promise<void> {
    const response = this.#response
    if (response.destroyed) return
    if (!response.headersSent) response.writeHead(200, { ...this.#onBegin(), ...HEADERS })
    if (!response.write(`data: ${json}\n\n`)) this.#drained ??= this.#drain()
    if (this.#drained !== undefined) await this.#drained
  }

  /** Ends the stream, as OpenAI's streams end. */
  end(): void {
    if (!this.#response.destroyed) this.#response.end('data: [DONE]\n\n')
  }

  /** Ends the stream with an error as its last event. */
  fail(body: object): void {
    if (!this.#response.destroyed) this.#response.end(`data: ${JSON.stringify(body)}\n\n`)
  }

  #drain(): Promise<void> {
    const response = this.#response
    return new Promise<void>((resolve, reject) => {
      const end = (): void => {
        clearTimeout(timer)
        response.off('drain', end).off('close', end)
        this.#drained = undefined
        resolve()
      }
      const timer = setTimeout(() => {
        response.off('drain', end).off('close', end)
        reject(new SlowReader(this.#seconds))
        response.destroy()
      }, timerMs(this.#seconds))
      response.on('drain', end).on('close', end)
    })
  }
}
