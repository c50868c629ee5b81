// Text to ids, in slices that do not block the event loop.
//
//     text -> sections at added tokens -> normalised -> words -> slices of words -> tokens -> ids
//
// The package tokenises a text in one call, which takes seconds for a megabyte. Here the model gets some thousand characters at a time. A word that is longer
// is split where no token of the vocabulary could span: between two characters that no token has in this order, so that the ids stay the same. Only a word
// without such a place, say 100,000 times the same letter, is split every 1,024 characters (192 of the same one), where its tokens may differ from those of
// the whole word.
import { setImmediate } from 'node:timers/promises'

import { messageOf } from '../errors/errors.js'
import { invalidTokenizer } from './files.js'
import type { AddedToken, HuggingFaceTokenizer } from './packages.js'

/** @internal A place between two sections: behind it, a text tokenises the same, whatever precedes it. */
export interface Mark {
  /** The place in the text, and in its ids. */
  readonly text: number
  readonly ids: number
  /** The added token that ends here, if there is one. */
  readonly token: number | undefined
}

/** @internal Ids of a text, and the places at which another text with the same start may go on. */
export interface Encoded {
  readonly ids: Uint32Array
  readonly marks: readonly Mark[]
}

/** Characters that the model gets at once. */
const SLICE = 4096
/** Characters of a word that is not split, and of a part that has no place to split at. */
const WORD_MAX = 1024
/** As many times the same character are split off, so that the package finds their tokens among those it remembers. */
const RUN_MAX = 192
/** Characters that are split into words at once, those around a place where a text may be cut, and the number of places to try. */
const PIECE = 16_384
const AROUND = 64
const PLACES_TRIED = 8
const PLACE = /\p{L}(?=[\s\p{P}])/gu
/** Milliseconds between two turns of the event loop. */
const TURN_MS = 8

interface Pass {
  readonly ids: number[]
  readonly marks: Mark[]
}

/** @internal */
export class Encoder {
  readonly #path: string
  readonly #tokenizer: HuggingFaceTokenizer
  readonly #before: readonly number[]
  readonly #after: readonly number[]
  /** Added tokens whose neighbours tokenise without them. */
  readonly #marking: ReadonlySet<AddedToken>
  readonly #maySplit: boolean
  #pairs: ReadonlySet<number> | undefined

