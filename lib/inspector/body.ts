// Reading the body of a request, within limits.
import type { IncomingMessage, ServerResponse } from 'node:http'

/** Limits on reading and dropping the rest of a refused body. It is read so that the sender can read the answer. */
const [LINGER_MS, LINGER_BYTES] = [30_000, 2 ** 26]

/** @internal The maximum number of bytes of a body. */
export const BODY_MAX: number = 2 ** 24

/** @internal Reads a request's whole body; `undefined` if it is too long, and then the rest is not read. */
export function bodyOf(request: IncomingMessage): Promise<Buffer | undefined> {
  return new Promise((resolve, reject) => {
    let size = 0
    const parts: Buffer[] = []
    const tooLarge = (): void => {
      request.off('data', take)
      request.pause()
      resolve(undefined)
    }
    const take = (part: Buffer): void => {
      size += part.length
      if (size > BODY_MAX) return tooLarge()
      parts.push(part)
    }
    if (Number(request.headers['content-length'] ?? 0) > BODY_MAX) return tooLarge()
    request.on('data', take)
    request.once('end', () => resolve(Buffer.concat(parts)))
    request.once('error', reject)
  })
}

/**
 * @internal Answers a request whose body is not read, and ends its connection. The rest of the body is read and dropped until the sender closes, within
 * limits: a socket that is closed with unread bytes resets the connection, and the sender would lose the answer.
 */
export function lastAnswer(request: IncomingMessage, response: ServerResponse, body: string): void {
  const { socket } = request
  let rest = LINGER_BYTES
  const late = setTimeout(() => socket.destroy(), LINGER_MS).unref()
  socket.once('close', () => clearTimeout(late))
  request.on('data', (part: Buffer) => {
    rest -= part.length
    if (rest < 0) socket.destroy()
  })
  request.resume()
  // The sender knows from its length that the answer is complete. Ending the response would close the socket at once.
  response.write(body, () => socket.end())
}
