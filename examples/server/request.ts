// The parameters of a request, in the form of OpenAI's chat API: read field by field, or refused with the field's name.
import { Refusal } from './refusal.js'
import type { Message } from './text.js'

export interface ChatRequest {
  readonly messages: readonly Message[]
  readonly stream: boolean
  readonly includeUsage: boolean
  readonly count: number
  readonly stop: readonly string[]
  /** The number of alternatives to return with each token; undefined if the client wants no log-probabilities. */
  readonly logprobs: number | undefined
  /** The name of the parameter that limits the answer, if there is one. */
  readonly maxTokensParam: string | undefined
  /** The sampling options for the model. */
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

type Fields = Readonly<Record<string, unknown>>

const UNSUPPORTED = ['tools', 'tool_choice', 'functions', 'function_call', 'audio', 'modalities'] as const

/** Token ids of every model are below this number. */
const IDS = 2 ** 32

const ROLES: readonly unknown[] = ['system', 'developer', 'user', 'assistant']

/** The properties of the server that a request has to fit. */
export interface Limits {
  readonly name: string
  /** The size of the model's vocabulary, if known. */
  readonly vocabulary: number | undefined
}

export function readRequest(body: string, { name: served, vocabulary }: Limits): ChatRequest {
  const fields = parse(body)
  const model = fields['model']
  if (model !== undefined && typeof model !== 'string') throw wrong('model', model, 'a text')
  if (model !== undefined && model !== served)
    throw new Refusal(
      404,
      `the model ${shown(model)} does not exist; this server has ${JSON.stringify(served)}`,
      'model',
      'model_not_found',
    )
  for (const name of UNSUPPORTED) {
    const value = fields[name]
    if (value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0))
      throw new Refusal(400, `${name} is not supported by this server`, name, 'unsupported_parameter')
  }
  const format = group(fields, 'response_format')
  if (format !== undefined && format['type'] !== 'text')
    throw wrong('response_format', format['type'], 'of type text on this server')
  const stream = flag(fields, 'stream')
  const options = group(fields, 'stream_options')
  if (options !== undefined && !stream) throw wrong('stream_options', options, 'omitted unless stream is true')
  const includeUsage = options !== undefined && flag(options, 'include_usage', 'stream_options.include_usage')
  const wantsLogprobs = flag(fields, 'logprobs')
  const top = number(fields, 'top_logprobs', { least: 0, most: 20, whole: true })
  if (top !== undefined && !wantsLogprobs) throw wrong('top_logprobs', top, 'omitted unless logprobs is true')
  const maxTokensParam = ['max_completion_tokens', 'max_tokens'].find(
    name => fields[name] !== undefined && fields[name] !== null,
  )
  const [completion, older] = ['max_completion_tokens', 'max_tokens'].map(name =>
    number(fields, name, { least: 1, most: 2 ** 31 - 1, whole: true }),
  )
  return {
    messages: messages(fields['messages']),
    stream,
    includeUsage,
    count: number(fields, 'n', { least: 1, most: 16, whole: true }) ?? 1,
    stop: stops(fields['stop']),
    logprobs: wantsLogprobs ? (top ?? 0) : undefined,
    maxTokensParam,
    sampling: defined({
      maxTokens: completion ?? older,
      temperature: number(fields, 'temperature', { least: 0, most: 2 }) ?? 1,
      topP: number(fields, 'top_p', { over: 0, most: 1 }),
      presencePenalty: number(fields, 'presence_penalty', { least: -2, most: 2 }),
      frequencyPenalty: number(fields, 'frequency_penalty', { least: -2, most: 2 }),
      bias: bias(fields['logit_bias'], vocabulary ?? IDS),
      seed: number(fields, 'seed', { least: 0, most: Number.MAX_SAFE_INTEGER, whole: true }),
    }),
  }
}

function wrong(param: string, value: unknown, expected: string): Refusal {
  return new Refusal(400, `${param} must be ${expected}, got ${shown(value)}`, param, 'invalid_value')
}

/** Returns a value for use in an error message, in at most one line. */
function shown(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object' && value !== null) return 'an object'
  const text = JSON.stringify(value)
  return text.length <= 80 ? text : `${text.slice(0, 80)}…`
}

