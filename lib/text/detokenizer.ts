// Streaming detokenisation: ids to text, one by one.
//
// Invariants: text that was returned never changes; a character whose bytes come in several tokens is returned when it is whole; the pieces of ids, joined,
// are the text of all ids at once. Bytes that are no UTF-8 become U+FFFD as in TextDecoder. Costs O(bytes of the token) per token.
import type { TokenBytes } from './token-bytes.js'

/** Text that grows with each token: never half a character, and no earlier text changes. */
export interface Detokenizer {
  /** Adds a token, and returns the text that is final now: of one token or of several, or none. */
  push(id: number): string
  /** Returns the rest: U+FFFD for bytes that are no whole character. */
  end(): string
}

/** @internal What a text of ids shows. */
export interface Shown {
  /** False for ids that have no text: special tokens. */
  readonly isShown: (id: number) => boolean
  /** False if text precedes it, so that nothing is removed at its start. */
  readonly isStart: boolean
}

const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
const NONE = new Uint8Array(0)
const SPACE = 0x20

/** @internal */
export class TokenText implements Detokenizer {
  readonly #bytes: TokenBytes
  readonly #shown: Shown
  /** The bytes of an incomplete character. */
  #rest: Uint8Array = NONE
  #strip: number
  #isFirst: boolean
  /** True if a space is held back, which is dropped at the end of the text. */
  #hasSpace = false

  constructor(bytes: TokenBytes, shown: Shown) {
    this.#bytes = bytes
    this.#shown = shown
    this.#strip = shown.isStart ? bytes.form.stripped : 0
    this.#isFirst = shown.isStart
  }

  push(id: number): string {
    if (!this.#shown.isShown(id)) return ''
    let bytes = this.#bytes.of(id)
    if (!this.#isFirst) bytes = joined(this.#bytes.gapOf(id), bytes)
    this.#isFirst = false
    if (this.#bytes.form.isEndTrimmed) bytes = this.#held(bytes)
    while (this.#strip > 0 && bytes.length > 0) {
      if (bytes[0] !== SPACE) this.#strip = 0
      else {
        bytes = bytes.subarray(1)
        this.#strip -= 1
      }
    }
    if (bytes.length === 0) return ''
    const all = joined(this.#rest, bytes)
    const whole = wholeLength(all)
    this.#rest = all.subarray(whole)
    return whole === 0 ? '' : decoder.decode(all.subarray(0, whole))
  }

  end(): string {
    const rest = this.#rest
    this.#rest = NONE
    this.#hasSpace = false
    return rest.length === 0 ? '' : decoder.decode(rest)
  }

  /** The bytes with the space that was held back, without the one at their end. */
  #held(bytes: Uint8Array): Uint8Array {
    const all = this.#hasSpace && bytes.length > 0 ? joined(Uint8Array.of(SPACE), bytes) : bytes
    if (bytes.length > 0) this.#hasSpace = all.at(-1) === SPACE
    return this.#hasSpace && bytes.length > 0 ? all.subarray(0, -1) : all
  }
}

/** @internal The text of all ids at once. */
export function textOf(bytes: TokenBytes, ids: Iterable<number>, shown: Shown): string {
  const text = new TokenText(bytes, shown)
  let all = ''
  for (const id of ids) all += text.push(id)
  return all + text.end()
}

function joined(first: Uint8Array, second: Uint8Array): Uint8Array {
  if (first.length === 0) return second
  if (second.length === 0) return first
  const both = new Uint8Array(first.length + second.length)
  both.set(first)
  both.set(second, first.length)
  return both
}

/** The number of bytes in front of a character that is incomplete at the end: a decoder that starts there gives the same text. */
function wholeLength(bytes: Uint8Array): number {
  const { length } = bytes
  for (let back = 1; back <= Math.min(3, length); back++) {
    const byte = bytes[length - back] as number
    if (byte < 0x80) return length
    if (byte < 0xc0) continue
    const size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2
    return size > back ? length - back : length
  }
  return length
}
