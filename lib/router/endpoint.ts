import { text } from '../border/check.js'
import { invalid } from '../border/errors.js'

/** @internal Where something is published, or asked for again. */
export function readEndpoint(argument: string, value: unknown): string {
  const endpoint = text(argument, value)
  if (/^tcp:\/\/\S+:\d+$/.test(endpoint)) return endpoint
  throw invalid(argument, value, 'tcp://host:port')
}
