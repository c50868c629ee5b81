// The ids of conversations that were computed, so that a chat that goes on reuses them.
//
// An answer's ids are seldom those of its text: a model writes `"Hel" + "lo"` where a tokenizer writes `"Hello"`. If the history is tokenised again, all
// tokens from there on are computed again. So the text of each prompt and its answer is remembered with its ids, and a later prompt that starts with this text
// takes them:
//
//     remembered   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>          -> 14 ids
//     prompt       <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n...
//                  \______________________ its ids are known ____________________________/\__ tokenised __/
//
// Texts are compared only at marks, where an added token separates sections that tokenise on their own (see encoder), so that the ids in front are valid. If a
// template changes the history, drops reasoning from it or trims answers, the longest start up to a mark that stayed the same counts. Texts of different
// tenants never match.
//
// Instead of texts, their SHA-256 is kept: memory is four bytes per id, bounded, the least recently used first. Looking up costs one hash of the prompt.
import { createHash, type Hash } from 'node:crypto'

interface Remembered {
  readonly ids: Uint32Array
  readonly tenant: string
  readonly length: number
}

/** @internal The start of a prompt that is known. */
export interface KnownStart {
  /** The number of characters. */
  readonly length: number
  readonly ids: Uint32Array
}

/** The default limit of remembered ids. */
const IDS_MAX = 4 * 2 ** 20

/** @internal */
export class Conversations {
  readonly #most: number
  /** By tenant, length and hash; the least recently used first. */
  readonly #starts = new Map<string, Remembered>()
  /** The lengths that each tenant has, with their number. */
  readonly #lengths = new Map<string, Map<number, number>>()
  #size = 0

  constructor(most: number = IDS_MAX) {
    this.#most = most
  }

  /** The number of ids that are remembered. */
  get size(): number {
    return this.#size
  }

  /** True if any text of a tenant is remembered. */
  has(tenant: string): boolean {
    return this.#lengths.has(tenant)
  }

  /** The longest known start of a text that ends at one of these places, in ascending order. */
  find(tenant: string, text: string, places: readonly number[]): KnownStart | undefined {
    const lengths = this.#lengths.get(tenant)
    if (lengths === undefined) return undefined
    const wanted = places.filter(place => lengths.has(place))
    const keys = keysOf(tenant, text, wanted)
    for (let which = wanted.length - 1; which >= 0; which--) {
      const key = keys[which] as string
      const found = this.#starts.get(key)
      if (found === undefined) continue
      this.#starts.delete(key)
      this.#starts.set(key, found)
      return { length: found.length, ids: found.ids }
    }
    return undefined
  }

  /** Remembers the ids of starts of a text. `places` are in ascending order; each start has the first `ids` of all. */
  remember(
    tenant: string,
    text: string,
    ids: Uint32Array,
    places: readonly { readonly text: number; readonly ids: number }[],
  ): void {
    const keys = keysOf(
      tenant,
      text,
      places.map(place => place.text),
    )
    for (const [which, place] of places.entries()) {
      const key = keys[which] as string
      this.#forget(key)
      if (place.ids > this.#most) continue
      const kept = { ids: ids.slice(0, place.ids), tenant, length: place.text }
      this.#starts.set(key, kept)
      this.#size += place.ids
      const lengths = this.#lengths.get(tenant) ?? new Map<number, number>()
      this.#lengths.set(tenant, lengths.set(place.text, (lengths.get(place.text) ?? 0) + 1))
    }
    for (const key of this.#starts.keys()) {
      if (this.#size <= this.#most) break
      this.#forget(key)
    }
  }

  #forget(key: string): void {
    const found = this.#starts.get(key)
    if (found === undefined) return
    this.#starts.delete(key)
    this.#size -= found.ids.length
    const lengths = this.#lengths.get(found.tenant) as Map<number, number>
    const left = (lengths.get(found.length) as number) - 1
    if (left > 0) lengths.set(found.length, left)
    else lengths.delete(found.length)
    if (lengths.size === 0) this.#lengths.delete(found.tenant)
  }
}

/** The keys of starts of a text, with one pass over it. */
function keysOf(tenant: string, text: string, places: readonly number[]): string[] {
  const hash: Hash = createHash('sha256').update(tenant).update('\0')
  let before = 0
  return places.map(place => {
    // Lengths count UTF-16 units, and places never split a character.
    hash.update(text.slice(before, place), 'utf16le')
    before = place
    return `${place}:${hash.copy().digest('base64')}`
  })
}
