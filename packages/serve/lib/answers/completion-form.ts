// Continuations of texts, in the form of `text_completion`, which is the same in a stream.
import type { TextEvent, TextFinishReason, TextLogprobs } from 'kvtide/text'

import { finite } from './chat-form.js'
import { type ChoiceForm, Chunks, type ResponseForm, type ResponseHead } from './form.js'

/** The form of responses to `POST /v1/completions`. */
export class CompletionForm implements ResponseForm {
  readonly #head: ResponseHead
  readonly #chunks: Chunks
  readonly #hasLogprobs: boolean
  readonly #echo: (index: number) => string

  /** `echo` returns the text in front of an answer. It is called once the answer has begun. */
  constructor(head: ResponseHead, hasLogprobs: boolean, echo: (index: number) => string) {
    this.#head = head
    this.#chunks = new Chunks('text_completion', head)
    this.#hasLogprobs = hasLogprobs
    this.#echo = echo
  }

  whole(choices: readonly object[], usage: object): object {
    const { id, created, model, fingerprint } = this.#head
    return { id, object: 'text_completion', created, model, system_fingerprint: fingerprint, choices, usage }
  }

  usage(usage: object): string {
    return this.#chunks.usage(usage)
  }

  choice(index: number): ChoiceForm {
    return new CompletionChoice(index, this.#chunks, this.#hasLogprobs, () => this.#echo(index))
  }
}

class CompletionChoice implements ChoiceForm {
  readonly #index: number
  readonly #chunks: Chunks
  readonly #hasLogprobs: boolean
  readonly #echo: () => string
  readonly #logprobs: TextLogprobs[] = []
  #text = ''
  #reason: TextFinishReason | null = null

  constructor(index: number, chunks: Chunks, hasLogprobs: boolean, echo: () => string) {
    this.#index = index
    this.#chunks = chunks
    this.#hasLogprobs = hasLogprobs
    this.#echo = echo
  }

  begin(): string | undefined {
    const echo = this.#echo()
    return echo === '' ? undefined : this.#chunk(echo, [])
  }

  add(event: Exclude<TextEvent, { readonly type: 'finish' }>): string | undefined {
    if (event.type === 'tool-call' || event.type === 'tool-arguments') return undefined
    const { text, logprobs = [] } = event
    if (text === '' && logprobs.length === 0) return undefined
    const before = this.#text.length
    this.#text += text
    this.#logprobs.push(...logprobs)
    return this.#chunk(text, logprobs, before)
  }

  finish(reason: TextFinishReason): string {
    this.#reason = reason
    return this.#chunk('', [])
  }

  whole(): object {
    return {
      index: this.#index,
      text: this.#echo() + this.#text,
      finish_reason: this.#reason,
      logprobs: this.#hasLogprobs ? legacy(this.#logprobs, 0) : null,
    }
  }

  #chunk(text: string, logprobs: readonly TextLogprobs[], offset = 0): string {
    const given = this.#hasLogprobs ? legacy(logprobs, offset) : null
    return this.#chunks.of(JSON.stringify({ index: this.#index, text, finish_reason: this.#reason, logprobs: given }))
  }
}

/** Log-probabilities as the older endpoint has them: parallel lists. A text that two alternatives share keeps the larger number. */
function legacy(logprobs: readonly TextLogprobs[], offset: number): object {
  let place = offset
  const offsets = logprobs.map(({ text }) => {
    const own = place
    place += text.length
    return own
  })
  return {
    tokens: logprobs.map(({ text }) => text),
    token_logprobs: logprobs.map(({ logprob }) => finite(logprob)),
    top_logprobs: logprobs.map(({ top }) => {
      const by = new Map<string, number>()
      for (const { text, logprob } of top) by.set(text, Math.max(by.get(text) ?? -Infinity, finite(logprob)))
      return Object.fromEntries(by)
    }),
    text_offset: offsets,
  }
}
