// Prompt lookup (n-gram speculation): drafts tokens from the text so far.
import type { NativePromptLookup } from '#binding'

import { binding } from '../loading/binding.js'

/** Tokens that one call indexes: about a millisecond of work, so that a long prompt never blocks the main thread. */
const SLICE = 16_384

/**
 * Prompt lookup: drafts the tokens that followed the last occurrence of the newest tokens. A token costs well under a microsecond,
 * for any number of tokens so far.
 */
export class PromptLookup {
  readonly #native: NativePromptLookup
  /** Tokens that are not indexed yet, in order. */
  #waiting: Uint32Array[] = []

  /** Compares the last `shortest` to `longest` tokens, the longest first. */
  constructor({ shortest = 2, longest = 4 }: { readonly shortest?: number; readonly longest?: number } = {}) {
    this.#native = new binding.NativePromptLookup(shortest, longest)
  }

  /** Adds tokens. They are copied. */
  push(tokens: Uint32Array | readonly number[]): void {
    if (tokens.length > 0) this.#waiting.push(Uint32Array.from(tokens))
  }

  /** Returns up to `most` tokens that could come next, or none. Returns none while many tokens are not indexed yet. */
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
