// The bytes of tokens: how the decoder of a `tokenizer.json` turns each token into text, token by token.
//
//     ByteLevel                    each character of a token stands for a byte                    GPT-2, Llama 3, Qwen
//     Replace, ByteFallback, Fuse  `▁` is a space, `<0x0A>` a byte                                Gemma, Llama 2, Mistral
//     Strip, Metaspace             as above; spaces at the start of the text are removed
//     WordPiece, BPEDecoder        spaces between tokens that do not continue a word
//
// Added tokens are their own text. `clean_up_tokenization_spaces` is not applied, because it changes what the model wrote: " ." would become ".".
// Tokens are looked up once: O(1) per token afterwards.
import { invalidTokenizer, isFields, type Fields } from './files.js'
import type { AddedToken, HuggingFaceTokenizer } from './packages.js'

/** @internal What a decoder does besides turning a token into bytes. */
export interface DecoderForm {
  /** The bytes of a token that was not added. */
  readonly bytesOf: (token: string) => Uint8Array
  /** The maximum number of spaces that are removed at the start of a text. */
  readonly stripped: number
  /** The bytes in front of a token; a token that continues a word has none. `undefined` if there are none anywhere. */
  readonly gap: ((token: string) => Uint8Array) | undefined
  /** True if a space at the end of a token is dropped at the end of the text. */
  readonly isEndTrimmed: boolean
}

const utf8 = new TextEncoder()
const NONE = new Uint8Array(0)
const SPACE = utf8.encode(' ')

/** @internal The bytes of all ids. Those that the vocabulary lacks have none. */
export class TokenBytes {
  readonly form: DecoderForm
  readonly #tokenizer: HuggingFaceTokenizer
  readonly #added = new Map<number, AddedToken>()
  readonly #known: (Uint8Array | undefined)[] = []

  constructor(file: string, { decoder }: Fields, tokenizer: HuggingFaceTokenizer) {
    this.form = formOf(file, decoder)
    this.#tokenizer = tokenizer
    for (const token of tokenizer.added_tokens) {
      const { id, content } = token as { readonly id: unknown; readonly content: unknown }
      if (!Number.isSafeInteger(id) || (id as number) < 0 || typeof content !== 'string')
        throw invalidTokenizer(file, 'an added token has no id or no text')
      this.#added.set(token.id, token)
    }
  }

  added(id: number): AddedToken | undefined {
    return this.#added.get(id)
  }

  /** The bytes of an id, without those in front of it. */
  of(id: number): Uint8Array {
    const known = this.#known[id]
    if (known !== undefined) return known
    const added = this.#added.get(id)
    const token = this.#tokenizer.model.vocab[id]
    const bytes =
      added !== undefined ? utf8.encode(added.content) : token === undefined ? NONE : this.form.bytesOf(token)
    if (id < this.#tokenizer.model.vocab.length) this.#known[id] = bytes
    return bytes
  }

  /** The bytes in front of an id that is not the first. */
  gapOf(id: number): Uint8Array {
    const { gap } = this.form
    if (gap === undefined) return NONE
    return gap(this.#added.get(id)?.content ?? this.#tokenizer.model.vocab[id] ?? '')
  }
}

interface Chain {
  steps: ((token: string) => string)[]
  isByteLevel: boolean
  hasBytes: boolean
  stripped: number
  gap: DecoderForm['gap']
  isEndTrimmed: boolean
}

function formOf(file: string, decoder: unknown): DecoderForm {
  const chain: Chain = {
    steps: [],
    isByteLevel: false,
    hasBytes: false,
    stripped: 0,
    gap: undefined,
    isEndTrimmed: false,
  }
  if (decoder === null || decoder === undefined) chain.gap = () => SPACE
  else add(file, chain, decoder)
  const { steps, isByteLevel, hasBytes, stripped, gap, isEndTrimmed } = chain
  const bytesOf = (token: string): Uint8Array => {
    if (isByteLevel) return byteLevel(token)
    const text = steps.reduce((before, step) => step(before), token)
    const [, hex] = (hasBytes && /^<0x([\dA-Fa-f]{2})>$/.exec(text)) || []
    return hex === undefined ? utf8.encode(text) : Uint8Array.of(Number.parseInt(hex, 16))
  }
  return { bytesOf, stripped, gap, isEndTrimmed }
}

function add(file: string, chain: Chain, decoder: unknown): void {
  const fields = isFields(decoder) ? decoder : {}
  const { type, content, replacement = '▁', prefix, suffix, start = 0, stop = 0 } = fields
  switch (type) {
    case 'Sequence':
      if (!Array.isArray(fields['decoders'])) break
      for (const part of fields['decoders'] as readonly unknown[]) add(file, chain, part)
      return
    case 'ByteLevel':
      chain.isByteLevel = true
      return
    case 'ByteFallback':
      chain.hasBytes = true
      return
    case 'Fuse':
      return
    case 'Replace':
      chain.steps.push(replacing(fields['pattern'], String(content ?? '')))
      return
    case 'Strip':
      if (content !== ' ' || stop !== 0) break
      chain.stripped = Number(start)
      return
    case 'Metaspace':
      chain.steps.push(token => token.replaceAll(String(replacement), ' '))
      chain.stripped = fields['prepend_scheme'] === 'never' ? 0 : 1
      return
    case 'WordPiece': {
      const continued = String(prefix ?? '##')
      chain.steps.push(token => (token.startsWith(continued) ? token.slice(continued.length) : token))
      chain.gap = token => (token.startsWith(continued) ? NONE : SPACE)
      return
    }
    case 'BPEDecoder': {
      const end = String(suffix ?? '</w>')
      chain.steps.push(token => token.replaceAll(end, ' '))
      chain.isEndTrimmed = true
      return
    }
  }
  throw invalidTokenizer(file, `its decoder ${JSON.stringify(decoder).slice(0, 80)} is not one of a language model`)
}

function replacing(pattern: unknown, content: string): (token: string) => string {
  const { String: text, Regex: source } = isFields(pattern) ? pattern : {}
  if (typeof source === 'string') {
    const expression = new RegExp(source, 'gu')
    return token => token.replaceAll(expression, () => content)
  }
  return token => token.replaceAll(String(text), () => content)
}

/** The characters that stand for bytes in byte-level vocabularies: printable ones for themselves, the others from U+0100 on. */
const BYTES = new Map<string, number>()
for (let byte = 0, more = 0; byte < 256; byte++) {
  const isPrinted = (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte !== 173)
  BYTES.set(String.fromCharCode(isPrinted ? byte : 256 + more++), byte)
}

function byteLevel(token: string): Uint8Array {
  const bytes = new Uint8Array(token.length)
  for (let place = 0; place < token.length; place++) {
    const byte = BYTES.get(token[place] as string)
    if (byte === undefined) return utf8.encode(token)
    bytes[place] = byte
  }
  return bytes
}
