// The options of a router, and their defaults.
import { flag, invalid, isObject, known, list, type Names, optional, repeated, seconds, whole } from '../arguments.js'

/** Options of {@link createRouter}. */
export interface RouterOptions {
  /** The addresses of the workers. All of them must serve the same model, with the same `KVTIDE_PREFIX_KEY` and the same API keys. */
  readonly workers: readonly (string | URL)[]
  /** The maximum size of a request in bytes; 8 MiB by default. */
  readonly maxBodyBytes?: number
  /** The time in which running requests may end when the router drains, in seconds; 30 by default. */
  readonly drainSeconds?: number
  /** True to log requests to the standard output, as a worker does. */
  readonly isLogging?: boolean
}

const OPTIONS: Names<RouterOptions> = { workers: 0, maxBodyBytes: 0, drainSeconds: 0, isLogging: 0 }

/** @internal Checks options, and adds defaults. */
export function routerSettings(options: unknown) {
  const given = known<RouterOptions>('options', options, OPTIONS)
  const workers = list('workers', given.workers, workerUrl)
  if (workers.length === 0) throw invalid('workers.length', 0, 'at least one worker: http://host:port')
  const twice = repeated(workers.map(({ origin }) => origin))
  if (twice >= 0) throw invalid(`workers[${twice}]`, workers[twice]?.origin, 'an address that no other worker has')
  return {
    workers,
    maxBodyBytes: optional(whole(1), 'maxBodyBytes', given.maxBodyBytes) ?? 2 ** 23,
    drainSeconds: optional(seconds, 'drainSeconds', given.drainSeconds) ?? 30,
    isLogging: optional(flag, 'isLogging', given.isLogging) ?? false,
  }
}

/** The address may contain a password, and is not shown. */
function workerUrl(argument: string, value: unknown): URL {
  const href = typeof value === 'string' ? value : isObject(value) && value instanceof URL ? value.href : ''
  const url = URL.canParse(href) ? new URL(href) : undefined
  if (url?.protocol === 'http:') return url
  throw invalid(argument, value, 'http://host:port', { isHidden: true })
}
