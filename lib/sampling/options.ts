// Sampling options: which they are, and how they are checked. The names follow vLLM and transformers.
import { arrayKind, count, fields, float, isArray, known, type Names, optional, whole } from '../errors/check.js'
import { invalid } from '../errors/errors.js'

/**
 * The tokens that may come next: their ids, or a `Uint32Array` with one bit for each token of the vocabulary, bit `id % 32` of word
 * `id / 32`; `undefined` for all.
 */
export type AllowedTokens = Iterable<number> | Uint32Array | undefined

/**
 * Options of sampling. They are applied in this order: penalties, `bias`, `allowed` and the grammar, then `temperature`, `topK`, `topP`, `minP`.
 * Log-probabilities are those before `temperature`.
 */
export interface SamplingOptions {
  /**
   * Logits are divided by this number: the larger it is, the more even the probabilities. 0 always takes the most probable token; of equal
   * tokens, the one with the lowest id. The default is 1 if `topK`, `topP`, `minP` or `seed` is given, otherwise 0.
   */
  readonly temperature?: number
  /** Keeps only this many of the most probable tokens; all by default. */
  readonly topK?: number
  /** Keeps only the most probable tokens that together have this probability, above 0 and at most 1; 1 by default. */
  readonly topP?: number
  /** Keeps only tokens whose probability is at least this fraction of the most probable token's, 0 to 1; 0 by default. */
  readonly minP?: number
  /** For each token in the prompt or the answer so far, a positive logit is divided by this number and a negative one multiplied by it; 1 by default. */
  readonly repetitionPenalty?: number
  /** Subtracted from the logit of each token that was generated; 0 by default. */
  readonly presencePenalty?: number
  /** Subtracted from the logit of a token once for each time it was generated; 0 by default. */
  readonly frequencyPenalty?: number
  /** Added to the logits of tokens, by id. -Infinity excludes a token. */
  readonly bias?: Readonly<Record<number, number>> | ReadonlyMap<number, number>
  /** The random seed, a whole number. The same seed gives the same tokens for the same logits, on every platform; by default it is random. */
  readonly seed?: number
  /** Returns the log-probability of each token, and of this many of the most probable ones; 0 for the token's own only. None by default. */
  readonly logprobs?: number
  /**
   * Returns the tokens that may come next, for rules that no grammar describes. It is called before each token with the tokens that
   * were generated. If tokens are drafted, it is also called with drafted tokens behind them, which may be rejected. So its result must
   * depend on its argument only. An error that it throws ends this generation and no other.
   */
  readonly allowed?: (tokens: readonly number[]) => AllowedTokens
}

/** The log-probabilities of a token and of the most probable ones in its place. */
export interface TokenLogprobs {
  readonly token: number
  /** The natural logarithm of its probability, before temperature, `topK`, `topP` and `minP`. */
  readonly logprob: number
  /** The most probable tokens. Of equal tokens, the one with the lowest id comes first. */
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

/** @internal Options after they were checked. */
export interface SamplingSettings {
  /** The order is defined in `src/sampling/sampler.rs`. */
  readonly numbers: Float64Array
  readonly ids: Uint32Array
  readonly bias: Float32Array
  readonly allowed: SamplingOptions['allowed']
  /** True if the most probable token is always taken. */
  readonly isGreedy: boolean
}

const LOGPROBS_MAX = 1000

/** @internal Reads the sampling options of a call whose option names were checked. */
export function readSampling(given: { readonly [K in keyof SamplingOptions]?: unknown }): SamplingSettings {
  const {
    temperature,
    topK,
    topP,
    minP,
    repetitionPenalty,
    presencePenalty,
    frequencyPenalty,
    bias,
    seed,
    logprobs,
    allowed,
  } = given
  if (allowed !== undefined && typeof allowed !== 'function')
    throw invalid('allowed', allowed, 'a function of the tokens so far')
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

/** @internal Checks an object that has only sampling options. */
export function readSamplingOptions(argument: string, value: unknown): SamplingSettings {
  return readSampling(known<SamplingOptions>(argument, value, SAMPLING_OPTIONS))
}

const fromZero = (argument: string, value: unknown): number =>
  float(argument, value, number => number >= 0, 'a finite number, 0 or more')
const overZero = (argument: string, value: unknown): number =>
  float(argument, value, number => number > 0, 'a finite number above 0')
const share = (argument: string, value: unknown): number =>
  float(argument, value, number => number > 0 && number <= 1, 'a number above 0, at most 1')
const upToOne = (argument: string, value: unknown): number =>
  float(argument, value, number => number >= 0 && number <= 1, 'a number from 0 to 1')

function randomSeed(): number {
  const [high = 0, low = 0] = crypto.getRandomValues(new Uint32Array(2))
  return (high >>> 11) * 2 ** 32 + low
}

function readBias(value: unknown): { ids: Uint32Array; bias: Float32Array } {
  const entries: [unknown, unknown][] = []
  const given = optional(fields<Record<string, unknown>>, 'bias', value)
  if (arrayKind(value) !== undefined || isArray(value))
    throw invalid('bias', value, 'an object or a Map, from token to number')
  if (given instanceof Map) entries.push(...(given as Map<unknown, unknown>))
  else if (given !== undefined) for (const [id, amount] of Object.entries(given)) entries.push([idOf(id), amount])
  const [ids, bias] = [new Uint32Array(entries.length), new Float32Array(entries.length)]
  for (const [place, [id, amount]] of entries.entries()) {
    if (typeof id !== 'number' || id >>> 0 !== id)
      throw invalid('bias', id, 'tokens that are whole numbers from 0 to 4294967295')
    ids[place] = id
    bias[place] =
      amount === -Infinity ? amount : float(`bias[${id}]`, amount, undefined, 'a finite number, or -Infinity')
  }
  return { ids, bias }
}

/** The number that a key stands for; a key in any other spelling than the number's own is refused later. */
function idOf(key: string): unknown {
  const id = Number(key)
  return String(id) === key ? id : key
}
