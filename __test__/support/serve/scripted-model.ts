// A stand-in for a `TextModel` whose answers a test writes: it records the options of each call, and counts how far its answers were read.
import { KvTideError, PagedKvCache } from 'kvtide'
import type { ChatOptions, CompleteOptions, TextEvent, TextGeneration, TextModel, Usage } from 'kvtide/text'

/** The options of a call. */
export type Asked = Partial<ChatOptions & CompleteOptions>

/** Writes the events of an answer; the last one, `finish`, is added. */
export type Script = (asked: Asked, call: number) => Iterable<TextEvent> | AsyncIterable<TextEvent>

/** A text event of one token. */
export const said = (text: string): TextEvent => ({ type: 'text', text, tokens: [3] })

/** An answer. */
class ScriptedAnswer {
  finishReason: string | undefined
  isEnded = false
  #read = 0
  readonly #events: AsyncGenerator<TextEvent, undefined>
  readonly #prompt: number

  constructor(model: ScriptedModel, asked: Asked, prompt: number) {
    this.#prompt = prompt
    this.#events = this.#run(model, asked)
  }

  get usage(): Usage {
    return {
      promptTokens: this.#prompt,
      cachedTokens: 0,
      computedTokens: this.#prompt + this.#read,
      generatedTokens: this.#read,
      draftedTokens: 0,
      acceptedTokens: 0,
      firstTokenMs: 1,
      tokensPerSecond: 100,
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<string, undefined> {
    for await (const event of this.#events) if (event.type === 'text') yield event.text
    return undefined
  }

  events(): AsyncGenerator<TextEvent, undefined> {
    return this.#events
  }

  async return(): Promise<void> {
    if (!this.isEnded) await this.#events.return(undefined)
    this.isEnded = true
  }

  async *#run(model: ScriptedModel, asked: Asked): AsyncGenerator<TextEvent, undefined> {
    const { signal } = asked
    const aborted = new Promise<never>((_, reject) => {
      const end = (): void => reject(new KvTideError('ABORTED', 'aborted by its signal', {}))
      if (signal?.aborted === true) end()
      signal?.addEventListener('abort', end)
    })
    aborted.catch(() => {})
    try {
      const script = model.script(asked, model.asked.length - 1)
      const events = Symbol.asyncIterator in script ? script[Symbol.asyncIterator]() : script[Symbol.iterator]()
      for (let finish: TextEvent | undefined; finish === undefined;) {
        const { value, done } = await Promise.race([events.next(), aborted])
        const most = asked.maxTokens ?? Infinity
        if (done === true || this.#read >= most)
          finish = { type: 'finish', finishReason: done === true ? 'stop' : 'length', usage: this.usage }
        else {
          if ('tokens' in value) this.#read += value.tokens.length
          model.events += 1
          yield value
        }
        if (finish !== undefined) yield finish
      }
    } finally {
      this.isEnded = true
      model.running -= 1
      model.onEnd?.()
    }
    return undefined
  }
}

/** The stand-in. */
export class ScriptedModel {
  readonly name = 'scripted'
  readonly hasTemplate = true
  readonly toolFamily = 'hermes'
  readonly contextLength = 4096
  readonly model: { readonly cache: PagedKvCache } & Readonly<Record<string, unknown>> = {
    cache: new PagedKvCache({ capacity: 8, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 2 }),
    namespace: 'scripted',
    vocabularySize: 320,
    backend: 'graph',
  }
  readonly tokenizer = {
    encode: (text: string): Uint32Array => Uint32Array.from(new TextEncoder().encode(text), byte => byte + 3),
    encodeAsync: async (text: string): Promise<Uint32Array> => this.tokenizer.encode(text),
    decode: (ids: Iterable<number>): string => new TextDecoder().decode(Uint8Array.from(ids, id => id - 3)),
  }
  /** The options of all calls. */
  readonly asked: Asked[] = []
  script: Script
  /** The number of answers that have begun and not ended, and of events that were read. */
  running = 0
  events = 0
  onEnd: (() => void) | undefined

  constructor(script: Script = () => [said('Hello'), said(' there')]) {
    this.script = script
  }

  /** The stand-in as what a server takes. */
  get asModel(): TextModel {
    return this as unknown as TextModel
  }

  render({ messages }: Pick<ChatOptions, 'messages'>): string {
    return messages.map(({ role, content }) => `${role}: ${String(content)}\n`).join('')
  }

  chat(options: ChatOptions): TextGeneration {
    return this.#answer(options, this.render(options).length)
  }

  complete(options: CompleteOptions): TextGeneration {
    return this.#answer(options, options.prompt.length)
  }

  #answer(options: Asked, prompt: number): TextGeneration {
    this.asked.push(options)
    this.running += 1
    return new ScriptedAnswer(this, options, prompt) as unknown as TextGeneration
  }
}
