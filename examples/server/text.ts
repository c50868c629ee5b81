// Text to token ids and back: with a Hugging Face tokenizer, or byte by byte for models without one.
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

export interface Message {
  readonly role: string
  readonly content: string
}

/** The functions that the server needs from a tokenizer. */
export interface TextCodec {
  /** Returns the ids of a conversation, up to the beginning of the answer. */
  encodeChat(messages: readonly Message[]): number[]
  encode(text: string): number[]
  decode(ids: readonly number[]): string
  /** Returns the bytes of an id, if known, even if they are only a part of a character. */
  bytesOf?(id: number): readonly number[] | undefined
  /** The ids that end an answer. */
  readonly stop: readonly number[]
}

const FIRST_BYTE = 3

const isByte = (id: number): boolean => id >= FIRST_BYTE && id < FIRST_BYTE + 256

/** Maps bytes to ids from 3 on, after the ids of padding, begin and end: for models without a tokenizer. */
export const bytes: TextCodec = {
  encodeChat: messages => [
    1,
    ...bytes.encode(messages.map(({ role, content }) => `${role}: ${content}\n`).join('') + 'assistant: '),
  ],
  encode: text => Array.from(new TextEncoder().encode(text), byte => byte + FIRST_BYTE),
  decode: ids =>
    new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(ids.filter(isByte), id => id - FIRST_BYTE)),
  bytesOf: id => (isByte(id) ? [id - FIRST_BYTE] : []),
  stop: [2],
}

/** The used parts of `@huggingface/tokenizers` and `@huggingface/jinja`. */
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

/** Loads the tokenizer from a model's folder: `tokenizer.json` and `tokenizer_config.json`, with its chat template. */
export async function fromFolder(folder: string): Promise<TextCodec> {
  const { Tokenizer } = await packageOf<{ readonly Tokenizer: new (tokenizer: object, config: object) => Tokenizer }>(
    '@huggingface/tokenizers',
  )
  const { Template } = await packageOf<{ readonly Template: new (template: string) => Template }>('@huggingface/jinja')
  const read = (name: string): Record<string, unknown> =>
    JSON.parse(readFileSync(join(folder, name), 'utf8')) as Record<string, unknown>
  const config = read('tokenizer_config.json')
  const tokenizer = new Tokenizer(read('tokenizer.json'), config)
  const template = new Template(templateOf(folder, config))
  const token = (name: string): string | undefined => {
    const value = config[name] as string | { content: string } | null | undefined
    return typeof value === 'string' ? value : value?.content
  }
  const idsOf = (text: string): number[] => tokenizer.encode(text, { add_special_tokens: false }).ids
  return {
    encodeChat: messages =>
      idsOf(
        template.render({
          messages,
          add_generation_prompt: true,
          bos_token: token('bos_token') ?? '',
          eos_token: token('eos_token') ?? '',
        }),
      ),
    encode: text => tokenizer.encode(text).ids,
    decode: ids => (ids.length === 0 ? '' : tokenizer.decode([...ids], { skip_special_tokens: true })),
    stop: stopIds(folder, tokenizer.token_to_id(token('eos_token') ?? '')),
  }
}

function templateOf(folder: string, config: Record<string, unknown>): string {
  const beside = join(folder, 'chat_template.jinja')
  const given = existsSync(beside) ? readFileSync(beside, 'utf8') : config['chat_template']
  if (typeof given === 'string') return given
  const named = Array.isArray(given)
    ? (given as { name: string; template: string }[]).find(({ name }) => name === 'default')
    : undefined
  if (named === undefined)
    throw new Error(`${folder} has no chat template: neither chat_template.jinja nor one in tokenizer_config.json`)
  return named.template
}

/** Returns the stop ids of `generation_config.json`, or the tokenizer's. */
function stopIds(folder: string, fallback: number | undefined): number[] {
  const path = join(folder, 'generation_config.json')
  const given = existsSync(path)
    ? (JSON.parse(readFileSync(path, 'utf8')) as { eos_token_id?: number | number[] }).eos_token_id
    : undefined
  return [given ?? fallback ?? []].flat()
}

