// The parameters that both endpoints share: sampling, the end of an answer, streaming.
import type { Grammar } from 'kvtide/text'

import { Refusal, shown, wrong } from '../refusal.js'
import { bias, defined, type Fields, flag, group, ids, number, stops, words } from './fields.js'
import { formatOf } from './format.js'

/** The properties of the model that a request has to fit. */
export interface ModelFacts {
  /** The names that clients may send. */
  readonly names: readonly string[]
  /** The size of the vocabulary, if known. */
  readonly vocabulary: number | undefined
  /** The maximum number of tokens of a prompt, if known. */
  readonly contextLength: number | undefined
}

/** The options of a generation that follow from a request, for both endpoints. */
export interface SharedOptions {
  readonly maxTokens?: number
  readonly temperature?: number
  readonly topP?: number
  readonly topK?: number
  readonly minP?: number
  readonly repetitionPenalty?: number
  readonly presencePenalty?: number
  readonly frequencyPenalty?: number
  readonly bias?: Readonly<Record<number, number>>
  readonly stop?: readonly string[]
  readonly stopTokens?: readonly number[]
  readonly ignoreEndOfSequence?: boolean
  readonly grammar?: Grammar
}

/** The parameters of a request that both endpoints have. */
export interface SharedRequest {
  readonly stream: boolean
  readonly includeUsage: boolean
  /** The number of answers. */
  readonly count: number
  /** The seed of the first answer. */
  readonly seed: number | undefined
  readonly options: SharedOptions
  /** vLLM's `cache_salt`: keeps the cached prompts of requests apart within a tenant. */
  readonly cacheSalt: string | undefined
}

/** The maximum number of answers to a request. */
const ANSWERS_MAX = 16

/** Reads the parameters that both endpoints have. `maxParams` are the names of the limit of tokens, the preferred one first. */
export function readShared(fields: Fields, { vocabulary }: ModelFacts, maxParams: readonly string[]): SharedRequest {
  const stream = flag(fields, 'stream')
  const streaming = group(fields, 'stream_options')
  if (streaming !== undefined && !stream) throw wrong('stream_options', streaming, 'omitted unless stream is true')
  const includeUsage = streaming !== undefined && flag(streaming, 'include_usage', 'stream_options.include_usage')
  const maxTokens = maxParams.map(name => number(fields, name, { least: 1, most: 2 ** 31 - 1, whole: true }))
  const stop = stops(fields)
  const stopTokens = ids(fields, 'stop_token_ids', vocabulary)
  const salt = words(fields, 'cache_salt')
  if (salt === '') throw wrong('cache_salt', salt, 'a text that is not empty')
  return {
    stream,
    includeUsage,
    count: number(fields, 'n', { least: 1, most: ANSWERS_MAX, whole: true }) ?? 1,
    seed: number(fields, 'seed', { least: -Number.MAX_SAFE_INTEGER, most: Number.MAX_SAFE_INTEGER, whole: true }),
    cacheSalt: salt,
    options: defined({
      maxTokens: maxTokens.find(value => value !== undefined),
      temperature: number(fields, 'temperature', { least: 0, most: 2 }) ?? 1,
      topP: number(fields, 'top_p', { over: 0, most: 1 }),
      topK: topK(fields),
      minP: number(fields, 'min_p', { least: 0, most: 1 }),
      repetitionPenalty: number(fields, 'repetition_penalty', { over: 0, most: 10 }),
      presencePenalty: number(fields, 'presence_penalty', { least: -2, most: 2 }),
      frequencyPenalty: number(fields, 'frequency_penalty', { least: -2, most: 2 }),
      bias: bias(fields, vocabulary),
      stop: stop.length === 0 ? undefined : stop,
      stopTokens,
      ignoreEndOfSequence: flag(fields, 'ignore_eos') ? true : undefined,
      grammar: formatOf(fields),
    }),
  }
}

/** Returns `top_k`; 0 and -1 stand for all tokens, as for vLLM. */
function topK(fields: Fields): number | undefined {
  const value = number(fields, 'top_k', { least: -1, most: 2 ** 31 - 1, whole: true })
  return value === undefined || value <= 0 ? undefined : value
}

/** Returns the seed of the answer with an index. */
export function seedOf(seed: number | undefined, index: number): number | undefined {
  return seed === undefined ? undefined : Number(BigInt.asUintN(53, BigInt(seed) + BigInt(index)))
}

/** Returns the model's name, if the request has one. */
function modelOf(fields: Fields): string | undefined {
  const value = Object.hasOwn(fields, 'model') ? fields['model'] : undefined
  if (value === undefined || typeof value === 'string') return value
  throw wrong('model', value, 'a text')
}

/** Refuses a request for a model that is not served here. */
export function checkModel(fields: Fields, { names }: ModelFacts): void {
  const model = modelOf(fields)
  if (model === undefined || names.includes(model)) return
  throw new Refusal(
    404,
    `the model ${shown(model)} does not exist; this server has ${JSON.stringify(names[0])}`,
    'model',
    'model_not_found',
  )
}

/** Refuses a prompt that is longer than the model's context. */
export function checkContext(tokens: number, contextLength: number | undefined, param: 'messages' | 'prompt'): void {
  if (contextLength === undefined || tokens <= contextLength) return
  throw new Refusal(
    400,
    `${tokens} tokens exceed the model's context of ${contextLength} tokens`,
    param,
    'context_length_exceeded',
  )
}
