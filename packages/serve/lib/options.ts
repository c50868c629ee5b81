// The options of a server, and their defaults.
import type { TextModel, TextOptions } from 'kvtide/text'

import type { KeyEntry } from './access/keys.js'

/** The time limits of a server, in seconds; `Infinity` for none. */
export interface ServerTimes {
  /** From the arrival of a request to its first token; 120 by default. */
  readonly firstToken?: number
  /** From the arrival of a request to its end; 600 by default. */
  readonly request?: number
  /** The time in which a client must read something of a stream that waits for it; 30 by default. */
  readonly write?: number
  /** The time for receiving a request; 60 by default. */
  readonly body?: number
  /** The time in which running requests may end when the server drains; 30 by default. */
  readonly drain?: number
}

/** The addresses at which other processes follow the events of the cache. */
export interface WorkerEvents {
  readonly endpoint: string
  readonly replayEndpoint: string | undefined
}

/** Options of {@link createServer}. */
export interface ServerOptions {
  /** The model. The server does not dispose of it. */
  readonly model: TextModel
  /** The name that clients send; the model's by default. */
  readonly name?: string
  /** The accepted API keys. Without them, no key is needed, and all requests are one tenant's; an empty list accepts no request. */
  readonly keys?: readonly KeyEntry[] | undefined
  /** The beginning of the system message that all tenants share: a text of the operator's own. */
  readonly publicPrompt?: string | undefined
  /** The maximum number of answers that are computed at once; 32 by default. */
  readonly maxRunning?: number
  /** The maximum number of requests that wait; 256 by default. */
  readonly maxWaiting?: number
  /** The maximum number of tokens of an answer, also where a request asks for more; by default what the model's context leaves. */
  readonly maxTokens?: number | undefined
  /** The maximum size of a request in bytes; 8 MiB by default. */
  readonly maxBodyBytes?: number
  readonly times?: ServerTimes
  /** Drafts tokens: see `draft` of `TextModel.chat`. */
  readonly draft?: TextOptions['draft']
  /** The endpoints of published events, which a router asks for. */
  readonly events?: WorkerEvents | undefined
  /** True to log requests to the standard output as lines of JSON: method, path, status, times, the tenant's name. Never prompts, answers or keys. */
  readonly isLogging?: boolean
  /** False to leave the inspector out; true by default. */
  readonly hasInspector?: boolean
}

/** @internal Options with their defaults. */
export type Settings = ReturnType<typeof settingsOf>

const positive = (name: string, value: number): number => {
  if (typeof value === 'number' && value > 0) return value
  throw new Error(`${name} must be a number above 0, got ${String(value)}`)
}

const whole = (name: string, value: number, least: number): number => {
  if (Number.isSafeInteger(value) && value >= least) return value
  throw new Error(`${name} must be a whole number of at least ${least}, got ${String(value)}`)
}

/** @internal Checks options, and adds defaults. */
export function settingsOf(options: ServerOptions) {
  const { firstToken = 120, request = 600, write = 30, body = 60, drain = 30 } = options.times ?? {}
  return {
    model: options.model,
    name: options.name ?? options.model.name,
    keys: options.keys,
    publicPrompt: options.publicPrompt,
    maxRunning: whole('maxRunning', options.maxRunning ?? 32, 1),
    maxWaiting: whole('maxWaiting', options.maxWaiting ?? 256, 0),
    maxTokens: options.maxTokens === undefined ? undefined : whole('maxTokens', options.maxTokens, 1),
    maxBodyBytes: whole('maxBodyBytes', options.maxBodyBytes ?? 2 ** 23, 1),
    times: {
      firstToken: positive('times.firstToken', firstToken),
      request: positive('times.request', request),
      write: positive('times.write', write),
      body: positive('times.body', body),
      drain: positive('times.drain', drain),
    },
    draft: options.draft,
    events: options.events,
    isLogging: options.isLogging ?? false,
    hasInspector: options.hasInspector ?? true,
  }
}
