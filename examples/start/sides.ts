// The same requests without kvtide (plain-side.ts) and with it.
import { isKvTideError } from 'kvtide'
import type { ChatMessage, TextModel } from 'kvtide/text'

import { ANSWER } from './workload.js'

/** The answer to a request, and its cost. */
export interface Answer {
  readonly text: string
  /** The number of tokens of the prompt. */
  readonly prompt: number
  /** The number of cached prompt tokens. */
  readonly found: number
  /** The number of tokens that the model computed, of the prompt and of the answer. */
  readonly computed: number
  /** Milliseconds to the first token, and to the last. */
  readonly first: number
  readonly all: number
}

export interface Side extends AsyncDisposable {
  readonly name: string
  answer(messages: readonly ChatMessage[]): Promise<Answer>
  /** Returns the bytes of keys and values that this side holds now. */
  bytes(): number
}

/** kvtide: the cache finds the start of each prompt by itself. */
export function cachedSide(text: TextModel): Side {
  const { cache } = text.model
  return {
    name: 'kvtide',
    async answer(messages) {
      const started = performance.now()
      await using generation = text.chat({ messages, maxTokens: ANSWER, temperature: 0 })
      let [first, words] = [0, '']
      for await (const event of generation.events()) {
        if (first === 0) first = performance.now() - started
        if (event.type === 'text') words += event.text
      }
      const all = performance.now() - started
      const { promptTokens: prompt, cachedTokens: found, computedTokens: computed } = generation.usage
      return { text: words, prompt, found, computed, first, all }
    },
    bytes() {
      const { totalBlocks, freeBlocks } = cache.stats()
      return Math.round((totalBlocks - freeBlocks) * cache.blockSize * cache.bytesPerToken)
    },
    [Symbol.asyncDispose]: () => text.dispose(),
  }
}

/** Returns true if an error says that onnxruntime-node is missing or unusable. */
export function isRuntimeMissing(error: unknown): boolean {
  return isKvTideError(error)
    ? error.code === 'RUNTIME_UNAVAILABLE'
    : (error as { code?: string } | undefined)?.code === 'ERR_MODULE_NOT_FOUND'
}
