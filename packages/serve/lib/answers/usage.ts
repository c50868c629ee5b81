// The usage of a request in OpenAI's form: its prompts once, and the tokens of all answers.
import type { Usage } from 'kvtide/text'

/** The counts that OpenAI's clients read. */
export interface OpenAiUsage {
  readonly prompt_tokens: number
  readonly completion_tokens: number
  readonly total_tokens: number
  readonly prompt_tokens_details: { readonly cached_tokens: number }
  readonly completion_tokens_details: {
    readonly accepted_prediction_tokens: number
    readonly rejected_prediction_tokens: number
  }
}

/** Sums the usage of answers. Those of one prompt count it once: `isFirst` is true for the first answer to each prompt. */
export function usageOf(answers: readonly { readonly usage: Usage; readonly isFirst: boolean }[]): OpenAiUsage {
  const sum = (of: (usage: Usage) => number, among = answers): number =>
    among.reduce((total, { usage }) => total + of(usage), 0)
  const firsts = answers.filter(({ isFirst }) => isFirst)
  const prompt = sum(({ promptTokens }) => promptTokens, firsts)
  const completion = sum(({ generatedTokens }) => generatedTokens)
  const accepted = sum(({ acceptedTokens }) => acceptedTokens)
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: sum(({ cachedTokens }) => cachedTokens, firsts) },
    completion_tokens_details: {
      accepted_prediction_tokens: accepted,
      rejected_prediction_tokens: sum(({ draftedTokens }) => draftedTokens) - accepted,
    },
  }
}
