// What the configs beside a model say about its answers: how to sample, and which ids end a turn.
//
// `generation_config.json` (else the `search` of `genai_config.json`) has the author's settings. As in vLLM and transformers, they are the defaults:
// temperature, top_k, top_p and min_p if `do_sample` is true, the repetition penalty always. An option of the call takes the place of the author's value;
// `temperature: 0` is greedy.
import type { SamplingOptions } from '../sampling/options.js'
import type { Fields, TextFiles } from './files.js'
import { isFields } from './files.js'
import type { Codec } from './codec.js'

/** @internal The sampling options that a config has defaults for. */
export type SamplingDefaults = Pick<SamplingOptions, 'temperature' | 'topK' | 'topP' | 'minP' | 'repetitionPenalty'>

/** The names of options in configs, and the values that change something. */
const NAMES: readonly (readonly [option: keyof SamplingDefaults, name: string, fits: (value: number) => boolean])[] = [
  ['temperature', 'temperature', value => value >= 0],
  ['topK', 'top_k', value => Number.isInteger(value) && value > 0],
  ['topP', 'top_p', value => value > 0 && value < 1],
  ['minP', 'min_p', value => value > 0 && value <= 1],
]

/** @internal The author's sampling options. Values that are out of range are left out. */
export function samplingDefaults({ generationConfig, genaiConfig }: TextFiles): SamplingDefaults {
  const search = genaiConfig['search']
  const config: Fields = Object.keys(generationConfig).length > 0 || !isFields(search) ? generationConfig : search
  const found: { -readonly [Name in keyof SamplingDefaults]: number } = {}
  if (config['do_sample'] === true) {
    for (const [option, name, fits] of NAMES) {
      const value = config[name]
      if (typeof value === 'number' && Number.isFinite(value) && fits(value)) found[option] = value
    }
    found.temperature ??= 1
  }
  const penalty = config['repetition_penalty']
  if (typeof penalty === 'number' && penalty > 0 && penalty !== 1 && Number.isFinite(penalty))
    found.repetitionPenalty = penalty
  return found
}

/** @internal The options of a call with the author's for those that are missing. */
export function withDefaults<T extends SamplingDefaults>(given: T, defaults: SamplingDefaults): T {
  if (given.temperature !== 0) return { ...defaults, ...given }
  // Greedy: nothing is cut from the distribution.
  const { repetitionPenalty } = defaults
  return { ...(repetitionPenalty === undefined ? {} : { repetitionPenalty }), ...given }
}

/** @internal The id of the tokenizer's `eos_token`, in a list; none if the configs don't name it. */
export function endOfText(codec: Codec): number[] {
  const name = codec.special('eos')
  const id = name === undefined ? undefined : codec.idOf(name)
  return id === undefined ? [] : [id]
}
