import { but, count, optional, type Kind } from './kinds.js'
import { ANY } from './rows-contiguous.js'

/** Objects without fields of their own, apart from arrays. */
export const bare = (outcome: string): Record<string, string> =>
  Object.fromEntries(
    Object.keys(ANY)
      .filter(name => !/array|Array of|detached|revoked|nothing/.test(name) || name === 'what looks like an array')
      .map(name => [name, outcome]),
  )

export const signal: Kind = { legal: {} }
const float: Kind = { legal: { '1.5': 'ok', '2^31': 'ok', '2^32 + 5': 'ok', '2^53': 'ok' } }
const signed: Kind = but(float, { '-1': 'ok' })
export const share: Kind = { legal: {} }

/** Tokens and numbers; both may be missing. */
const bias: Kind = { legal: { ...bare('ok'), nothing: 'ok', 'a proxy of an array': 'ok' } }

/** The options of sampling. */
export const sampling: Readonly<Record<string, Kind>> = {
  temperature: optional(float),
  topK: optional(count),
  topP: optional(share),
  minP: optional(share),
  repetitionPenalty: optional(float),
  presencePenalty: optional(signed),
  frequencyPenalty: optional(signed),
  bias: optional(bias),
  seed: optional({ legal: { '2^31': 'ok', '2^32 + 5': 'ok' } }),
  logprobs: optional(count),
  allowed: optional({ legal: { 'a function': 'ok' } }),
}
