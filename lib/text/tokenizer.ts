// A model's tokenizer: text to ids, and back.
import { checkInternal, INTERNAL, settle } from '../border/owner.js'
import { arrayKind, flag, isArray, known, type Names, optional, text as string } from '../errors/check.js'
import { invalid, isKvTideError, messageOf } from '../errors/errors.js'
import { Vocabulary, type VocabularyOptions } from '../sampling/vocabulary.js'
import { readTokens, type TokenIds } from '../sequences/tokens.js'
import { type Detokenizer, textOf, TokenText } from './detokenizer.js'
import { type Encoded, Encoder } from './encoder.js'
import { invalidTokenizer, isFields, type TextFiles } from './files.js'
import { type HuggingFaceTokenizer, tokenizerClass } from './packages.js'
import { corrected } from './corrected.js'
import { TokenBytes } from './token-bytes.js'

/** Options of {@link TextTokenizer.encode}. */
export interface EncodeOptions {
  /** False to leave out the special tokens that the tokenizer puts around a text; true by default. Texts of a chat template have their own. */
  readonly addSpecialTokens?: boolean
}

/** Options of {@link TextTokenizer.decode} and {@link TextTokenizer.stream}. */
export interface DecodeOptions {
  /** False to include the text of special tokens; true by default. */
  readonly skipSpecialTokens?: boolean
}

const ENCODE: Names<EncodeOptions> = { addSpecialTokens: 0 }
const DECODE: Names<DecodeOptions> = { skipSpecialTokens: 0 }

/** The tokenizer of a model, as its `tokenizer.json` describes it. */
export class TextTokenizer {
  /** The number of ids, including those of added tokens. */
  declare readonly size: number
  /** The path of its `tokenizer.json`. */
  declare readonly path: string
  readonly #encoder: Encoder
  readonly #bytes: TokenBytes
  readonly #ids: ReadonlyMap<string, number>
  readonly #files: TextFiles
  readonly #textOf: (id: number) => string | undefined

  /** @internal */
  constructor(token: unknown, files: TextFiles, tokenizer: HuggingFaceTokenizer) {
    checkInternal(token, 'TextTokenizer', 'the property tokenizer of a TextModel instead')
    settle<TextTokenizer, 'size' | 'path'>(this, { size: tokenizer.model.vocab.length, path: files.tokenizerPath })
    this.#encoder = new Encoder(files.tokenizerPath, tokenizer)
    this.#bytes = new TokenBytes(files.tokenizerPath, files.tokenizer, tokenizer)
    this.#ids = tokenizer.model.tokens_to_ids
    this.#files = files
    this.#textOf = id => tokenizer.model.vocab[id]
  }

  /** @internal */
  static async load(files: TextFiles): Promise<TextTokenizer> {
    const Tokenizer = await tokenizerClass()
    let made: HuggingFaceTokenizer
    try {
      made = new Tokenizer(corrected(files.tokenizer), files.tokenizerConfig)
    } catch (cause) {
      throw invalidTokenizer(files.tokenizerPath, `@huggingface/tokenizers refused it: ${messageOf(cause)}`, cause)
    }
    try {
      return new TextTokenizer(INTERNAL, files, made)
    } catch (cause) {
      if (isKvTideError(cause)) throw cause
      throw invalidTokenizer(files.tokenizerPath, `its decoder or its tokens are invalid: ${messageOf(cause)}`, cause)
    }
  }

  /** Returns the ids of a text. It takes about a second for a megabyte: a chat's own texts are tokenised in slices. */
  encode(text: string, options: EncodeOptions = {}): Uint32Array {
    const { addSpecialTokens } = known<EncodeOptions>('options', options, ENCODE)
    return this.#encoder.encode(string('text', text), optional(flag, 'addSpecialTokens', addSpecialTokens) ?? true)
  }

  /** Returns the text of ids. Bytes that are no UTF-8 become U+FFFD. */
  decode(ids: TokenIds, options: DecodeOptions = {}): string {
    const isShown = this.#shown(options)
    if (!isArray(ids) && arrayKind(ids) === undefined) throw invalid('ids', ids, 'an array of ids')
    return textOf(this.#bytes, readTokens('ids', ids), { isShown, isStart: true })
  }

  /** Returns an object that turns ids into text one by one. */
  stream(options: DecodeOptions = {}): Detokenizer {
    return new TokenText(this.#bytes, { isShown: this.#shown(options), isStart: true })
  }

  /**
   * Reads the bytes of all tokens, for grammars: see `grammar` of `OnnxModel.generate`. A `TextModel` does this by itself.
   *
   * @param options `size`, the number of ids of the model if it has more than the tokenizer, and `endOfSequence`, the ids that end an answer
   */
  vocabulary(options: VocabularyOptions = {}): Promise<Vocabulary> {
    return Vocabulary.load(this.path, options)
  }

  /** @internal */
  get encoder(): Encoder {
    return this.#encoder
  }

  /** @internal The bytes of an id. */
  bytesOf(id: number): Uint8Array {
    return this.#bytes.of(id)
  }

  /** @internal True for ids that have no text in an answer. */
  isSpecial(id: number): boolean {
    return this.#bytes.added(id)?.special === true
  }

  /** @internal True for tokens besides those of the tokenizer's model. */
  isAdded(id: number): boolean {
    return this.#bytes.added(id) !== undefined
  }

  /** @internal The id of a token by its text. */
  idOf(token: string): number | undefined {
    return this.#ids.get(token)
  }

  /** @internal As {@link stream}; text precedes it unless `isStart`, and only ids that are shown have text. */
  streamOf(isShown: (id: number) => boolean, isStart: boolean): TokenText {
    return new TokenText(this.#bytes, { isShown, isStart })
  }

  /** @internal The text of ids behind other text, with the text of special tokens. */
  rawText(ids: Iterable<number>): string {
    return textOf(this.#bytes, ids, { isShown: () => true, isStart: false })
  }

  /** @internal The ids of a text from a mark on, in slices: see {@link Encoder.encodeFrom}. */
  encodeFrom(text: string, start: number, isEnded: () => boolean): Promise<Encoded> {
    return this.#encoder.encodeFrom(text, start, isEnded)
  }

  /** @internal The text of a special token that the configs name or whose id they have: `eos`, `bos`, ... */
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

  #shown(options: unknown): (id: number) => boolean {
    const { skipSpecialTokens } = known<DecodeOptions>('options', options, DECODE)
    const skips = optional(flag, 'skipSpecialTokens', skipSpecialTokens) ?? true
    return skips ? id => !this.isSpecial(id) : () => true
  }
}
