import { arrayKind, count, fields, float, isArray, known, type Names, optional, whole } from '../border/check.js'
import { invalid } from '../border/errors.js'

/**
 * Which tokens may come next: their ids, or a `Uint32Array` with a bit for each token of the vocabulary, bit `id % 32` of word
 * `id / 32`; `undefined` for all.
 */
export type AllowedTokens = Iterable<number> | Uint32Array | undefined

/**
 * How tokens are chosen. Options work in this order: penalties, `bias`, `allowed`, then `temperature`, `topK`, `topP`, `minP`; log-probabilities
 * are those before `temperature`.
 */
export interface SamplingOptions {
  /**
   * What logits are divided by: the larger, the more alike tokens are. 0 always takes the most probable token, the one with the lowest id
   * among equals. By default 1 where `topK`, `topP`, `minP` or `seed` is given, else 0.
   */
  readonly temperature?: number
  /** Only so many of the most probable tokens; all by default. */
  readonly topK?: number
  /** Only the most probable tokens that together have this probability, over 0 and at most 1; 1 by default. */
  readonly topP?: number
  /** Only tokens at least this many times as probable as the most probable one, 0 to 1; 0 by default. */
  readonly minP?: number
  /** Logits of tokens that the sequence has, its prompt too, are divided by this where they are over 0, else multiplied; 1 by default. */
  readonly repetitionPenalty?: number
  /** Taken off the logits of tokens that were generated; 0 by default. */
  readonly presencePenalty?: number
  /** Taken off the logits of tokens once for each time that they were generated; 0 by default. */
  readonly frequencyPenalty?: number
  /** Added to the logits of tokens, by id. -Infinity rules a token out. */
  readonly bias?: Readonly<Record<number, number>> | ReadonlyMap<number, number>
  /** A whole number. The same seed gives the same tokens for the same logits, on every platform; by default it is random. */
  readonly seed?: number
  /** Log-probabilities of each token, and of so many of the most probable ones; 0 for that of the token alone. None by default. */
  readonly logprobs?: number
  /**
   * Which tokens may come next, as a grammar says. It is called before each token, with those that were generated; where tokens are
   * drafted, also with drafted ones behind them that may be taken back. So it has to depend on its argument alone. What it throws ends
   * this generation and no other.
   */
  readonly allowed?: (tokens: readonly number[]) => AllowedTokens
}

/** The log-probability of a token, and of the most probable ones in its place. */
export interface TokenLogprobs {
  readonly token: number
  /** The natural logarithm of its probability, before temperature, `topK`, `topP` and `minP`. */
  readonly logprob: number
  /** The most probable tokens, the first of equals first. */
  readonly top: readonly { readonly token: number; readonly logprob: number }[]
}

/** @internal */
export const SAMPLING_OPTIONS: Names<SamplingOptions> = {
  temperature: 0,
  topK: 0,
  topP: 0,
  minP: 0,
  repetitionPenalty: 0,
  presencePenalty: 0,
  frequencyPenalty: 0,
  bias: 0,
  seed: 0,
  logprobs: 0,
  allowed: 0,
}

/** @internal Options that were read. */
export interface SamplingSettings {
  /** In the order that `src/sampling/sampler.rs` says. */
  readonly numbers: Float64Array
  readonly ids: Uint32Array
  readonly bias: Float32Array
  readonly allowed: SamplingOptions['allowed']
  /** Whether the most probable token is taken, always. */
  readonly isGreedy: boolean
}

const LOGPROBS_MAX = 1000

/** @internal Reads the options of sampling among those of a call, whose names were checked. */
export function readSampling(given: { readonly [K in keyof SamplingOptions]?: unknown }): SamplingSettings {
  const { temperature, topK, topP, minP, repetitionPenalty, presencePenalty, frequencyPenalty, bias, seed, logprobs, allowed } = given
  if (allowed !== undefined && typeof allowed !== 'function') throw invalid('allowed', allowed, 'a function of the tokens so far')
  const draws = [topK, topP, minP, seed].some(option => option !== undefined)
  const numbers = Float64Array.of(
    optional(fromZero, 'temperature', temperature) ?? (draws ? 1 : 0),
    optional((argument, value) => count(argument, value, 1), 'topK', topK) ?? 0,
    optional(share, 'topP', topP) ?? 1,
    optional(upToOne, 'minP', minP) ?? 0,
    optional(overZero, 'repetitionPenalty', repetitionPenalty) ?? 1,
    optional(float, 'presencePenalty', presencePenalty) ?? 0,
    optional(float, 'frequencyPenalty', frequencyPenalty) ?? 0,
    optional(whole, 'seed', seed) ?? randomSeed(),
    optional((argument, value) => count(argument, value, 0, LOGPROBS_MAX), 'logprobs', logprobs) ?? -1,
  )
  return { numbers, ...readBias(bias), allowed: allowed as SamplingOptions['allowed'], isGreedy: numbers[0] === 0 }
}

/** @internal Reads options of sampling alone. */
export function readSamplingOptions(argument: string, value: unknown): SamplingSettings {
  return readSampling(known<SamplingOptions>(argument, value, SAMPLING_OPTIONS))
}

const fromZero = (argument: string, value: unknown): number => float(argument, value, number => number >= 0, 'a finite number from 0 on')
const overZero = (argument: string, value: unknown): number => float(argument, value, number => number > 0, 'a finite number over 0')
const share = (argument: string, value: unknown): number => float(argument, value, number => number > 0 && number <= 1, 'a number over 0, at most 1')
const upToOne = (argument: string, value: unknown): number => float(argument, value, number => number >= 0 && number <= 1, 'a number from 0 to 1')

function randomSeed(): number {
  const [high = 0, low = 0] = crypto.getRandomValues(new Uint32Array(2))
  return (high >>> 11) * 2 ** 32 + low
}

function readBias(value: unknown): { ids: Uint32Array; bias: Float32Array } {
  const entries: [unknown, unknown][] = []
  const given = optional(fields<Record<string, unknown>>, 'bias', value)
  if (arrayKind(value) !== undefined || isArray(value)) throw invalid('bias', value, 'an object or a Map, from token to number')
  if (given instanceof Map) entries.push(...(given as Map<unknown, unknown>))
  else if (given !== undefined) for (const [id, amount] of Object.entries(given)) entries.push([idOf(id), amount])
  const [ids, bias] = [new Uint32Array(entries.length), new Float32Array(entries.length)]
  for (const [place, [id, amount]] of entries.entries()) {
    if (typeof id !== 'number' || id >>> 0 !== id) throw invalid('bias', id, 'tokens that are whole numbers from 0 to 4294967295')
    ids[place] = id
    bias[place] = amount === -Infinity ? amount : float(`bias[${id}]`, amount, undefined, 'a finite number, or -Infinity')
  }
  return { ids, bias }
}

/** The number that a key stands for; a key that is written otherwise than the number is none. */
function idOf(key: string): unknown {
  const id = Number(key)
  return String(id) === key ? id : key
}
