// Answers to a chat, in the form of `chat.completion` and `chat.completion.chunk`.
import type { TextEvent, TextFinishReason, TextLogprob, TextLogprobs, ToolCall } from 'kvtide/text'

import { type ChoiceForm, Chunks, type ResponseForm, type ResponseHead } from './form.js'

/** The form of responses to `POST /v1/chat/completions`. */
export class ChatForm implements ResponseForm {
  readonly #head: ResponseHead
  readonly #chunks: Chunks
  readonly #hasLogprobs: boolean

  constructor(head: ResponseHead, hasLogprobs: boolean) {
    this.#head = head
    this.#chunks = new Chunks('chat.completion.chunk', head)
    this.#hasLogprobs = hasLogprobs
  }

  whole(choices: readonly object[], usage: object): object {
    const { id, created, model, fingerprint } = this.#head
    return { id, object: 'chat.completion', created, model, system_fingerprint: fingerprint, choices, usage }
  }

  usage(usage: object): string {
    return this.#chunks.usage(usage)
  }

  choice(index: number): ChoiceForm {
    return new ChatChoice(index, this.#chunks, this.#hasLogprobs)
  }
}

class ChatChoice implements ChoiceForm {
  readonly #index: number
  readonly #chunks: Chunks
  readonly #hasLogprobs: boolean
  readonly #logprobs: object[] = []
  readonly #calls: { id: string; name: string; text: string }[] = []
  #text = ''
  #reasoning = ''
  #reason: TextFinishReason | null = null

  constructor(index: number, chunks: Chunks, hasLogprobs: boolean) {
    this.#index = index
    this.#chunks = chunks
    this.#hasLogprobs = hasLogprobs
  }

  begin(): string {
    return this.#chunk({ role: 'assistant', content: '' })
  }

  add(event: Exclude<TextEvent, { readonly type: 'finish' }>): string | undefined {
    if (event.type === 'tool-call') {
      const { index, id, name } = event
      this.#calls[index] = { id, name, text: '' }
      return this.#chunk({ tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] })
    }
    if (event.type === 'tool-arguments') {
      const { index, text } = event
      const call = this.#calls[index]
      if (call !== undefined) call.text += text
      return text === '' ? undefined : this.#chunk({ tool_calls: [{ index, function: { arguments: text } }] })
    }
    const entries = (event.logprobs ?? []).map(entry)
    if (this.#hasLogprobs) this.#logprobs.push(...entries)
    if (event.text === '' && entries.length === 0) return undefined
    if (event.type === 'reasoning') {
      this.#reasoning += event.text
      return this.#chunk({ reasoning_content: event.text }, entries)
    }
    this.#text += event.text
    return this.#chunk({ content: event.text }, entries)
  }

  finish(reason: TextFinishReason): string {
    this.#reason = reason
    return this.#chunk({})
  }

  whole(): object {
    const calls = this.#calls.map(({ id, name, text }): ToolCall => ({
      id,
      type: 'function',
      function: { name, arguments: text },
    }))
    return {
      index: this.#index,
      message: {
        role: 'assistant',
        content: this.#text === '' && calls.length > 0 ? null : this.#text,
        refusal: null,
        ...(this.#reasoning === '' ? {} : { reasoning_content: this.#reasoning }),
        ...(calls.length === 0 ? {} : { tool_calls: calls }),
      },
      finish_reason: this.#reason,
      logprobs: this.#hasLogprobs ? { content: this.#logprobs, refusal: null } : null,
    }
  }

  #chunk(delta: object, entries: readonly object[] = []): string {
    const logprobs = this.#hasLogprobs ? { content: entries, refusal: null } : null
    return this.#chunks.of(JSON.stringify({ index: this.#index, delta, finish_reason: this.#reason, logprobs }))
  }
}

/** Returns a token's log-probability and its alternatives' in OpenAI's form. From the bytes, a client can assemble a split character. */
function entry(of: TextLogprobs): object {
  return { ...alternative(of), top_logprobs: of.top.map(alternative) }
}

function alternative({ text, logprob, bytes }: TextLogprob): object {
  return { token: text, logprob: finite(logprob), bytes: [...bytes] }
}

/** JSON has no infinity: OpenAI's number for impossible tokens takes its place. */
export function finite(logprob: number): number {
  return Number.isFinite(logprob) ? logprob : -9999
}
