// A model's tokenizer: text to ids, and back.
import { checkInternal, checkThis, settle } from '../border/owner.js'
import { type AsyncOptions, isAbortSignal } from '../border/stop-signal.js'
import { count, flag, known, type Names, optional, text as string } from '../errors/check.js'
import { checkSignal, invalid } from '../errors/errors.js'
import { Vocabulary, type VocabularyOptions } from '../sampling/vocabulary.js'
import type { TokenIds } from '../sequences/tokens.js'
import type { Codec } from './codec.js'
import type { Detokenizer } from './detokenizer.js'

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
const ENCODE_ASYNC: Names<EncodeOptions & AsyncOptions> = { ...ENCODE, signal: 0 }
const DECODE: Names<DecodeOptions> = { skipSpecialTokens: 0 }
const ID_MAX = 2 ** 32 - 1

/** The tokenizer of a model, as its `tokenizer.json` describes it. */
export class TextTokenizer {
  /** The number of ids, including those of added tokens. */
  declare readonly size: number
  /** The path of its `tokenizer.json`. */
  declare readonly path: string
  readonly #codec: Codec

  /** @internal */
  constructor(token: unknown, codec: unknown) {
    checkInternal(token, 'TextTokenizer', 'the property tokenizer of a TextModel instead')
    this.#codec = codec as Codec
    const { size, path } = this.#codec
    settle<TextTokenizer, 'size' | 'path'>(this, { size, path })
  }

  /** Returns the ids of a text. It takes about a second for a megabyte, which {@link encodeAsync} spends in short slices. */
  encode(text: string, options: EncodeOptions = {}): Uint32Array {
    const { encoder } = TextTokenizer.#codecOf(this)
    const { addSpecialTokens } = known<EncodeOptions>('options', options, ENCODE)
    return encoder.encode(string('text', text), optional(flag, 'addSpecialTokens', addSpecialTokens) ?? true)
  }

  /** As {@link encode}, in slices of a few milliseconds, between which the event loop gets its turns. */
  async encodeAsync(text: string, options: EncodeOptions & AsyncOptions = {}): Promise<Uint32Array> {
    const { encoder } = TextTokenizer.#codecOf(this)
    const { addSpecialTokens, signal } = known<EncodeOptions & AsyncOptions>('options', options, ENCODE_ASYNC)
    const hasSpecials = optional(flag, 'addSpecialTokens', addSpecialTokens) ?? true
    const stop = optional(readSignal, 'signal', signal)
    const whole = string('text', text)
    checkSignal(stop)
    const { ids } = await encoder.encodeFrom(whole, 0, () => stop?.aborted === true)
    checkSignal(stop)
    return hasSpecials ? encoder.around(ids) : ids
  }

  /** Returns the text of ids. Bytes that are no UTF-8 become U+FFFD. */
  decode(ids: TokenIds, options: DecodeOptions = {}): string {
    const codec = TextTokenizer.#codecOf(this)
    return codec.decode(ids, shownBy(codec, options))
  }

  /** Returns an object that turns ids into text one by one. */
  stream(options: DecodeOptions = {}): Detokenizer {
    const codec = TextTokenizer.#codecOf(this)
    return new TextStream(codec.streamOf(shownBy(codec, options), true))
  }

  /**
   * Reads the bytes of all tokens, for grammars: see `grammar` of `OnnxModel.generate`. A `TextModel` does this by itself.
   *
   * @param options `size`, the number of ids of the model if it has more than the tokenizer, and `endOfSequence`, the ids that end an answer
   */
  async vocabulary(options: VocabularyOptions = {}): Promise<Vocabulary> {
    return Vocabulary.load(TextTokenizer.#codecOf(this).path, options)
  }

  static #codecOf(self: TextTokenizer): Codec {
    checkThis(self, value => #codec in value, 'a TextTokenizer')
    return self.#codec
  }
}

/** @internal A detokenizer that checks its arguments. */
export class TextStream implements Detokenizer {
  readonly #text: Detokenizer

  constructor(text: Detokenizer) {
    this.#text = text
  }

  push(id: number): string {
    return TextStream.#of(this).push(count('id', id, 0, ID_MAX))
  }

  end(): string {
    return TextStream.#of(this).end()
  }

  static #of(self: TextStream): Detokenizer {
    checkThis(self, value => #text in value, 'the result of stream()')
    return self.#text
  }
}

function readSignal(argument: string, value: unknown): AbortSignal {
  if (!isAbortSignal(value)) throw invalid(argument, value, 'an AbortSignal')
  return value
}

/** The ids that have text, by the options of a call. */
function shownBy(codec: Codec, options: unknown): (id: number) => boolean {
  const { skipSpecialTokens } = known<DecodeOptions>('options', options, DECODE)
  const skips = optional(flag, 'skipSpecialTokens', skipSpecialTokens) ?? true
  return skips ? id => !codec.isSpecial(id) : () => true
}
