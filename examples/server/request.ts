// What a client may ask for, in the form of OpenAI's chat API: read field by field, or refused with the field's name.
import type { Message } from './text.js'

export interface ChatRequest {
  readonly messages: readonly Message[]
  readonly stream: boolean
  readonly includeUsage: boolean
  readonly count: number
  readonly stop: readonly string[]
  /** How many alternatives to tell with each token; undefined where log-probabilities were not asked for. */
  readonly logprobs: number | undefined
  /** What goes to the model. */
  readonly sampling: {
    readonly maxTokens?: number
    readonly temperature?: number
    readonly topP?: number
    readonly presencePenalty?: number
    readonly frequencyPenalty?: number
    readonly bias?: Record<number, number>
    readonly seed?: number
  }
}

/** A request that cannot be answered: the HTTP status, and what the client is told. */
export class Refusal extends Error {
  readonly status: number
  readonly param: string | null
  readonly code: string | null

  constructor(status: number, message: string, param: string | null = null, code: string | null = null) {
    super(message)
    this.status = status
    this.param = param
    this.code = code
  }

  get body(): object {
    const type = this.status < 500 ? 'invalid_request_error' : 'server_error'
    return { error: { message: this.message, type, param: this.param, code: this.code } }
  }
}

type Fields = Record<string, unknown>

const UNSUPPORTED = ['tools', 'tool_choice', 'functions', 'function_call', 'audio', 'modalities'] as const

export function readRequest(body: string, served: string): ChatRequest {
  const fields = parse(body)
  const model = fields['model']
  if (model !== undefined && model !== served) throw new Refusal(404, `the model ${JSON.stringify(model)} does not exist; this server has ${JSON.stringify(served)}`, 'model', 'model_not_found')
  for (const name of UNSUPPORTED) {
    const value = fields[name]
    if (value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0)) throw new Refusal(400, `${name} is not supported by this server`, name)
  }
  const format = fields['response_format'] as { type?: unknown } | null | undefined
  if (format !== undefined && format !== null && format.type !== 'text') throw new Refusal(400, 'response_format must be text on this server', 'response_format')
  const stream = flag(fields, 'stream')
  const options = (fields['stream_options'] ?? {}) as Fields
  const wantsLogprobs = flag(fields, 'logprobs')
  return {
    messages: messages(fields['messages']),
    stream,
    includeUsage: stream && options['include_usage'] === true,
    count: number(fields, 'n', 1, 16, true) ?? 1,
    stop: stops(fields['stop']),
    logprobs: wantsLogprobs ? (number(fields, 'top_logprobs', 0, 20, true) ?? 0) : undefined,
    sampling: defined({
      maxTokens: number(fields, 'max_completion_tokens', 1, 2 ** 31, true) ?? number(fields, 'max_tokens', 1, 2 ** 31, true),
      temperature: number(fields, 'temperature', 0, 2) ?? 1,
      topP: number(fields, 'top_p', 0, 1),
      presencePenalty: number(fields, 'presence_penalty', -2, 2),
      frequencyPenalty: number(fields, 'frequency_penalty', -2, 2),
      bias: bias(fields['logit_bias']),
      seed: number(fields, 'seed', 0, Number.MAX_SAFE_INTEGER, true),
    }),
  }
}

function parse(body: string): Fields {
  let value: unknown
  try {
    value = JSON.parse(body)
  } catch {
    throw new Refusal(400, 'the body is no JSON')
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Refusal(400, 'the body must be a JSON object')
  return value as Fields
}

function flag(fields: Fields, name: string): boolean {
  const value = fields[name] ?? false
  if (typeof value !== 'boolean') throw new Refusal(400, `${name} must be true or false`, name)
  return value
}

function number(fields: Fields, name: string, least: number, most: number, whole = false): number | undefined {
  const value = fields[name]
  if (value === undefined || value === null) return undefined
  if (typeof value === 'number' && value >= least && value <= most && (!whole || Number.isInteger(value))) return value
  throw new Refusal(400, `${name} must be ${whole ? 'an integer' : 'a number'} from ${least} to ${most}, got ${JSON.stringify(value)}`, name)
}

function messages(value: unknown): Message[] {
  if (!Array.isArray(value) || value.length === 0) throw new Refusal(400, 'messages must be a list with at least one message', 'messages')
  return value.map((message: unknown, index) => {
    const { role, content } = (message ?? {}) as Fields
    if (typeof role !== 'string') throw new Refusal(400, `messages[${index}].role must be a string`, `messages[${index}].role`)
    return { role, content: textOf(content, `messages[${index}].content`) }
  })
}

/** Content is text, or a list of parts of which each is text. */
function textOf(content: unknown, name: string): string {
  if (typeof content === 'string') return content
  const parts = Array.isArray(content) ? (content as { type?: unknown; text?: unknown }[]) : undefined
  if (parts?.every(({ type, text }) => type === 'text' && typeof text === 'string')) return parts.map(({ text }) => text).join('')
  throw new Refusal(400, `${name} must be text`, name)
}

function stops(value: unknown): string[] {
  if (value === undefined || value === null) return []
  const list: unknown[] = Array.isArray(value) ? value : [value]
  if (list.length <= 4 && list.every(text => typeof text === 'string' && text !== '')) return list as string[]
  throw new Refusal(400, 'stop must be a text or up to four of them, none of them empty', 'stop')
}

function bias(value: unknown): Record<number, number> | undefined {
  if (value === undefined || value === null) return undefined
  const entries = typeof value === 'object' ? Object.entries(value) : undefined
  if (entries?.every(([id, by]) => /^\d+$/.test(id) && typeof by === 'number' && by >= -100 && by <= 100)) return Object.fromEntries(entries) as Record<number, number>
  throw new Refusal(400, 'logit_bias must map token ids to numbers from -100 to 100', 'logit_bias')
}

type Defined<T> = { [Name in keyof T]?: Exclude<T[Name], undefined> }

/** Without the fields that are undefined. */
function defined<T extends object>(fields: T): Defined<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Defined<T>
}
