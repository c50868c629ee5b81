// Growing lists of token ids, with the positions in them that callers name.
import { count, isArray, list } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { readTokens } from '../sequences/tokens.js'

/** @internal Token ids that grow at the end. O(1) per token; truncating costs nothing. */
export class TokenLog {
  #ids: Uint32Array
  #length: number
  #named: readonly number[] = []

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
    if (this.#named.length > 0) this.#named = this.#named.filter(position => position <= this.#length)
  }

  /** Names positions at or before the end. */
  name(positions: readonly number[]): void {
    if (positions.length > 0) this.#named = [...new Set([...this.#named, ...positions])]
  }

  /** The positions that were named, in no particular order. */
  get named(): readonly number[] {
    return this.#named
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

/** @internal Reads positions in a list of token ids: numbers of tokens, ascending. */
export function readPositions(argument: string, positions: unknown): readonly number[] {
  if (positions === undefined) return []
  if (!isArray(positions)) throw invalid(argument, positions, 'an array of numbers of tokens')
  let before = 0
  return list(argument, positions, (name, value) => {
    const position = count(name, value, 1)
    if (position <= before) throw invalid(name, position, `more than ${before}, the position before it`)
    before = position
    return position
  })
}

/** @internal Refuses positions behind the end of a prompt. */
export function checkPositions(argument: string, positions: readonly number[], length: number): void {
  const last = positions.length - 1
  if (last >= 0 && (positions[last] as number) > length)
    throw invalid(`${argument}[${last}]`, positions[last], `at most ${length}, the number of tokens of the prompt`)
}

/** @internal Reads token ids of the model's vocabulary. */
export function readKnown(argument: string, tokens: unknown, vocabulary: number | undefined): Uint32Array {
  const ids = readTokens(argument, tokens)
  if (vocabulary === undefined) return ids
  const wrong = ids.findIndex(id => id >= vocabulary)
  if (wrong >= 0) throw invalid(`${argument}[${wrong}]`, ids[wrong], `a token from 0 to below ${vocabulary}`)
  return ids
}
