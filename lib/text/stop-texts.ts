// Stop texts: an answer ends in front of the first of them, and text is held back only while it may still become one.
//
// The first stop text that is complete ends the answer, whatever pieces the text comes in; of those that end in the same place, the longest. Costs O(1) per
// character for each stop text.

/** @internal */
export class StopTexts {
  readonly #stops: readonly string[]
  /** For each stop text, the lengths of its own beginnings that end at each of its characters, as in Knuth, Morris and Pratt. */
  readonly #falls: readonly (readonly number[])[]
  /** The number of characters of each stop text that the text ends with. */
  readonly #matched: number[]
  #held = ''
  #isStopped = false

  constructor(stops: readonly string[]) {
    this.#stops = stops
    this.#falls = stops.map(fallsOf)
    this.#matched = stops.map(() => 0)
  }

  /** True if a stop text has ended the answer. */
  get isStopped(): boolean {
    return this.#isStopped
  }

  /** Adds text, and returns the text that is certainly part of the answer. */
  push(text: string): string {
    if (this.#stops.length === 0) return text
    if (this.#isStopped) return ''
    const all = this.#held + text
    for (let place = this.#held.length; place < all.length; place++) {
      const stopped = this.#step(all[place] as string)
      if (stopped === 0) continue
      this.#isStopped = true
      this.#held = ''
      return all.slice(0, Math.max(place + 1 - stopped, 0))
    }
    const held = Math.max(...this.#matched)
    this.#held = all.slice(all.length - held)
    return all.slice(0, all.length - held)
  }

  /** Returns the text that was held back. No stop text begins in it any more. */
  end(): string {
    const held = this.#held
    this.#held = ''
    this.#matched.fill(0)
    return this.#isStopped ? '' : held
  }

  /** Adds a character. Returns the length of the longest stop text that ends with it, or 0. */
  #step(character: string): number {
    let stopped = 0
    for (const [which, stop] of this.#stops.entries()) {
      const falls = this.#falls[which] as readonly number[]
      let matched = this.#matched[which] as number
      while (matched > 0 && stop[matched] !== character) matched = falls[matched - 1] as number
      if (stop[matched] === character) matched += 1
      if (matched === stop.length) stopped = Math.max(stopped, matched)
      this.#matched[which] = matched
    }
    return stopped
  }
}

function fallsOf(stop: string): number[] {
  const falls = [0]
  for (let place = 1; place < stop.length; place++) {
    let length = falls[place - 1] as number
    while (length > 0 && stop[length] !== stop[place]) length = falls[length - 1] as number
    falls.push(stop[length] === stop[place] ? length + 1 : 0)
  }
  return falls
}
