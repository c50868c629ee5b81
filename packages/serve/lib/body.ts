// Request bodies: read up to a limit. A body beyond it is refused at once, and as much of it is still read as a client needs to get the answer.
import type { IncomingMessage } from 'node:http'

import { Refusal } from './refusal.js'

/** The maximum number of bytes that are still read from a refused body, so that its client gets to read the response. */
const DROPPED_MAX = 2 ** 26

const tooLarge = (most: number): Refusal =>
  new Refusal(413, `the request has more than ${most} bytes`, null, 'request_too_large')

/** Reads a body as JSON. */
export async function jsonOf(request: IncomingMessage, most: number): Promise<unknown> {
  const bytes = await bytesOf(request, most)
  try {
    return JSON.parse(bytes.toString('utf8')) as unknown
  } catch {
    throw new Refusal(400, 'the body is not JSON', null, 'invalid_json')
  }
}

/** Reads a body of at most `most` bytes. */
export function bytesOf(request: IncomingMessage, most: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    // A client that declares too much gets its answer before it has sent anything.
    if (Number(request.headers['content-length'] ?? 0) > most + DROPPED_MAX) return reject(tooLarge(most))
    const parts: Buffer[] = []
    let length = 0
    request.on('data', (part: Buffer) => {
      length += part.length
      if (length <= most) parts.push(part)
      else parts.length = 0
      if (length > most + DROPPED_MAX) {
        reject(tooLarge(most))
        request.destroy()
      }
    })
    request.on('end', () => {
      if (length > most) reject(tooLarge(most))
      else resolve(Buffer.concat(parts))
    })
    request.on('error', () => reject(new Refusal(400, 'the request ended early', null, 'invalid_request')))
    // Has no effect if the request has ended before.
    request.on('close', () => reject(new Refusal(400, 'the request ended early', null, 'invalid_request')))
  })
}
