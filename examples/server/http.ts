// Bodies and answers over HTTP.
import type { IncomingMessage, ServerResponse } from 'node:http'

import { Refusal } from './request.js'

export async function bodyOf(request: IncomingMessage, most: number): Promise<string> {
  const parts: Buffer[] = []
  let length = 0
  for await (const part of request as AsyncIterable<Buffer>) {
    length += part.length
    if (length > most) throw new Refusal(413, `the request has more than ${most} bytes`)
    parts.push(part)
  }
  return Buffer.concat(parts).toString('utf8')
}

export function send(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json; charset=utf-8' }).end(JSON.stringify(body))
}

/** Sends an event, and waits while the client reads more slowly than the model writes. */
export async function event(response: ServerResponse, body: object): Promise<void> {
  if (response.destroyed || response.write(`data: ${JSON.stringify(body)}\n\n`)) return
  await new Promise<void>(resolve => {
    const go = () => {
      response.off('drain', go).off('close', go)
      resolve()
    }
    response.on('drain', go).on('close', go)
  })
}
