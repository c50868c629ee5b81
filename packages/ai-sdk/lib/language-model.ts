// A TextModel as a language model of the AI SDK.
import { randomUUID } from 'node:crypto'

import type {
  LanguageModelV4,
  LanguageModelV4CallOptions,
  LanguageModelV4Content,
  LanguageModelV4GenerateResult,
  LanguageModelV4StreamPart,
  LanguageModelV4StreamResult,
} from '@ai-sdk/provider'
import type { TextEvent, TextGeneration, TextModel } from 'kvtide/text'

import { INTERNAL, invalid, isObject } from './arguments.js'
import type { CallSettings } from './call-settings.js'
import { chatOptionsOf, type Translated } from './chat-options.js'
import { sdkError } from './errors.js'
import { Parts } from './parts.js'

interface Answer extends Translated {
  readonly generation: TextGeneration
  readonly events: AsyncIterator<TextEvent, undefined>
  readonly first: IteratorResult<TextEvent, undefined>
  readonly response: { readonly id: string; readonly timestamp: Date; readonly modelId: string }
}

/** A language model of the AI SDK that answers in this process. All calls share the model's cache, also those that run at the same time. */
export class KvtideLanguageModel implements LanguageModelV4 {
  readonly specificationVersion = 'v4'
  readonly provider = 'kvtide'
  readonly modelId: string
  /** No URL is read: the AI SDK downloads files, and files that aren't text are refused. */
  readonly supportedUrls: Record<string, RegExp[]> = {}
  readonly #load: () => Promise<TextModel>
  readonly #settings: CallSettings

  /** @internal */
  constructor(token: unknown, modelId: string, load: () => Promise<TextModel>, settings: CallSettings) {
    if (token !== INTERNAL) throw invalid('arguments of new KvtideLanguageModel()', token, 'kvtide(model) instead')
    this.modelId = modelId
    this.#load = load
    this.#settings = settings
  }

  /** Answers a prompt, whole. */
  async doGenerate(options: LanguageModelV4CallOptions): Promise<LanguageModelV4GenerateResult> {
    const { generation, events, first, response, chat, warnings } = await KvtideLanguageModel.#answer(this, options)
    const parts = new Parts()
    const content: LanguageModelV4Content[] = []
    try {
      for (let next = first; next.done !== true; next = await events.next()) {
        for (const part of parts.of(next.value)) {
          if (part.type === 'finish') {
            const { finishReason, usage } = part
            return { content, finishReason, usage, warnings, response, request: { body: bodyOf(chat) } }
          }
          collect(content, part)
        }
      }
      throw new Error('the answer has no end')
    } catch (error) {
      throw sdkError(error, this.modelId, options)
    } finally {
      await generation.return()
    }
  }

  /** Answers a prompt, part by part. Errors before the first token reject the call, so that the AI SDK can try again; later ones are a part. */
  async doStream(options: LanguageModelV4CallOptions): Promise<LanguageModelV4StreamResult> {
    const { generation, events, first, response, chat, warnings } = await KvtideLanguageModel.#answer(this, options)
    const parts = new Parts()
    let next: IteratorResult<TextEvent, undefined> | undefined = first
    const stream = new ReadableStream<LanguageModelV4StreamPart>({
      start(controller) {
        controller.enqueue({ type: 'stream-start', warnings })
        controller.enqueue({ type: 'response-metadata', ...response })
      },
      // Reads until there is a part: a slow reader slows the generation down, and nothing is kept.
      pull: async controller => {
        try {
          for (;;) {
            const event: IteratorResult<TextEvent, undefined> = next ?? (await events.next())
            next = undefined
            if (event.done === true) return controller.close()
            const made = parts.of(event.value)
            for (const part of made) controller.enqueue(part)
            if (made.length > 0) return
          }
        } catch (error) {
          controller.enqueue({ type: 'error', error: sdkError(error, this.modelId, options) })
          controller.close()
        }
      },
      cancel: () => generation.return(),
    })
    return { stream, request: { body: bodyOf(chat) } }
  }

  /** Starts an answer, and waits for its first event. */
  static async #answer(self: KvtideLanguageModel, given: LanguageModelV4CallOptions): Promise<Answer> {
    if (!isObject(self) || !(#load in self)) throw invalid('this', self, 'a KvtideLanguageModel')
    if (!isObject(given)) throw invalid('options', given, 'the options of a call')
    // Each option is read once.
    const options = { ...given }
    const translated = chatOptionsOf(self.#settings, options)
    try {
      options.abortSignal?.throwIfAborted()
      const model = await orAborted(self.#load(), options.abortSignal)
      const generation = model.chat(translated.chat)
      const events = generation.events()
      const first = await events.next()
      const response = { id: randomUUID(), timestamp: new Date(), modelId: self.modelId }
      return { ...translated, generation, events, first, response }
    } catch (error) {
      throw sdkError(error, self.modelId, options)
    }
  }
}

/** Waits for a load, until a signal aborts. The load goes on for other calls, and its failure is then theirs. */
function orAborted<T>(loading: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return loading
  return new Promise((resolve, reject) => {
    const end = (): void => reject(signal.reason)
    signal.addEventListener('abort', end, { once: true })
    if (signal.aborted) end()
    loading.then(resolve, reject).finally(() => signal.removeEventListener('abort', end))
  })
}

/** Adds a part of the stream to the content of an answer. */
function collect(content: LanguageModelV4Content[], part: LanguageModelV4StreamPart): void {
  const last = content.at(-1)
  if (part.type === 'text-start') content.push({ type: 'text', text: '' })
  else if (part.type === 'reasoning-start') content.push({ type: 'reasoning', text: '' })
  else if ((part.type === 'text-delta' || part.type === 'reasoning-delta') && last !== undefined && 'text' in last)
    last.text += part.delta
  else if (part.type === 'tool-call') content.push(part)
}

/** The options of the chat, for the AI SDK's telemetry. */
function bodyOf(chat: Translated['chat']): unknown {
  const hidden = new Set(['signal', 'draft', 'salt'])
  return Object.fromEntries(Object.entries(chat).filter(([name]) => !hidden.has(name)))
}
