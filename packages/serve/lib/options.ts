// The options of a server, and their defaults.
import type { TextModel, TextOptions } from 'kvtide/text'

import { type KeyEntry, readKeys } from './access/keys.js'
import { flag, invalid, isObject, known, nonEmpty, type Names, optional, seconds, text, whole } from './arguments.js'

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
  /** Drafts tokens: see `draft` of `TextModel.chat`. A model that cannot draft for `model` is refused at once. */
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

const OPTIONS: Names<ServerOptions> = {
  model: 0,
  name: 0,
  keys: 0,
  publicPrompt: 0,
  maxRunning: 0,
  maxWaiting: 0,
  maxTokens: 0,
  maxBodyBytes: 0,
  times: 0,
  draft: 0,
  events: 0,
  isLogging: 0,
  hasInspector: 0,
}
const TIMES: Names<ServerTimes> = { firstToken: 0, request: 0, write: 0, body: 0, drain: 0 }
const EVENTS: Names<WorkerEvents> = { endpoint: 0, replayEndpoint: 0 }

/** @internal Checks options, and adds defaults. */
export function settingsOf(options: unknown) {
  const given = known<ServerOptions>('options', options, OPTIONS)
  const model = modelOf(given.model)
  const times = known<ServerTimes>('times', given.times === undefined ? {} : given.times, TIMES)
  return {
    model,
    name: optional(nonEmpty, 'name', given.name) ?? model.name,
    keys: optional(readKeys, 'keys', given.keys),
    publicPrompt: optional(text, 'publicPrompt', given.publicPrompt),
    maxRunning: optional(whole(1), 'maxRunning', given.maxRunning) ?? 32,
    maxWaiting: optional(whole(0), 'maxWaiting', given.maxWaiting) ?? 256,
    maxTokens: optional(whole(1), 'maxTokens', given.maxTokens),
    maxBodyBytes: optional(whole(1), 'maxBodyBytes', given.maxBodyBytes) ?? 2 ** 23,
    times: {
      firstToken: optional(seconds, 'times.firstToken', times.firstToken) ?? 120,
      request: optional(seconds, 'times.request', times.request) ?? 600,
      write: optional(seconds, 'times.write', times.write) ?? 30,
      body: optional(seconds, 'times.body', times.body) ?? 60,
      drain: optional(seconds, 'times.drain', times.drain) ?? 30,
    },
    draft: draftOf(model, given.draft),
    events: optional(eventsOf, 'events', given.events),
    isLogging: optional(flag, 'isLogging', given.isLogging) ?? false,
    hasInspector: optional(flag, 'hasInspector', given.hasInspector) ?? true,
  }
}

/** A model by its methods: it may come from another copy of the package. */
function modelOf(value: unknown): TextModel {
  const { chat, complete, render, model } = isObject(value) ? (value as Partial<TextModel>) : {}
  if ([chat, complete, render].every(method => typeof method === 'function') && isObject(model))
    return value as TextModel
  throw invalid('model', value, 'a TextModel: await TextModel.load(..)')
}

/** The model checks the draft, including a second model. The answer is never read, so nothing is computed. */
function draftOf(model: TextModel, draft: unknown): TextOptions['draft'] {
  if (draft === undefined) return undefined
  const read = draft as NonNullable<TextOptions['draft']>
  model.complete({ prompt: '-', draft: read })
  return read
}

function eventsOf(argument: string, value: unknown): WorkerEvents {
  const { endpoint, replayEndpoint } = known<WorkerEvents>(argument, value, EVENTS)
  return {
    endpoint: nonEmpty(`${argument}.endpoint`, endpoint),
    replayEndpoint: optional(nonEmpty, `${argument}.replayEndpoint`, replayEndpoint),
  }
}
