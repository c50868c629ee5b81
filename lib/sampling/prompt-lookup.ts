import type { NativePromptLookup } from '#binding'

import { binding } from '../loading/binding.js'

/** Tokens that are taken in at a call: about a millisecond, so that a long prompt never holds the main thread up. */
const SLICE = 16_384

/**
 * Drafts from the tokens of a sequence so far: what followed the last tokens when they last came before. A token costs well under a
 * microsecond, however many there are already.
 */
export class PromptLookup {
  readonly #native: NativePromptLookup
  /** Tokens that were not taken in yet, in order. */
  #waiting: Uint32Array[] = []

  /** Compares the last `shortest` to `longest` tokens, the longest first. */
  constructor({ shortest = 2, longest = 4 }: { readonly shortest?: number; readonly longest?: number } = {}) {
    this.#native = new binding.NativePromptLookup(shortest, longest)
  }

  /** Adds tokens, which this keeps. */
  push(tokens: Uint32Array | readonly number[]): void {
    if (tokens.length > 0) this.#waiting.push(Uint32Array.from(tokens))
  }

  /** `most` tokens that could come next, or none. While many tokens wait to be taken in, there are none. */
  draft(most: number): number[] {
    let left = SLICE
    while (left > 0 && this.#waiting.length > 0) {
      const tokens = this.#waiting[0] as Uint32Array
      this.#native.push(tokens.subarray(0, left))
      if (tokens.length > left) this.#waiting[0] = tokens.subarray(left)
      else this.#waiting.shift()
      left -= tokens.length
    }
    return this.#waiting.length > 0 ? [] : this.#native.draft(most)
  }

  dispose(): void {
    this.#native.dispose()
  }
}
