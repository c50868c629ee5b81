// Text to token ids and back: by a Hugging Face tokenizer, or byte by byte for models without one.
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

export interface Message {
  readonly role: string
  readonly content: string
}

/** What a server needs of a tokenizer. */
export interface TextCodec {
  /** The ids of a conversation, up to where the answer begins. */
  encodeChat(messages: readonly Message[]): number[]
  encode(text: string): number[]
  decode(ids: readonly number[]): string
  /** The ids that end an answer. */
  readonly stop: readonly number[]
}

const FIRST_BYTE = 3

/** Bytes as ids from 3 on, behind those of padding, begin and end: for models that were never taught a language. */
export const bytes: TextCodec = {
  encodeChat: messages => [1, ...bytes.encode(messages.map(({ role, content }) => `${role}: ${content}\n`).join('') + 'assistant: ')],
  encode: text => Array.from(new TextEncoder().encode(text), byte => byte + FIRST_BYTE),
  decode: ids => new TextDecoder().decode(Uint8Array.from(ids.filter(id => id >= FIRST_BYTE && id < FIRST_BYTE + 256), id => id - FIRST_BYTE)),
  stop: [2],
}

/** What is used of `@huggingface/tokenizers` and `@huggingface/jinja`. */
interface Tokenizer {
  encode(text: string, options?: { readonly add_special_tokens?: boolean }): { readonly ids: number[] }
  decode(ids: readonly number[], options: { readonly skip_special_tokens: boolean }): string
  token_to_id(token: string): number | undefined
}
interface Template {
  render(values: object): string
}

async function packageOf<T>(name: string): Promise<T> {
  try {
    return (await import(name)) as T
  } catch (cause) {
    throw new Error(`${name} is missing: run npm install @huggingface/tokenizers @huggingface/jinja`, { cause })
  }
}

/** The tokenizer in a model's folder: `tokenizer.json` and `tokenizer_config.json`, with its chat template. */
export async function fromFolder(folder: string): Promise<TextCodec> {
  const { Tokenizer } = await packageOf<{ readonly Tokenizer: new (tokenizer: object, config: object) => Tokenizer }>('@huggingface/tokenizers')
  const { Template } = await packageOf<{ readonly Template: new (template: string) => Template }>('@huggingface/jinja')
  const read = (name: string): Record<string, unknown> => JSON.parse(readFileSync(join(folder, name), 'utf8')) as Record<string, unknown>
  const config = read('tokenizer_config.json')
  const tokenizer = new Tokenizer(read('tokenizer.json'), config)
  const template = new Template(templateOf(folder, config))
  const token = (name: string): string | undefined => {
    const value = config[name] as string | { content: string } | null | undefined
    return typeof value === 'string' ? value : value?.content
  }
  const idsOf = (text: string): number[] => tokenizer.encode(text, { add_special_tokens: false }).ids
  return {
    encodeChat: messages => idsOf(template.render({ messages, add_generation_prompt: true, bos_token: token('bos_token') ?? '', eos_token: token('eos_token') ?? '' })),
    encode: text => tokenizer.encode(text).ids,
    decode: ids => (ids.length === 0 ? '' : tokenizer.decode([...ids], { skip_special_tokens: true })),
    stop: stopIds(folder, tokenizer.token_to_id(token('eos_token') ?? '')),
  }
}

function templateOf(folder: string, config: Record<string, unknown>): string {
  const beside = join(folder, 'chat_template.jinja')
  const given = existsSync(beside) ? readFileSync(beside, 'utf8') : config['chat_template']
  if (typeof given === 'string') return given
  const named = Array.isArray(given) ? (given as { name: string; template: string }[]).find(({ name }) => name === 'default') : undefined
  if (named === undefined) throw new Error(`${folder} has no chat template: neither chat_template.jinja nor one in tokenizer_config.json`)
  return named.template
}

/** Those of `generation_config.json`, else the tokenizer's. */
function stopIds(folder: string, fallback: number | undefined): number[] {
  const path = join(folder, 'generation_config.json')
  const given = existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as { eos_token_id?: number | number[] }).eos_token_id : undefined
  return [given ?? fallback ?? []].flat()
}

/**
 * Turns ids that arrive one by one into text that can be sent: whole characters only, and nothing that may be the start of a stop text.
 */
export class TextStream {
  readonly #codec: TextCodec
  readonly #stops: readonly string[]
  #ids: number[] = []
  /** Ids before these were decoded for good. */
  #settled = 0
  #held = ''
  /** True once a stop text was met. */
  ended = false

  constructor(codec: TextCodec, stops: readonly string[]) {
    this.#codec = codec
    this.#stops = stops
  }

  /** Takes an id and gives the text that is certain now. */
  push(id: number): string {
    if (this.ended) return ''
    this.#ids.push(id)
    // What comes before is decoded with it: tokenizers drop a space at the start.
    const before = this.#codec.decode(this.#ids.slice(Math.max(0, this.#settled - 4), this.#settled))
    const now = this.#codec.decode(this.#ids.slice(Math.max(0, this.#settled - 4)))
    // A character of several bytes is not complete yet; after four ids it never will be.
    if (now.endsWith('\uFFFD') && this.#ids.length - this.#settled < 4) return ''
    this.#settled = this.#ids.length
    return this.#release(now.slice(before.length))
  }

  /** What was held back, at the end. */
  flush(): string {
    const rest = this.ended ? '' : this.#held
    this.#held = ''
    return rest
  }

  #release(text: string): string {
    this.#held += text
    const at = Math.min(...this.#stops.map(stop => this.#held.indexOf(stop)).filter(found => found >= 0))
    if (Number.isFinite(at)) {
      this.ended = true
      const certain = this.#held.slice(0, at)
      this.#held = ''
      return certain
    }
    const kept = Math.max(0, ...this.#stops.map(stop => overlap(this.#held, stop)))
    const certain = this.#held.slice(0, this.#held.length - kept)
    this.#held = this.#held.slice(certain.length)
    return certain
  }
}

/** How many characters at the end of `text` are the start of `stop`. */
function overlap(text: string, stop: string): number {
  for (let length = Math.min(text.length, stop.length - 1); length > 0; length--) {
    if (text.endsWith(stop.slice(0, length))) return length
  }
  return 0
}
