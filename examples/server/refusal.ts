// Errors in the form of OpenAI's API: a status, a message, the parameter and a code.
import { isKvTideError } from 'kvtide'

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

  get body(): object {
    const type = this.status < 500 ? 'invalid_request_error' : 'server_error'
    return { error: { message: this.message, type, param: this.param, code: this.code } }
  }
}

/** Returns an error that tells the client to retry soon. */
export const overloaded = (message: string): Refusal =>
  new Refusal(503, message, null, 'overloaded', { 'retry-after': '1' })

/** OpenAI's parameter names for the options of `kvtide/onnx`. */
const PARAMS: Readonly<Record<string, string>> = {
  tokens: 'messages',
  maxTokens: 'max_completion_tokens',
  temperature: 'temperature',
  topP: 'top_p',
  presencePenalty: 'presence_penalty',
  frequencyPenalty: 'frequency_penalty',
  bias: 'logit_bias',
  seed: 'seed',
  logprobs: 'top_logprobs',
  stop: 'stop',
}

/** Codes of temporary errors: too little room at the moment, or the server is shutting down. */
const PASSING: ReadonlySet<string> = new Set(['OUT_OF_BLOCKS', 'OUT_OF_MEMORY', 'BUSY', 'DISPOSED', 'ABORTED'])

/** Converts any error into one that may be sent to a client. */
export function refusalOf(error: unknown): Refusal {
  if (error instanceof Refusal) return error
  if (isKvTideError(error)) {
    if (error.code === 'INVALID_ARGUMENT') {
      const { argument } = error.details as { readonly argument: string }
      return new Refusal(400, error.message, PARAMS[/^\w*/.exec(argument)?.[0] ?? ''] ?? null, 'invalid_value')
    }
    if (error.code === 'CONTEXT_OVERFLOW') return new Refusal(400, error.message, 'messages', 'context_length_exceeded')
    if (PASSING.has(error.code)) return overloaded(error.message)
    return new Refusal(500, error.message, null, error.code)
  }
  console.error(error)
  return new Refusal(500, 'the server failed')
}
