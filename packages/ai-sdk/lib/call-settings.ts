// Settings that the AI SDK has no name for: for all calls of a model, or for one call in `providerOptions.kvtide`.
import type { LanguageModelV4CallOptions } from '@ai-sdk/provider'
import type { ChatOptions } from 'kvtide/text'

import { invalid, isObject, known } from './arguments.js'

/** Settings beside those of the AI SDK. `providerOptions: { kvtide: { … } }` gives them for one call, and overrides those of the model. */
export interface CallSettings extends Pick<
  ChatOptions,
  | 'bias'
  | 'checkpoints'
  | 'draft'
  | 'grammar'
  | 'ignoreEndOfSequence'
  | 'minP'
  | 'repetitionPenalty'
  | 'salt'
  | 'saltFrom'
  | 'stopTokens'
  | 'templateOptions'
> {}

const NAMES: { readonly [K in keyof Required<CallSettings>]: true } = {
  bias: true,
  checkpoints: true,
  draft: true,
  grammar: true,
  ignoreEndOfSequence: true,
  minP: true,
  repetitionPenalty: true,
  salt: true,
  saltFrom: true,
  stopTokens: true,
  templateOptions: true,
}

/** Copies settings, and refuses names that are no setting: a mistyped `salt` would share a tenant's prompts. */
export function checkedSettings(argument: string, given: unknown): CallSettings {
  return known(argument, given, NAMES, 'setting')
}

/** Returns the settings of a call: the model's, overridden by the call's own. */
export function settingsOf(settings: CallSettings, { providerOptions }: LanguageModelV4CallOptions): CallSettings {
  if (providerOptions !== undefined && !isObject(providerOptions))
    throw invalid('providerOptions', providerOptions, 'an object')
  const own = providerOptions?.['kvtide']
  if (own === undefined) return settings
  const given = Object.entries(checkedSettings('providerOptions.kvtide', own)).filter(
    ([, value]) => value !== undefined,
  )
  // An undefined setting is one that was left out: an undefined salt must not end that of the model.
  return { ...settings, ...Object.fromEntries(given) }
}
