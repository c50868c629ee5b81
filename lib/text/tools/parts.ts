// The parts of an answer, as parsers give them: text, reasoning, calls of tools.

/** @internal */
export type AnswerPart =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  | { readonly type: 'tool-call'; readonly index: number; readonly id: string; readonly name: string }
  | { readonly type: 'tool-arguments'; readonly index: number; readonly text: string }

/** @internal Reads an answer as it is written. */
export interface AnswerParser {
  /** Adds text, and returns the parts that are certain. */
  push(text: string): AnswerPart[]
  /** Returns the parts that were held back. */
  end(): AnswerPart[]
}

/** @internal A parser of answers without reasoning and calls. */
export const PLAIN: AnswerParser = { push: text => (text === '' ? [] : [{ type: 'text', text }]), end: () => [] }

/** @internal The calls of an answer: their order and their ids. */
export class CallList {
  readonly #names: ReadonlySet<string>
  readonly #newId: () => string
  #next = 0

  constructor(names: Iterable<string>, newId: () => string) {
    this.#names = new Set(names)
    this.#newId = newId
  }

  /** True if a tool has this name. */
  has(name: unknown): name is string {
    return typeof name === 'string' && this.#names.has(name)
  }

  /** The number of calls so far. */
  get count(): number {
    return this.#next
  }

  /** Starts a call. Returns its part and its index. */
  start(name: string, id: string = this.#newId()): Extract<AnswerPart, { type: 'tool-call' }> {
    const index = this.#next++
    return { type: 'tool-call', index, id, name }
  }
}

/** @internal The length of the longest end of a text that is the start of one of these words, but not all of it. */
export function heldLength(text: string, words: readonly string[]): number {
  const most = Math.min(text.length, Math.max(0, ...words.map(word => word.length - 1)))
  for (let length = most; length > 0; length--) {
    const end = text.slice(text.length - length)
    if (words.some(word => word.length > length && word.startsWith(end))) return length
  }
  return 0
}

/** @internal The first of these words in a text, the longest if several start there. */
export function firstOf(
  text: string,
  words: readonly string[],
): { readonly word: string; readonly at: number } | undefined {
  let found: { word: string; at: number } | undefined
  for (const word of words) {
    const at = text.indexOf(word)
    if (at < 0) continue
    if (found === undefined || at < found.at || (at === found.at && word.length > found.word.length))
      found = { word, at }
  }
  return found
}
