// The optional packages of this entry: `@huggingface/tokenizers` and `@huggingface/jinja`, both without dependencies. Only the members that are used here have
// types, so that the package's own types need neither of them.
import { KvTideError, messageOf } from '../errors/errors.js'

/** @internal A token that a `tokenizer.json` adds to those of its model. */
export interface AddedToken {
  readonly id: number
  readonly content: string
  readonly special: boolean
  readonly normalized: boolean
  readonly lstrip: boolean
  readonly rstrip: boolean
}

/** @internal Splits a text at words. */
interface Splitter {
  split(text: string): string[]
}

/** @internal The model of a tokenizer. Called, it turns words into tokens. */
export interface TokenizerModel {
  (words: string[]): string[]
  readonly vocab: readonly (string | undefined)[]
  readonly tokens_to_ids: ReadonlyMap<string, number>
  readonly unk_token_id?: number | undefined
  readonly end_of_word_suffix?: string | null
  readonly continuing_subword_suffix?: string | null
}

/** @internal A tokenizer of `@huggingface/tokenizers`. Its types declare some of these as private. */
export interface HuggingFaceTokenizer {
  readonly normalizer: ((text: string) => string) | null
  readonly pre_tokenizer: ((text: string, options: { section_index: number }) => string[]) | null
  readonly model: TokenizerModel
  readonly post_processor:
    | ((tokens: string[], pair: string[] | null, add: boolean) => { readonly tokens: readonly string[] })
    | null
  readonly added_tokens: readonly AddedToken[]
  readonly added_tokens_map: ReadonlyMap<string, AddedToken>
  readonly splitter_unnormalized: Splitter
  readonly splitter_normalized: Splitter
}

interface TokenizersPackage {
  readonly Tokenizer: new (tokenizer: object, config: object) => HuggingFaceTokenizer
}

/** @internal The members of `@huggingface/jinja` that are used here. */
export interface JinjaPackage {
  readonly Template: new (text: string) => {
    readonly parsed: unknown
    render(variables: Readonly<Record<string, unknown>>): string
  }
  readonly Environment: new () => { set(name: string, value: unknown): unknown }
  readonly Interpreter: new (environment: object) => JinjaInterpreter
}

/** @internal A value of a template. */
export interface JinjaValue {
  readonly value: unknown
}

/** @internal An interpreter calls `evaluate` for each node of the program. */
export interface JinjaInterpreter {
  run(program: unknown): JinjaValue
  evaluate(node: unknown, environment: unknown): JinjaValue
}

const TOKENIZERS = '@huggingface/tokenizers'
const JINJA = '@huggingface/jinja'

/** @internal The class of tokenizers. */
export async function tokenizerClass(): Promise<TokenizersPackage['Tokenizer']> {
  const { Tokenizer } = await imported<TokenizersPackage>(TOKENIZERS)
  if (typeof Tokenizer === 'function') return Tokenizer
  throw unavailable(TOKENIZERS, 'it has no class Tokenizer')
}

/** @internal The classes that render templates. */
export async function jinjaPackage(): Promise<JinjaPackage> {
  const found = await imported<JinjaPackage>(JINJA)
  for (const name of ['Template', 'Environment', 'Interpreter'] as const)
    if (typeof found[name] !== 'function') throw unavailable(JINJA, `it has no class ${name}`)
  return found as JinjaPackage
}

async function imported<T>(name: string): Promise<Partial<T>> {
  try {
    return (await import(name)) as Partial<T>
  } catch (cause) {
    const [said = ''] = messageOf(cause).split('\n')
    throw unavailable(name, `it cannot be loaded (${said})`, cause)
  }
}

function unavailable(name: string, problem: string, cause?: unknown): KvTideError<'RUNTIME_UNAVAILABLE'> {
  const reason = `${problem}: run \`npm install ${TOKENIZERS} ${JINJA}\``
  return new KvTideError(
    'RUNTIME_UNAVAILABLE',
    `${name} cannot be used: ${reason}`,
    { runtime: name, reason },
    cause === undefined ? undefined : { cause },
  )
}
