// A publisher of events that says what it wants, byte by byte: ZMTP 3.0 without a mechanism, and batches in MessagePack as vLLM sends them.
import { createServer, type Socket } from 'node:net'

import type { ExecutionContext } from 'ava'

const GREETING = Buffer.alloc(64)
GREETING.set([0xff], 0)
GREETING.set([0x7f, 3, 0], 9)
GREETING.write('NULL', 12)

const READY = Buffer.from('\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB', 'latin1')

/** A frame of a message; `more` if others of it follow. */
function frame(body: Buffer, more: boolean): Buffer {
  const head = Buffer.alloc(9)
  head[0] = 2 | (more ? 1 : 0)
  head.writeBigUInt64BE(BigInt(body.length), 1)
  return Buffer.concat([head, body])
}

const name = (text: string): Buffer => Buffer.from([0xa0 | text.length, ...Buffer.from(text)])

/** All blocks of the worker are gone. */
export const CLEARED: Buffer = Buffer.concat([Buffer.from([0x91]), name('AllBlocksCleared')])

/** A block of two tokens at the start of a prompt. */
export const stored = (hash: number): Buffer =>
  Buffer.concat([Buffer.from([0x96]), name('BlockStored'), Buffer.from([0x91, hash, 0xc0, 0x92, 1, 2, 2, 0xc0])])

/** Publishes one batch of events to each follower, as number 0. Returns the endpoint. */
export async function published(t: ExecutionContext, events: readonly Buffer[]): Promise<string> {
  const count = Buffer.alloc(5, 0xdd)
  count.writeUInt32BE(events.length, 1)
  const batch = Buffer.concat([Buffer.from([0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0]), count, ...events])
  const sockets = new Set<Socket>()
  const server = createServer(socket => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.write(Buffer.concat([GREETING, READY]))
    // Behind the greeting come a command and the subscription.
    let received = 0
    socket.on('data', data => {
      const before = received
      received += data.length
      if (before <= GREETING.length && received > GREETING.length)
        setTimeout(() => {
          const message = [frame(Buffer.alloc(0), true), frame(Buffer.alloc(8), true), frame(batch, false)]
          socket.write(Buffer.concat(message))
        }, 50)
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  return `tcp://127.0.0.1:${address.port}`
}
