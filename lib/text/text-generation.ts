// Answers as their readers see them: pieces of text, events, or the whole.
import { checkInternal, checkThis } from '../border/owner.js'
import { invalid, KvTideError } from '../errors/errors.js'
import type { Usage } from '../onnx/usage.js'
import { Answer, type AnswerWork } from './answer.js'
import type { AssistantMessage, TextEvent, TextFinishReason } from './types.js'

/**
 * An answer, while it is written. It is read once: in a loop as pieces of its text, by {@link events}, or whole, by {@link message}, {@link text} or {@link
 * json}, which also return it after it was read to the end in another way.
 * Computing starts with the first read. It ends when it was read to the end, when a loop over it is left, when `return()` is called, or when its signal is
 * aborted. An answer that is never read costs nothing.
 */
export class TextGeneration implements AsyncIterable<string, undefined>, AsyncDisposable {
  readonly #answer: Answer
  readonly #events: AsyncGenerator<TextEvent, undefined, undefined>
  #isRead = false

  /** @internal */
  constructor(token: unknown, work: AnswerWork) {
    checkInternal(token, 'TextGeneration', 'chat(options) or complete(options) of a TextModel instead')
    this.#answer = new Answer(work)
    this.#events = this.#answer.events()
  }

  /** The reason for the end: `tool_calls` if the answer called tools. `undefined` before the end, and after an early one. */
  get finishReason(): TextFinishReason | undefined {
    TextGeneration.#check(this)
    return this.#answer.finishReason
  }

  /** The tokens and the times so far; final after the end. */
  get usage(): Usage {
    TextGeneration.#check(this)
    return this.#answer.usage
  }

  /** Returns the pieces of the answer's text, without reasoning and calls of tools. */
  [Symbol.asyncIterator](): AsyncIterableIterator<string, undefined> {
    TextGeneration.#check(this)
    return pieces(this.#read())
  }

  /** Returns all parts of the answer: text, reasoning, calls of tools, and at last the reason for the end. */
  events(): AsyncIterableIterator<TextEvent, undefined> {
    TextGeneration.#check(this)
    return this.#read()
  }

  /** Reads to the end, and returns the answer as a message, to be put behind the other messages of the next turn. */
  async message(): Promise<AssistantMessage> {
    TextGeneration.#check(this)
    await this.#readAll()
    return this.#answer.message
  }

  /** Reads to the end, and returns the text. */
  async text(): Promise<string> {
    TextGeneration.#check(this)
    await this.#readAll()
    return this.#answer.message.content ?? ''
  }

  /**
   * Reads to the end, and returns the text's JSON: the answer to an option `schema`.
   *
   * @throws KvTideError `INVALID_ARGUMENT` if the text is not JSON, for example because `maxTokens` cut it off
   */
  async json<T = unknown>(): Promise<T> {
    TextGeneration.#check(this)
    const text = await TextGeneration.prototype.text.call(this)
    try {
      return JSON.parse(text) as T
    } catch {
      const why =
        this.#answer.finishReason === 'length' ? ', and more maxTokens: it was cut off' : ', by the option schema'
      throw invalid('the answer', text, `JSON${why}`)
    }
  }

  /** Ends the answer. When the promise is fulfilled, nothing is computed for it any more. */
  async return(): Promise<void> {
    TextGeneration.#check(this)
    this.#isRead = true
    await this.#answer.end()
    await this.#events.return(undefined)
  }

  /** As {@link return}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    TextGeneration.#check(this)
    await TextGeneration.prototype.return.call(this)
  }

  static #check(self: unknown): void {
    checkThis(self, value => #answer in value, 'a TextGeneration')
  }

  /** Reads to the end, unless that was done before. */
  async #readAll(): Promise<void> {
    if (this.#answer.finishReason !== undefined) return
    for await (const event of this.#read()) void event
  }

  #read(): AsyncGenerator<TextEvent, undefined, undefined> {
    if (this.#isRead)
      throw new KvTideError('INVALID_ARGUMENT', 'this answer was read before: an answer is read once', READ)
    this.#isRead = true
    return this.#events
  }
}

const READ = { argument: 'this', value: 'an answer that was read', expected: 'an answer that is read once' }

async function* pieces(
  events: AsyncGenerator<TextEvent, undefined, undefined>,
): AsyncGenerator<string, undefined, undefined> {
  for await (const event of events) if (event.type === 'text' && event.text !== '') yield event.text
}
