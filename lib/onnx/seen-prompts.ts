// The prompts of a model that were computed before: the number of tokens that a new prompt has in common with one of them, whether or not the cache still has them.
//
//     prompt    [ block 0 | block 1 | block 2 | rest ]      a hash of each block and all before it
//     young     the hashes of the latest prompts            young and old change places once young is half full
//     old       those of prompts before them
//
// Hashes have 53 bits and are not keyed: two prompts that collide place a checkpoint needlessly, and nothing is found by them. Memory is constant, a prompt is
// O(tokens).
import type { Prompt } from '../sequences/shared-cache.js'

/** The number of places in a table, a power of two. */
const PLACES = 1 << 17

/** @internal The latest prompts, as hashes of their blocks: about a million tokens in blocks of 16. */
export class SeenPrompts {
  readonly #blockSize: number
  readonly #places: number
  #young: Float64Array
  #old: Float64Array
  #count = 0

  constructor(blockSize: number, places: number = PLACES) {
    this.#blockSize = blockSize
    this.#places = places
    this.#young = new Float64Array(places)
    this.#old = new Float64Array(places)
  }

  /** Adds a prompt. Returns the number of its tokens that a prompt before it had as well, in whole blocks. */
  add(ids: Uint32Array, { salt, saltFrom, extra }: Prompt): number {
    const size = this.#blockSize
    const starts = (extra ?? []).map(({ start, key }) => ({ start, key }))
    if (salt.length > 0) starts.push({ start: saltFrom, key: salt })
    let [one, other, seen] = [0x811c9dc5, 0x9e3779b9, 0]
    const mix = (value: number): void => {
      one = Math.imul(one ^ value, 0x01000193)
      other = Math.imul((other ^ value) + 0x7f4a7c15, 0x85ebca6b)
      other ^= other >>> 13
    }
    for (let start = 0; start + size <= ids.length; start += size) {
      for (const named of starts) {
        if (named.start < start || named.start >= start + size) continue
        mix(named.start)
        for (const byte of named.key) mix(byte)
      }
      for (let at = start; at < start + size; at++) mix(ids[at] as number)
      // 0 marks an empty place.
      const hash = (one >>> 0) * 2 ** 21 + (other >>> 11) || 1
      const isKnown = this.#has(this.#young, hash) || this.#has(this.#old, hash)
      if (isKnown && seen === start) seen = start + size
      this.#note(hash)
    }
    return seen
  }

  #note(hash: number): void {
    const place = this.#placeOf(this.#young, hash)
    if (this.#young[place] === hash) return
    this.#young[place] = hash
    this.#count += 1
    if (this.#count < this.#places / 2) return
    ;[this.#young, this.#old] = [this.#old.fill(0), this.#young]
    this.#count = 0
  }

  #has(table: Float64Array, hash: number): boolean {
    return table[this.#placeOf(table, hash)] === hash
  }

  /** The place of a hash, or an empty one. A table is never full. */
  #placeOf(table: Float64Array, hash: number): number {
    const mask = this.#places - 1
    let place = (hash % this.#places) & mask
    while (table[place] !== 0 && table[place] !== hash) place = (place + 1) & mask
    return place
  }
}
