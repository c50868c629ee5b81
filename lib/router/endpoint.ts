// Addresses of ZeroMQ sockets as arguments: `tcp://host:port`, without a user or a path.
import { text } from '../errors/check.js'
import { invalid } from '../errors/errors.js'

/** @internal Checks the endpoint of events or of replays. */
export function readEndpoint(argument: string, value: unknown): string {
  const endpoint = text(argument, value)
  if (/^tcp:\/\/[^\s@/]+:\d+$/.test(endpoint)) return endpoint
  throw invalid(argument, value, 'tcp://host:port')
}