function parse(body: string): Fields {
  let value: unknown
  try {
    value = JSON.parse(body)
  } catch {
    throw new Refusal(400, 'the body is not JSON')
  }
  const fields = record(value)
  if (fields === undefined) throw new Refusal(400, `the body must be a JSON object, got ${shown(value)}`)
  return fields
}

/** Returns the fields of a value if it is an object and not a list. */
function record(value: unknown): Fields | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Fields) : undefined
}

/** Returns a field that is an object, or `undefined`. */
function group(fields: Fields, name: string): Fields | undefined {
  const value = fields[name]
  if (value === undefined || value === null) return undefined
  const found = record(value)
  if (found === undefined) throw wrong(name, value, 'an object')
  return found
}

function flag(fields: Fields, name: string, param = name): boolean {
  const value = fields[name] ?? false
  if (typeof value !== 'boolean') throw wrong(param, value, 'true or false')
  return value
}

interface Range {
  readonly least?: number
  /** Instead of `least`: more than this. */
  readonly over?: number
  readonly most: number
  readonly whole?: boolean
}

function number(
  fields: Fields,
  name: string,
  { least = -Infinity, over = -Infinity, most, whole = false }: Range,
): number | undefined {
  const value = fields[name]
  if (value === undefined || value === null) return undefined
  if (
    typeof value === 'number' &&
    value >= least &&
    value > over &&
    value <= most &&
    (!whole || Number.isInteger(value))
  )
    return value
  const from = over === -Infinity ? `from ${least} to ${most}` : `over ${over} and at most ${most}`
  throw wrong(name, value, `${whole ? 'an integer' : 'a number'} ${from}`)
}

function messages(value: unknown): Message[] {
  if (!Array.isArray(value) || value.length === 0) throw wrong('messages', value, 'a list with at least one message')
  return value.map((given: unknown, index) => {
    const name = `messages[${index}]`
    const message = record(given)
    if (message === undefined) throw wrong(name, given, 'an object with role and content')
    const { role, content } = message
    if (!ROLES.includes(role)) throw wrong(`${name}.role`, role, `one of ${ROLES.join(', ')}`)
    return { role: role as string, content: textOf(content, `${name}.content`) }
  })
}

/** Returns the text of a content: a text, or a list of text parts. */
function textOf(content: unknown, name: string): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content) || content.length === 0) throw wrong(name, content, 'a text, or a list of parts')
  const texts = content.map((given: unknown, index) => {
    const part = record(given)
    if (part === undefined) throw wrong(`${name}[${index}]`, given, 'an object with type and text')
    if (part['type'] !== 'text') throw wrong(`${name}[${index}].type`, part['type'], 'text on this server')
    if (typeof part['text'] !== 'string') throw wrong(`${name}[${index}].text`, part['text'], 'a text')
    return part['text']
  })
  return texts.join('')
}

function stops(value: unknown): string[] {
  if (value === undefined || value === null) return []
  const list: unknown[] = Array.isArray(value) ? value : [value]
  if (list.length <= 4 && list.every(text => typeof text === 'string' && text !== '')) return list as string[]
  throw wrong('stop', value, 'a text or up to four of them, none of them empty')
}

function bias(value: unknown, ids: number): Record<number, number> | undefined {
  if (value === undefined || value === null) return undefined
  const given = record(value)
  if (given === undefined) throw wrong('logit_bias', value, 'an object')
  for (const [id, by] of Object.entries(given)) {
    const isKnown = String(Number(id) >>> 0) === id && Number(id) < ids
    if (isKnown && typeof by === 'number' && by >= -100 && by <= 100) continue
    throw new Refusal(
      400,
      `logit_bias must map token ids below ${ids} to numbers from -100 to 100, got ${shown(by)} for ${shown(id)}`,
      'logit_bias',
      'invalid_value',
    )
  }
  return given as Record<number, number>
}

type Defined<T> = { [Name in keyof T]?: Exclude<T[Name], undefined> }

/** Returns the fields that are not undefined. */
function defined<T extends object>(fields: T): Defined<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Defined<T>
}