  constructor(path: string, tokenizer: HuggingFaceTokenizer) {
    this.#path = path
    this.#tokenizer = tokenizer
    const place = '\u0000'
    const around = tokenizer.post_processor?.([place], null, true).tokens ?? [place]
    const at = around.indexOf(place)
    this.#before = around.slice(0, at).map(token => this.#idOf(token))
    this.#after = around.slice(at + 1).map(token => this.#idOf(token))
    const added = tokenizer.added_tokens.filter(({ content }) => content !== '')
    const isLonger = ({ content }: AddedToken): boolean =>
      added.some(other => other.content.length > content.length && other.content.startsWith(content))
    this.#marking = new Set(
      added.filter(token => !token.lstrip && !token.rstrip && !isNormalised(token, tokenizer) && !isLonger(token)),
    )
    const { end_of_word_suffix, continuing_subword_suffix } = tokenizer.model
    this.#maySplit = (end_of_word_suffix ?? '') === '' && (continuing_subword_suffix ?? '') === ''
  }

  /** The ids of a text, at once. */
  encode(text: string, addSpecialTokens: boolean): Uint32Array {
    const pass: Pass = { ids: [], marks: [] }
    for (const turn of this.#run(text, 0, pass)) void turn
    return this.#around(pass.ids, addSpecialTokens)
  }

  /**
   * The ids of a text from `start` on, a mark or 0, in several turns of the event loop. Places of marks count from the start of the text and of the ids.
   */
  async encodeFrom(text: string, start: number, isEnded: () => boolean = () => false): Promise<Encoded> {
    const pass: Pass = { ids: [], marks: [] }
    let turned = performance.now()
    for (const turn of this.#run(text, start, pass)) {
      void turn
      if (performance.now() - turned < TURN_MS) continue
      await setImmediate()
      if (isEnded()) break
      turned = performance.now()
    }
    return { ids: Uint32Array.from(pass.ids), marks: pass.marks }
  }

  /** The ids with those that the tokenizer puts around a text. */
  around(ids: Uint32Array): Uint32Array {
    return this.#around([...ids], true)
  }

  /** The places in a text between sections, from its start on. */
  places(text: string): number[] {
    const places: number[] = []
    let place = 0
    for (const section of this.#tokenizer.splitter_unnormalized.split(text)) {
      const isMarking = this.#isMarking(section)
      if (isMarking && place > 0 && places.at(-1) !== place) places.push(place)
      place += section.length
      if (isMarking) places.push(place)
    }
    return places
  }

  #around(ids: readonly number[], addSpecialTokens: boolean): Uint32Array {
    return Uint32Array.from(addSpecialTokens ? [...this.#before, ...ids, ...this.#after] : ids)
  }

  #isMarking(section: string): boolean {
    const added = this.#tokenizer.added_tokens_map.get(section)
    return added !== undefined && this.#marking.has(added)
  }

  #idOf(token: string): number {
    const { added_tokens_map: added, model } = this.#tokenizer
    return added.get(token)?.id ?? model.tokens_to_ids.get(token) ?? model.unk_token_id ?? 0
  }

  /** A part of the tokenizer may be invalid in a way that only some texts show. */
  *#run(text: string, start: number, pass: Pass): Generator<undefined, void, undefined> {
    try {
      yield* this.#turns(text, start, pass)
    } catch (cause) {
      throw invalidTokenizer(this.#path, `it failed to encode a text: ${messageOf(cause)}`, cause)
    }
  }

  *#turns(text: string, start: number, pass: Pass): Generator<undefined, void, undefined> {
    const { splitter_unnormalized, added_tokens_map: added, normalizer } = this.#tokenizer
    const sections = splitter_unnormalized.split(text.slice(start))
    let place = start
    for (const [index, whole] of sections.entries()) {
      const token = added.get(whole)
      if (token === undefined) {
        const section = trimmed(whole, added.get(sections[index - 1] ?? ''), added.get(sections[index + 1] ?? ''))
        const normal = section === '' || normalizer === null ? section : normalizer(section)
        yield* this.#section(normal, start === 0 ? index : index + 1, pass.ids)
      } else {
        if (this.#marking.has(token) && place > 0)
          pass.marks.push({ text: place, ids: pass.ids.length, token: undefined })
        pass.ids.push(token.id)
      }
      place += whole.length
      if (token !== undefined && this.#marking.has(token))
        pass.marks.push({ text: place, ids: pass.ids.length, token: token.id })
      yield
    }
  }

  *#section(normal: string, section_index: number, ids: number[]): Generator<undefined, void, undefined> {
    if (normal === '') return
    const { splitter_normalized, added_tokens_map: added, pre_tokenizer, model } = this.#tokenizer
    const parts = splitter_normalized.split(normal)
    for (const [index, whole] of parts.entries()) {
      const token = added.get(whole)
      if (token !== undefined) {
        ids.push(token.id)
        continue
      }
      const part = trimmed(whole, added.get(parts[index - 1] ?? ''), added.get(parts[index + 1] ?? ''))
      if (part === '') continue
      for (const piece of pre_tokenizer === null ? [part] : this.#pieces(part, section_index)) {
        const words = pre_tokenizer === null ? [piece] : pre_tokenizer(piece, { section_index })
        yield
        for (const slice of this.#slices(words)) {
          for (const name of model(slice)) ids.push(this.#idOf(name))
          yield
        }
      }
    }
  }

  /** A long text in pieces whose words are those of the whole text: it is cut behind letters where the words around the place stay the same. */
  *#pieces(text: string, section_index: number): Generator<string, void, undefined> {
    const words = (part: string): string[] => this.#tokenizer.pre_tokenizer?.(part, { section_index }) ?? []
    let start = 0
    for (let from = PIECE; from < text.length; from += PIECE) {
      // Only so many places are tried: a text without any has one long word.
      PLACE.lastIndex = from
      for (let tried = 0; tried < PLACES_TRIED; tried++) {
        const found = PLACE.exec(text)
        if (found === null || found.index > from + PIECE) break
        const place = found.index + found[0].length
        const [left, right] = [text.slice(place - AROUND, place), text.slice(place, place + AROUND)]
        const apart = [...words(left), ...words(right)]
        if (words(left + right).join('\0') !== apart.join('\0')) continue
        yield text.slice(start, place)
        start = place
        from = place
        break
      }
    }
    yield text.slice(start)
  }

  /** Words in slices of about the same length. */
  *#slices(words: readonly string[]): Generator<string[], void, undefined> {
    let slice: string[] = []
    let length = 0
    for (const word of words) {
      const isSplit = this.#maySplit && word.length > WORD_MAX
      for (const part of isSplit ? this.#parts(word) : [word]) {
        slice.push(part)
        length += part.length
        if (length < SLICE) continue
        yield slice
        slice = []
        length = 0
      }
    }
    if (slice.length > 0) yield slice
  }

  /** The parts of a long word, split where no token spans. */
  *#parts(word: string): Generator<string, void, undefined> {
    const pairs = (this.#pairs ??= pairsOf(this.#tokenizer.model.vocab))
    const { tokens_to_ids } = this.#tokenizer.model
    let start = 0
    let before = -1
    let isRun = true
    for (let place = 0; place < word.length;) {
      const code = word.codePointAt(place) as number
      // An unknown character is not split off: some models join it with unknown ones beside it.
      const isApart = !pairs.has(before * CODES + code) && tokens_to_ids.has(String.fromCodePoint(code))
      isRun &&= code === before || place === start
      if (place > start && (isApart || place - start >= (isRun ? RUN_MAX : WORD_MAX))) {
        yield word.slice(start, place)
        start = place
        isRun = true
      }
      before = code
      place += code > 0xffff ? 2 : 1
    }
    yield word.slice(start)
  }
}

const CODES = 0x110000

/** The pairs of neighbouring characters in all tokens. */
function pairsOf(vocab: readonly (string | undefined)[]): ReadonlySet<number> {
  const pairs = new Set<number>()
  for (const token of vocab) {
    let before = -1
    for (const character of token ?? '') {
      const code = character.codePointAt(0) as number
      if (before >= 0) pairs.add(before * CODES + code)
      before = code
    }
  }
  return pairs
}

function isNormalised(token: AddedToken, { normalizer }: HuggingFaceTokenizer): boolean {
  return token.normalized && normalizer !== null
}

/** A section without the whitespace that added tokens beside it take. */
function trimmed(section: string, before: AddedToken | undefined, behind: AddedToken | undefined): string {
  const left = before?.rstrip === true ? section.trimStart() : section
  return behind?.lstrip === true ? left.trimEnd() : left
}
