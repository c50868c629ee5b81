// The vocabulary of a tokenizer: the bytes of each token, which grammars are matched with. The addon reads it once, and compiles grammars for it: a compiled
// grammar is kept for later generations, the least recently used one is dropped first.
import { stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'

import type { NativeGrammar, NativeVocabulary } from '#binding'

import { checkInternal, checkThis, INTERNAL, settle } from '../border/owner.js'
import { arrayKind, count, fields, isArray, known, list, type Names, optional, typedArray } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { readPath } from '../files/source.js'
import { binding } from '../loading/binding.js'
import { readTokens } from '../sequences/tokens.js'
import type { GrammarText } from './grammar.js'

/** Options of {@link Vocabulary.load}. */
export interface VocabularyOptions {
  /** The number of the model's logits, if it is larger than the number of tokens: ids behind the last token are never allowed. */
  readonly size?: number
  /** Ids that end a text, besides those that the model declares. */
  readonly endOfSequence?: readonly number[] | Uint32Array
}

/** Options of {@link Vocabulary.ofTokens}. */
export type TokensOptions = Pick<VocabularyOptions, 'endOfSequence'>

const LOAD: Names<VocabularyOptions> = { size: 0, endOfSequence: 0 }
const OF_TOKENS: Names<TokensOptions> = { endOfSequence: 0 }

/** The number of compiled grammars that a vocabulary keeps. */
const COMPILED = 64
/** The kinds of tokens, as the addon numbers them. */
const [TEXT, SPECIAL, UNUSED] = [0, 1, 2]

let isVocabulary: (value: unknown) => value is Vocabulary
let compiled: (vocabulary: Vocabulary, grammar: GrammarText) => Promise<NativeGrammar>

/**
 * The tokens of a tokenizer with their bytes: for grammars. Loading one takes a fraction of a second; it can be used for any number of
 * generations and models with the same tokenizer.
 *
 * @example
 * ```ts
 * import { Vocabulary } from 'kvtide/onnx'
 *
 * const digits = Array.from('0123456789')
 * const vocabulary = Vocabulary.ofTokens([...digits, '-', '<end>'], { endOfSequence: [11] })
 * console.log(vocabulary.size, vocabulary.bytesOf(10), vocabulary.isSpecial(11)) // 12, '-' as a byte, true
 * ```
 */
export class Vocabulary {
  /** The number of ids. */
  declare readonly size: number
  /** Ids that end a text. */
  declare readonly endOfSequence: readonly number[]
  readonly #native: NativeVocabulary
  /** Compiled grammars, the most recently used one last. */
  readonly #compiled = new Map<string, Promise<NativeGrammar>>()

  static {
    isVocabulary = (value): value is Vocabulary => typeof value === 'object' && value !== null && #native in value
    compiled = (vocabulary, grammar) => vocabulary.#compile(grammar)
  }

  /** @internal */
  constructor(token: unknown, native: unknown, endOfSequence: readonly number[] = []) {
    checkInternal(token, 'Vocabulary', 'Vocabulary.load(tokenizer) instead')
    this.#native = native as NativeVocabulary
    settle<Vocabulary, 'size' | 'endOfSequence'>(this, {
      size: this.#native.size(),
      endOfSequence: Object.freeze([...endOfSequence]),
    })
  }

  /**
   * Reads a tokenizer, in the background.
   *
   * @param tokenizer the path of a `tokenizer.json` or of its folder, or the content of the file; or a tokenizer of transformers.js
   * @throws KvTideError `IO_ERROR` if there is no such file, `INVALID_ARGUMENT` if it is no `tokenizer.json`
   */
  static async load(tokenizer: string | URL | object, options: VocabularyOptions = {}): Promise<Vocabulary> {
    const { size, endOfSequence } = known<VocabularyOptions>('options', options, LOAD)
    const logits = optional(count, 'size', size) ?? 0
    const ends = readEnds(endOfSequence)
    const path = pathOf(tokenizer)
    const native =
      path === undefined
        ? await binding.NativeVocabulary.of(contentOf(tokenizer), logits)
        : await binding.NativeVocabulary.open(await fileIn(path), logits)
    return new Vocabulary(INTERNAL, native, ends)
  }

  /**
   * Makes a vocabulary by hand.
   *
   * @param tokens the bytes or the text of each id; `undefined` for an id without a token
   * @param options `endOfSequence`: ids that end a text. They are special tokens, whose text is only a name
   */
  static ofTokens(tokens: readonly (Uint8Array | string | undefined)[], options: TokensOptions = {}): Vocabulary {
    if (!isArray(tokens)) throw invalid('tokens', tokens, 'an array with the bytes or the text of each token')
    const { endOfSequence } = known<TokensOptions>('options', options, OF_TOKENS)
    const ends = readEnds(endOfSequence)
    const special = new Set(ends)
    const read = list('tokens', tokens, readToken)
    const kinds = Uint8Array.from(read, (token, id) =>
      special.has(id) ? SPECIAL : token === undefined ? UNUSED : TEXT,
    )
    const bytes = Buffer.concat(read.map(token => token ?? new Uint8Array(0)))
    const lengths = Uint32Array.from(read, token => token?.length ?? 0)
    // A buffer of Node's pool is shared with others.
    return new Vocabulary(INTERNAL, binding.NativeVocabulary.ofTokens(Uint8Array.from(bytes), lengths, kinds), ends)
  }

  /** Returns the bytes that a token adds to a text, possibly a part of a character; for a special token its name. Empty for an id without a token. */
  bytesOf(id: number): Uint8Array {
    Vocabulary.#check(this)
    return this.#native.bytes(count('id', id, 0, this.size - 1))
  }

  /** True for a token that adds nothing to a text, such as the start of a turn: a grammar allows it only if it names it. */
  isSpecial(id: number): boolean {
    Vocabulary.#check(this)
    return this.#native.isSpecial(count('id', id, 0, this.size - 1))
  }

  #compile({ kind, text }: GrammarText): Promise<NativeGrammar> {
    const name = `${kind} ${text}`
    const found = this.#compiled.get(name) ?? this.#native.compile(kind, text)
    this.#compiled.delete(name)
    this.#compiled.set(name, found)
    found.catch(() => this.#compiled.delete(name))
    const [oldest] = this.#compiled.keys()
    if (this.#compiled.size > COMPILED) this.#compiled.delete(oldest as string)
    return found
  }

  static #check(self: unknown): void {
    checkThis(self, value => #native in value, 'a Vocabulary')
  }
}

/** @internal Compiles a grammar in the background, or returns the one that was compiled before. */
export function compile(vocabulary: Vocabulary, grammar: GrammarText): Promise<NativeGrammar> {
  return compiled(vocabulary, grammar)
}

/** @internal Reads the option `vocabulary`. */
export function readVocabulary(argument: string, value: unknown): Vocabulary {
  if (isVocabulary(value)) return value
  throw invalid(argument, value, 'a Vocabulary: await Vocabulary.load(tokenizer)')
}

/** @internal Reads the `tokenizer.json` in the folder of a model, or in the folder above it. */
export async function vocabularyBeside(path: string | undefined, size: number | undefined): Promise<Vocabulary> {
  const folder = path === undefined ? undefined : dirname(path)
  for (const place of folder === undefined ? [] : [folder, dirname(folder)]) {
    const file = join(place, 'tokenizer.json')
    if (await isFile(file)) return Vocabulary.load(file, size === undefined ? {} : { size })
  }
  const where = folder === undefined ? 'the model was loaded from bytes' : `there is no tokenizer.json in ${folder}`
  throw invalid('vocabulary', undefined, `a Vocabulary: ${where}`)
}

function isFile(path: string): Promise<boolean> {
  return stat(path).then(
    found => found.isFile(),
    () => false,
  )
}

function readEnds(value: unknown): readonly number[] {
  return value === undefined ? [] : [...readTokens('endOfSequence', value)]
}

function readToken(argument: string, value: unknown): Uint8Array | undefined {
  if (value === undefined) return undefined
  if (typeof value === 'string') return new TextEncoder().encode(value)
  if (arrayKind(value) === undefined) throw invalid(argument, value, 'bytes, a text, or undefined')
  return typedArray<Uint8Array>(argument, value, ['Uint8Array'])
}

/** The path that was given; `undefined` for content. */
function pathOf(tokenizer: unknown): string | undefined {
  if (typeof tokenizer === 'string') return readPath('tokenizer', tokenizer)
  if (typeof tokenizer === 'function') return undefined
  return fields('tokenizer', tokenizer) instanceof URL ? readPath('tokenizer', tokenizer) : undefined
}

const EXPECTED = 'the path of a tokenizer.json or of its folder, or its content'

/** The path of a file, or of the `tokenizer.json` in a folder. */
async function fileIn(path: string): Promise<string> {
  const isFolder = await stat(path).then(
    found => found.isDirectory(),
    () => false,
  )
  return isFolder ? join(path, 'tokenizer.json') : path
}

/** The text of a `tokenizer.json` that was given as an object, or as the tokenizer that was made of it. */
function contentOf(tokenizer: unknown): string {
  // A tokenizer of transformers.js can be called, so its type is function.
  const given = typeof tokenizer === 'function' ? (tokenizer as object) : fields<object>('tokenizer', tokenizer)
  const { _tokenizerJSON: inner } = given as { readonly _tokenizerJSON?: unknown }
  if (arrayKind(given) !== undefined || isArray(given)) throw invalid('tokenizer', tokenizer, EXPECTED)
  let json: string | undefined
  try {
    json = JSON.stringify(inner ?? given) as string | undefined
  } catch {
    json = undefined
  }
  if (json === undefined) throw invalid('tokenizer', tokenizer, EXPECTED)
  return json
}
