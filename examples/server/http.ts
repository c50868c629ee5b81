// HTTP: paths, request bodies and responses.
import type { IncomingMessage, ServerResponse } from 'node:http'

import { Refusal } from './refusal.js'

/** The maximum number of bytes that are still read from a refused body, so that its client gets to read the response. */
const DROPPED_MAX = 2 ** 26

/** Returns the path of a request as it was sent, also from a full URL. The path is not validated. */
export function pathOf({ url = '/' }: IncomingMessage): string {
  return /^(?:https?:\/\/[^/?#]*)?([^?#]*)/i.exec(url)?.[1] ?? ''
}

export function bodyOf(request: IncomingMessage, most: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const parts: Buffer[] = []
    let length = 0
    request.on('data', (part: Buffer) => {
      length += part.length
      if (length <= most) parts.push(part)
      else parts.length = 0
      if (length > most + DROPPED_MAX) request.destroy()
    })
    request.on('end', () => {
      if (length > most) reject(new Refusal(413, `the request has more than ${most} bytes`))
      else resolve(Buffer.concat(parts).toString('utf8'))
    })
    request.on('error', reject)
    // Has no effect if the request has ended before.
    request.on('close', () => reject(new Refusal(400, 'the request ended early')))
  })
}

export function send(
  response: ServerResponse,
  status: number,
  body: object,
  headers: Readonly<Record<string, string>> = {},
): void {
  response
    .writeHead(status, { 'content-type': 'application/json; charset=utf-8', ...headers })
    .end(JSON.stringify(body))
}

/** Sends an event, and waits if the client reads more slowly than the model generates. The first event starts the response. */
export async function event(response: ServerResponse, body: object): Promise<void> {
  if (response.destroyed) return
  if (!response.headersSent)
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' })
  if (response.write(`data: ${JSON.stringify(body)}\n\n`)) return
  await new Promise<void>(resolve => {
    const go = () => {
      response.off('drain', go).off('close', go)
      resolve()
    }
    response.on('drain', go).on('close', go)
  })
}
