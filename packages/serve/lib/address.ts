// Listening: the address of a server, and errors that name the wrong part of it.
import type { AddressInfo } from 'node:net'

import type { FastifyInstance } from 'fastify'
import { KvTideError } from 'kvtide'

import { invalid, known, nonEmpty, optional, whole } from './arguments.js'

/** The address that a server listens on. */
export interface Address {
  readonly port?: number
  readonly host?: string
}

/** Reads an address: by default port 8080 of this machine alone. */
export function addressOf(options: unknown): Required<Address> {
  const { port, host } = known<Address>('options', options, { port: 0, host: 0 })
  return {
    port: optional(whole(0, 65_535), 'port', port) ?? 8080,
    host: optional(nonEmpty, 'host', host) ?? '127.0.0.1',
  }
}

/** Refuses a server that listens already. */
export function checkUnused({ server }: FastifyInstance): void {
  if (server.listening) throw invalid('this', 'a server that listens', 'a single call of listen()')
}

/** Starts to listen, and returns the server's URL. */
export async function listenAt(app: FastifyInstance, { port, host }: Required<Address>): Promise<string> {
  checkUnused(app)
  try {
    await app.listen({ port, host })
  } catch (cause) {
    const { code, syscall } = cause as NodeJS.ErrnoException
    if (code === 'FST_ERR_REOPENED_CLOSE_SERVER' || code === 'FST_ERR_REOPENED_SERVER')
      throw new KvTideError('DISPOSED', 'the server was closed', { object: 'server' })
    if (code === 'EADDRINUSE' || code === 'EACCES')
      throw invalid('port', port, `a port that is free, and that this user may use (${code})`, { cause })
    if (syscall === undefined) throw cause
    throw invalid('host', host, `an address of this machine (${code})`, { cause })
  }
  const { port: bound } = app.server.address() as AddressInfo
  return `http://${host.includes(':') ? `[${host}]` : host}:${bound}`
}
