// Answers: the pieces of a text, or its events, one by one.
import { KvTideError } from '../errors/errors.js'
import type { AssistantMessage, TextEvent, TextFinishReason, Usage } from './types.js'

const unfinished = (): never => {
  throw new KvTideError('INTERNAL', 'kvtide/text is not built yet', {})
}

/** An answer. It is read once: as pieces of text, as events, or whole. */
export class TextGeneration implements AsyncIterable<string>, AsyncDisposable {
  /** The reason for the end; `undefined` before it. */
  get finishReason(): TextFinishReason | undefined {
    return unfinished()
  }
  /** The tokens and the times so far. */
  get usage(): Usage {
    return unfinished()
  }
  /** Pieces of the answer's text, without reasoning and calls of tools. */
  [Symbol.asyncIterator](): AsyncIterableIterator<string, undefined> {
    return unfinished()
  }
  /** All parts of the answer: text, reasoning, calls, and at last the reason for the end. */
  events(): AsyncIterableIterator<TextEvent, undefined> {
    return unfinished()
  }
  /** Reads to the end, and returns the answer as a message. */
  async message(): Promise<AssistantMessage> {
    return unfinished()
  }
  /** Reads to the end, and returns the text. */
  async text(): Promise<string> {
    return unfinished()
  }
  /** Reads to the end, and returns the text as JSON. */
  async json<T = unknown>(): Promise<T> {
    return unfinished()
  }
  /** Ends the answer early. */
  async return(): Promise<void> {
    return unfinished()
  }
  /** As {@link return}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    return unfinished()
  }
}