/** The character that codecs return for bytes that are not a character. */
export const UNDECODED = '\uFFFD'

/** Matches an incomplete character at the end: a character has up to four bytes, and a codec may return one of these for each byte so far. */
const OPEN = /\uFFFD{1,3}$/

/** The approximate number of ids that are decoded together. It bounds the cost of an id if a model returns no whole character for long. */
const WINDOW_MAX = 64

/**
 * Converts ids that arrive one by one into text that can be sent: whole characters only, without a possible start of a stop text.
 *
 * ```text
 * [ done | context | window ]      text that is sent = decode(context + window) without decode(context)
 * ```
 * A window ends with a character; the next window is decoded together with it, because tokenizers drop a space at the start. Ids without text are
 * ignored, even inside a character. All pieces together equal the text that the codec returns for all ids at once.
 */
export class TextStream {
  readonly #codec: TextCodec
  readonly #stops: readonly string[]
  #context: readonly number[] = []
  #window: readonly number[] = []
  /** The text of the window, and the length of the part that was returned already. */
  #shown = ''
  #taken = 0
  #held = ''
  /** True once a stop text was found. */
  ended = false

  constructor(codec: TextCodec, stops: readonly string[]) {
    this.#codec = codec
    this.#stops = stops
  }

  /** Adds an id and returns the text that is final now. */
  push(id: number): string {
    if (this.ended) return ''
    const window = [...this.#window, id]
    const text = this.#text(window)
    if (text === this.#shown && this.#hasText && this.#text([id]) === '') return ''
    this.#window = window
    this.#shown = text
    const open = OPEN.exec(text)?.[0].length ?? 0
    const piece = text.slice(this.#taken, text.length - open)
    this.#taken += piece.length
    if (open === 0) this.#settle(window.length)
    else if (window.length >= WINDOW_MAX) this.#shorten()
    return this.#release(piece)
  }

  /** Returns the text that was held back, at the end: for an incomplete character, the codec's replacement. */
  flush(): string {
    if (this.ended) return ''
    const piece = this.#shown.slice(this.#taken)
    this.#settle(this.#window.length)
    const certain = this.#release(piece)
    const rest = this.#held
    this.#held = ''
    return certain + rest
  }

  /** True if there is text before: an id without text at the start may be a space that a tokenizer drops there. */
  get #hasText(): boolean {
    return this.#shown !== '' || this.#codec.decode(this.#context) !== ''
  }

  /** Returns the text of ids that follow the context. */
  #text(ids: readonly number[]): string {
    const before = this.#codec.decode(this.#context)
    const all = this.#codec.decode([...this.#context, ...ids])
    // If half a character makes the one before it undecodable too, it is decoded by itself until it is complete.
    return all.startsWith(before) ? all.slice(before.length) : this.#codec.decode(ids)
  }

  /** Moves the first ids of the window, whose text was returned, into the context, and keeps only the last of them that have a text. */
  #settle(count: number): void {
    const { length } = this.#text(this.#window.slice(0, count))
    const ids = [...this.#context, ...this.#window.slice(0, count)]
    let from = this.#context.length
    while (from > 0 && this.#codec.decode(ids.slice(from)) === '') from -= 1
    this.#context = ids.slice(from)
    this.#window = this.#window.slice(count)
    this.#shown = this.#shown.slice(length)
    this.#taken = Math.max(0, this.#taken - length)
  }

  /** Shortens the window to the ids that may still become a character. */
  #shorten(): void {
    let count = this.#window.length - 1
    while (count > 0 && this.#text(this.#window.slice(0, count)).length > this.#taken) count -= 1
    if (count > 0) this.#settle(count)
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

/** Returns the number of characters at the end of `text` that are a start of `stop`. */
function overlap(text: string, stop: string): number {
  for (let length = Math.min(text.length, stop.length - 1); length > 0; length--) {
    if (text.endsWith(stop.slice(0, length))) return length
  }
  return 0
}
