// The tokenizer behind a `TextTokenizer`: text to ids and back, with the parts that prompts, answers and chat formats need.
import { arrayKind, isArray } from '../errors/check.js'
import { invalid, isKvTideError, messageOf } from '../errors/errors.js'
import { readTokens } from '../sequences/tokens.js'
import { corrected } from './corrected.js'
import { textOf, TokenText } from './detokenizer.js'
import { type Encoded, Encoder } from './encoder.js'
import { invalidTokenizer, isFields, type TextFiles } from './files.js'
import { type HuggingFaceTokenizer, tokenizerClass } from './packages.js'
import { TokenBytes } from './token-bytes.js'

/** @internal */
export class Codec {
  /** The number of ids, including those of added tokens. */
  readonly size: number
  /** The path of its `tokenizer.json`. */
  readonly path: string
  readonly encoder: Encoder
  readonly #bytes: TokenBytes
  readonly #ids: ReadonlyMap<string, number>
  readonly #files: TextFiles
  readonly #textOf: (id: number) => string | undefined

  constructor(files: TextFiles, tokenizer: HuggingFaceTokenizer) {
    this.size = tokenizer.model.vocab.length
    this.path = files.tokenizerPath
    this.encoder = new Encoder(files.tokenizerPath, tokenizer)
    this.#bytes = new TokenBytes(files.tokenizerPath, files.tokenizer, tokenizer)
    this.#ids = tokenizer.model.tokens_to_ids
    this.#files = files
    this.#textOf = id => tokenizer.model.vocab[id]
  }

  static async load(files: TextFiles): Promise<Codec> {
    const Tokenizer = await tokenizerClass()
    let made: HuggingFaceTokenizer
    try {
      made = new Tokenizer(corrected(files.tokenizer), files.tokenizerConfig)
    } catch (cause) {
      throw invalidTokenizer(files.tokenizerPath, `@huggingface/tokenizers refused it: ${messageOf(cause)}`, cause)
    }
    try {
      return new Codec(files, made)
    } catch (cause) {
      if (isKvTideError(cause)) throw cause
      throw invalidTokenizer(files.tokenizerPath, `its decoder or its tokens are invalid: ${messageOf(cause)}`, cause)
    }
  }

  /** The text of ids that were not checked before, at the start of a text. */
  decode(ids: unknown, isShown: (id: number) => boolean): string {
    if (!isArray(ids) && arrayKind(ids) === undefined) throw invalid('ids', ids, 'an array of ids')
    return textOf(this.#bytes, readTokens('ids', ids), { isShown, isStart: true })
  }

  /** The bytes of an id. */
  bytesOf(id: number): Uint8Array {
    return this.#bytes.of(id)
  }

  /** True for ids that have no text in an answer. */
  isSpecial(id: number): boolean {
    return this.#bytes.added(id)?.special === true
  }

  /** True for tokens besides those of the tokenizer's model. */
  isAdded(id: number): boolean {
    return this.#bytes.added(id) !== undefined
  }

  /** The id of a token by its text. */
  idOf(token: string): number | undefined {
    return this.#ids.get(token)
  }

  /** Turns ids into text one by one; text precedes it unless `isStart`, and only ids that are shown have text. */
  streamOf(isShown: (id: number) => boolean, isStart: boolean): TokenText {
    return new TokenText(this.#bytes, { isShown, isStart })
  }

  /** The text of ids behind other text, with the text of special tokens. */
  rawText(ids: Iterable<number>): string {
    return textOf(this.#bytes, ids, { isShown: () => true, isStart: false })
  }

  /** The number of whole characters of {@link rawText} up to each id, in UTF-16 units. */
  rawLengths(ids: Iterable<number>): number[] {
    const text = this.streamOf(() => true, false)
    let length = 0
    return Array.from(ids, id => (length += text.push(id).length))
  }

  /** The ids of a text from a mark on, in slices: see {@link Encoder.encodeFrom}. */
  encodeFrom(text: string, start: number, isEnded: () => boolean): Promise<Encoded> {
    return this.encoder.encodeFrom(text, start, isEnded)
  }

  /** The text of a special token that the configs name or whose id they have: `eos`, `bos`, ... */
  special(name: string): string | undefined {
    const { tokenizerConfig, specialTokens, generationConfig, config, genaiConfig } = this.#files
    for (const source of [tokenizerConfig, specialTokens]) {
      const given = source[`${name}_token`]
      const content = isFields(given) ? given['content'] : given
      if (typeof content === 'string') return content
    }
    const { model } = genaiConfig
    for (const source of [generationConfig, config, isFields(model) ? model : {}]) {
      const given = source[`${name}_token_id`]
      const id: unknown = Array.isArray(given) ? given[0] : given
      const text = typeof id === 'number' ? this.#textOf(id) : undefined
      if (text !== undefined) return text
    }
    return undefined
  }
}
