// Request bodies: read up to a limit. A body beyond it is refused at once, and as much of it is still read as a client needs to get the answer.
import { isUtf8 } from 'node:buffer'
import type { IncomingMessage } from 'node:http'

import { Refusal } from './refusal.js'

/** The maximum number of bytes that are still read from a refused body, so that its client gets to read the response. */
const DROPPED_MAX = 2 ** 26

/** The sizes of bodies that were read. */
const SIZES = new WeakMap<IncomingMessage, number>()

/** Returns the size of the body of a request in bytes; 0 if it was not read here. */
export function sizeOf(request: IncomingMessage): number {
  return SIZES.get(request) ?? 0
}

const tooLarge = (most: number): Refusal =>
  new Refusal(413, `the request has more than ${most} bytes`, null, 'request_too_large')

/** Reads a body as JSON. */
export async function jsonOf(request: IncomingMessage, most: number): Promise<unknown> {
  const bytes = await bytesOf(request, most)
  if (!isUtf8(bytes)) throw notUtf8(bytes)
  try {
    return JSON.parse(bytes.toString('utf8')) as unknown
  } catch {
    throw new Refusal(400, 'the body is not JSON', null, 'invalid_json')
  }
}

/** Returns the error of bytes that are not UTF-8: their decoder replaces each wrong sequence by the character U+FFFD, in bytes EF BF BD. */
function notUtf8(bytes: Buffer): Refusal {
  const decoded = Buffer.from(bytes.toString('utf8'))
  let offset = bytes.findIndex((byte, index) => byte !== decoded[index])
  // A wrong sequence may begin with the same bytes as its replacement.
  if (bytes[offset - 1] === 0xef) offset -= 1
  else if (bytes[offset - 2] === 0xef && bytes[offset - 1] === 0xbf) offset -= 2
  const byte = `0x${bytes.toString('hex', offset, offset + 1)}`
  return new Refusal(400, `the body must be UTF-8, got the byte ${byte} at offset ${offset}`, null, 'invalid_json')
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
      SIZES.set(request, length)
      if (length > most) reject(tooLarge(most))
      else resolve(Buffer.concat(parts))
    })
    request.on('error', () => reject(new Refusal(400, 'the request ended early', null, 'invalid_request')))
    // Has no effect if the request has ended before.
    request.on('close', () => reject(new Refusal(400, 'the request ended early', null, 'invalid_request')))
  })
}
