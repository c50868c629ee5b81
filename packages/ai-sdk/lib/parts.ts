// The events of an answer as parts of the AI SDK's stream.
//
// Each text and each reasoning is a block with a start, deltas and an end; a call is a block whose deltas are its JSON. One block is open at a time.
import type { LanguageModelV4FinishReason, LanguageModelV4StreamPart, LanguageModelV4Usage } from '@ai-sdk/provider'
import type { TextEvent, TextFinishReason, Usage } from 'kvtide/text'

type Block =
  | { readonly type: 'text' | 'reasoning'; readonly id: string }
  | { readonly type: 'tool'; readonly id: string; readonly name: string; input: string }

const REASONS = { stop: 'stop', length: 'length', tool_calls: 'tool-calls' } as const

/** Turns events into parts, one by one. */
export class Parts {
  #open: Block | undefined
  #blocks = 0
  #reasoning = 0

  /** Returns the parts of an event. */
  of(event: TextEvent): LanguageModelV4StreamPart[] {
    switch (event.type) {
      case 'text':
      case 'reasoning':
        return this.#words(event)
      case 'tool-call': {
        const closed = this.#close()
        this.#open = { type: 'tool', id: event.id, name: event.name, input: '' }
        return [...closed, { type: 'tool-input-start', id: event.id, toolName: event.name }]
      }
      case 'tool-arguments':
        return this.#arguments(event.text)
      case 'finish':
        return [
          ...this.#close(),
          { type: 'finish', finishReason: reasonOf(event.finishReason), usage: this.#usage(event.usage) },
        ]
    }
  }

  #words({ type, text, tokens }: Extract<TextEvent, { type: 'text' | 'reasoning' }>): LanguageModelV4StreamPart[] {
    if (type === 'reasoning') this.#reasoning += tokens.length
    // A token of an incomplete character has no text yet.
    if (text === '') return []
    const parts: LanguageModelV4StreamPart[] = []
    if (this.#open?.type !== type) {
      parts.push(...this.#close())
      this.#open = { type, id: String(this.#blocks++) }
      parts.push({ type: `${type}-start`, id: this.#open.id })
    }
    return [...parts, { type: `${type}-delta`, id: this.#open.id, delta: text }]
  }

  #arguments(text: string): LanguageModelV4StreamPart[] {
    if (this.#open?.type !== 'tool' || text === '') return []
    this.#open.input += text
    return [{ type: 'tool-input-delta', id: this.#open.id, delta: text }]
  }

  /** Ends the block that is open. A call without arguments has those of an empty object. */
  #close(): LanguageModelV4StreamPart[] {
    const open = this.#open
    this.#open = undefined
    if (open === undefined) return []
    if (open.type !== 'tool') return [{ type: `${open.type}-end`, id: open.id }]
    const input = open.input.trim() === '' ? '{}' : open.input
    return [
      { type: 'tool-input-end', id: open.id },
      { type: 'tool-call', toolCallId: open.id, toolName: open.name, input },
    ]
  }

  #usage(usage: Usage): LanguageModelV4Usage {
    const { promptTokens, cachedTokens, generatedTokens } = usage
    return {
      inputTokens: {
        total: promptTokens,
        noCache: promptTokens - cachedTokens,
        cacheRead: cachedTokens,
        cacheWrite: undefined,
      },
      outputTokens: { total: generatedTokens, text: generatedTokens - this.#reasoning, reasoning: this.#reasoning },
      raw: { ...usage },
    }
  }
}

const reasonOf = (raw: TextFinishReason): LanguageModelV4FinishReason => ({ unified: REASONS[raw], raw })
