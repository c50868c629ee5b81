// The address of a server on the command line, and what is wrong with one that cannot be used.
import { type Flags, number, text } from './flags.js'

/** The address that a server listens on. */
export interface Address {
  readonly host: string
  readonly port: number
}

/** Returns the address of `--host` and `--port`. */
export function addressOf(flags: Flags): Address {
  return { host: text(flags, 'host') ?? '127.0.0.1', port: number(flags, 'port', 0, true, 65_535) ?? 8080 }
}

/** True for an address that other machines reach. */
export const isOpen = ({ host }: Address): boolean => !['127.0.0.1', 'localhost', '::1'].includes(host)

const UNUSABLE: Readonly<Record<string, (address: Address) => string>> = {
  EADDRINUSE: ({ host, port }) => `port ${port} of ${host} is in use: --port N chooses another one, 0 any free one`,
  EACCES: ({ port }) => `this user may not listen on port ${port}: --port N chooses another one, 0 any free one`,
  EADDRNOTAVAIL: ({ host }) => `--host must be an address of this machine, got ${JSON.stringify(host)}`,
  ENOTFOUND: ({ host }) => `--host must be an address of this machine, got ${JSON.stringify(host)}`,
}

/** Starts a server, and returns its URL. */
export async function listenOn(
  server: { listen(address: Address): Promise<string> },
  address: Address,
): Promise<string> {
  try {
    return await server.listen(address)
  } catch (error) {
    const { code = '' } = ((error as Error).cause ?? error) as NodeJS.ErrnoException
    const explain = UNUSABLE[code]
    throw explain === undefined ? error : new Error(explain(address), { cause: error })
  }
}
