// Errors in the form of OpenAI's API: a status, a message, the parameter and a code. A message never contains an API key.
import { isKvTideError } from 'kvtide'

/** The `type` of an error, as OpenAI's clients know it. */
export type ErrorType = 'invalid_request_error' | 'rate_limit_error' | 'server_error'

/** An error response: the HTTP status, and the error that the client receives. */
export class Refusal extends Error {
  readonly status: number
  readonly param: string | null
  readonly code: string | null
  readonly headers: Readonly<Record<string, string>>

  constructor(
    status: number,
    message: string,
    param: string | null = null,
    code: string | null = null,
    headers: Readonly<Record<string, string>> = {},
  ) {
    super(message)
    this.status = status
    this.param = param
    this.code = code
    this.headers = headers
  }

  get type(): ErrorType {
    if (this.status === 429) return 'rate_limit_error'
    return this.status < 500 ? 'invalid_request_error' : 'server_error'
  }

  get body(): { readonly error: object } {
    return { error: { message: this.message, type: this.type, param: this.param, code: this.code } }
  }
}

/** Returns an error for a wrong value of a parameter. */
export function wrong(param: string, value: unknown, expected: string): Refusal {
  return new Refusal(400, `${param} must be ${expected}, got ${shown(value)}`, param, 'invalid_value')
}

/** Returns a value for use in an error message, in at most one line. */
export function shown(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return `a list of ${value.length}`
  if (typeof value === 'object' && value !== null) return 'an object'
  const text = JSON.stringify(value)
  return text.length <= 80 ? text : `${text.slice(0, 80)}…`
}

/** Returns an error that tells the client to retry after some seconds: 503 if the server is full, 429 if the client's own tenant is. */
export function overloaded(message: string, seconds = 1, status: 429 | 503 = 503): Refusal {
  const code = status === 429 ? 'rate_limit_exceeded' : 'overloaded'
  return new Refusal(status, message, null, code, { 'retry-after': String(Math.max(1, Math.ceil(seconds))) })
}

/** OpenAI's parameter names for the options of `kvtide/text`, by endpoint: the prompt has two names. */
const PARAMS: Readonly<Record<string, string>> = {
  maxTokens: 'max_completion_tokens',
  temperature: 'temperature',
  topP: 'top_p',
  topK: 'top_k',
  minP: 'min_p',
  repetitionPenalty: 'repetition_penalty',
  presencePenalty: 'presence_penalty',
  frequencyPenalty: 'frequency_penalty',
  bias: 'logit_bias',
  seed: 'seed',
  logprobs: 'top_logprobs',
  stop: 'stop',
  stopTokens: 'stop_token_ids',
  schema: 'response_format',
  grammar: 'response_format',
  tools: 'tools',
  toolChoice: 'tool_choice',
  messages: 'messages',
  prompt: 'prompt',
  templateOptions: 'chat_template_kwargs',
}

/** Codes of temporary errors: too little room at the moment, or the server is shutting down. */
const PASSING: ReadonlySet<string> = new Set(['OUT_OF_MEMORY', 'BUSY', 'DISPOSED'])

/** The parameter that an option of the model belongs to; `promptParam` is `messages` or `prompt`. */
function paramOf(argument: string, promptParam: string): string | undefined {
  const name = /^\w*/.exec(argument)?.[0] ?? ''
  if (name === 'tokens') return promptParam
  return Object.hasOwn(PARAMS, name) ? PARAMS[name] : undefined
}

/**
 * Converts any error into one that may be sent to a client. The messages of unexpected errors stay on the server, because they may contain paths: `report`
 * receives these errors.
 */
export function refusalOf(error: unknown, promptParam: string, report: (error: unknown) => void): Refusal {
  if (error instanceof Refusal) return error
  if (isKvTideError(error)) {
    if (error.code === 'INVALID_ARGUMENT') {
      const param = paramOf((error.details as { readonly argument: string }).argument, promptParam)
      if (param !== undefined) return new Refusal(400, error.message, param, 'invalid_value')
    }
    if (error.code === 'CONTEXT_OVERFLOW' || error.code === 'OUT_OF_BLOCKS')
      return new Refusal(400, error.message, promptParam, 'context_length_exceeded')
    if (error.code === 'TEMPLATE_FAILED') return new Refusal(400, error.message, 'messages', 'invalid_value')
    if ((error.code as string) === 'INVALID_GRAMMAR')
      return new Refusal(400, error.message, 'response_format', 'invalid_schema')
    if (error.code === 'ABORTED') return new Refusal(499, 'the client closed the request', null, 'aborted')
    if (PASSING.has(error.code)) return overloaded(error.message)
  }
  report(error)
  return new Refusal(500, 'the server failed', null, 'internal_error')
}
