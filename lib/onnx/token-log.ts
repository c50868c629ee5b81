// Growing lists of token ids.
import { invalid } from '../errors/errors.js'
import { readTokens } from '../sequences/tokens.js'

/** @internal Token ids that grow at the end. O(1) per token; truncating costs nothing. */
export class TokenLog {
  #ids: Uint32Array
  #length: number

  constructor(ids: Uint32Array) {
    this.#ids = ids.slice()
    this.#length = ids.length
  }

  get length(): number {
    return this.#length
  }

  push(ids: ArrayLike<number>): void {
    const length = this.#length + ids.length
    if (length > this.#ids.length) {
      const grown = new Uint32Array(Math.max(2 * this.#ids.length, length, 16))
      grown.set(this.#ids.subarray(0, this.#length))
      this.#ids = grown
    }
    this.#ids.set(ids, this.#length)
    this.#length = length
  }

  /** Drops all ids behind the first `length`. */
  cut(length: number): void {
    this.#length = Math.min(this.#length, length)
  }

  /** The ids from `start` to `end` in place: valid until the next change. */
  view(start = 0, end: number = this.#length): Uint32Array {
    return this.#ids.subarray(start, Math.min(end, this.#length))
  }

  copy(start = 0, end: number = this.#length): Uint32Array {
    return this.view(start, end).slice()
  }
}

/** @internal True if two lists have the same ids: results for one are then valid for the other. */
export function isSameIds(one: Uint32Array, other: Uint32Array): boolean {
  return one.length === other.length && one.every((id, place) => id === other[place])
}

/** @internal Reads token ids of the model's vocabulary. */
export function readKnown(argument: string, tokens: unknown, vocabulary: number | undefined): Uint32Array {
  const ids = readTokens(argument, tokens)
  if (vocabulary === undefined) return ids
  const wrong = ids.findIndex(id => id >= vocabulary)
  if (wrong >= 0) throw invalid(`${argument}[${wrong}]`, ids[wrong], `a token from 0 to below ${vocabulary}`)
  return ids
}
