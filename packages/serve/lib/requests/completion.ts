// The parameters of `POST /v1/completions`, the older endpoint, which continues texts without a chat template.
import { wrong } from '../refusal.js'
import { type Fields, flag, given, isId, number } from './fields.js'
import { refuseOthers } from './known.js'
import { checkContext, checkModel, type ModelFacts, readShared, type SharedRequest } from './sampling.js'

/** A text, or its token ids. */
export type Prompt = string | readonly number[]

/** A request for continuations of prompts. */
export interface CompletionRequest extends SharedRequest {
  readonly prompts: readonly Prompt[]
  /** True to return each prompt in front of its continuation. */
  readonly hasEcho: boolean
  readonly logprobs: number | undefined
}

/** The maximum number of prompts in a request. */
const PROMPTS_MAX = 128

/** The number of tokens if a request names none, as OpenAI documents it. */
const TOKENS = 16

/** Reads a request body. */
export function readCompletion(fields: Fields, facts: ModelFacts): CompletionRequest {
  checkModel(fields, facts)
  refuseOthers(fields, 'completions')
  const shared = readShared(fields, facts, ['max_tokens'])
  const hasEcho = flag(fields, 'echo')
  const logprobs = number(fields, 'logprobs', { least: 0, most: 20, whole: true })
  if (hasEcho && logprobs !== undefined)
    throw wrong('logprobs', logprobs, 'omitted with echo: prompts have no log-probabilities')
  return {
    ...shared,
    options: { ...shared.options, maxTokens: shared.options.maxTokens ?? TOKENS },
    prompts: readPrompts(given(fields, 'prompt'), facts),
    hasEcho,
    logprobs,
  }
}

function readPrompts(value: unknown, { vocabulary, contextLength }: ModelFacts): readonly Prompt[] {
  const expected = 'a text, a list of token ids, or a list of at most 128 of these'
  const one = (prompt: unknown): Prompt => {
    if (typeof prompt === 'string' && prompt !== '' && !/\p{Surrogate}/u.test(prompt)) return prompt
    if (Array.isArray(prompt) && prompt.length > 0 && prompt.every(id => isId(id, vocabulary))) {
      // A longer list would only take memory while it waits.
      checkContext(prompt.length, contextLength, 'prompt')
      return prompt as number[]
    }
    throw wrong('prompt', prompt, `${expected}, none of them empty`)
  }
  const isList = Array.isArray(value) && value.length > 0 && !value.every(item => typeof item === 'number')
  if (!isList) return [one(value)]
  if (value.length > PROMPTS_MAX) throw wrong('prompt', value, expected)
  return value.map(one)
}
