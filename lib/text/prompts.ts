// Makes the ids of prompts, and remembers those of answers: see conversations.
import { createHash } from 'node:crypto'

import type { PreparedAnswer } from './answer.js'
import { CalledMessages } from './called.js'
import type { ChatFormat, ChatReading } from './chat-format.js'
import { Conversations, type KnownStart } from './conversations.js'
import type { Mark } from './encoder.js'
import type { ReadChat } from './options.js'
import type { Codec } from './codec.js'
import type { ToolCall } from './types.js'

/** The most checkpoints of a prompt. */
const CHECKPOINTS_MAX = 32
/** The number of characters from which on it is worth to remember their ids. */
const WORTH = 256

/** @internal The prompt of a chat. */
export interface ChatPrompt extends Pick<PreparedAnswer, 'ids' | 'checkpoints'> {
  readonly reading: ChatReading
  /** Remembers the answer's ids for the next turn. */
  readonly remember: (answer: readonly number[], calls: readonly ToolCall[]) => void
}

interface Rendered {
  readonly text: string
  readonly known: KnownStart | undefined
}

/** @internal */
export class Prompts {
  readonly #codec: Codec
  readonly #format: ChatFormat
  readonly #conversations = new Conversations()
  readonly #called = new CalledMessages()

  constructor(codec: Codec, format: ChatFormat) {
    this.#codec = codec
    this.#format = format
  }

  /** The prompt of a chat. The event loop gets turns while a long text is tokenised. */
  async of(chat: ReadChat, isEnded: () => boolean): Promise<ChatPrompt> {
    const tenant = tenantOf(chat)
    const { text, known } = this.#rendered(chat, tenant)
    const start = known?.ids ?? new Uint32Array(0)
    const rest = await this.#codec.encodeFrom(text, known?.length ?? 0, isEnded)
    const ids = new Uint32Array(start.length + rest.ids.length)
    ids.set(start)
    ids.set(rest.ids, start.length)
    const marks = rest.marks.map(mark => ({ ...mark, ids: mark.ids + start.length }))
    if (!isEnded()) this.#rememberPrompt(tenant, text, ids, marks, known?.length ?? 0)
    return {
      ids,
      checkpoints: this.#checkpoints(chat, start.length, marks, ids.length),
      reading: this.#format.reading(chat, text),
      remember: (answer, calls) => this.#remember(tenant, text, ids, answer, calls),
    }
  }

  /** The text of a chat and its known start: with calls as the model wrote them, if more of it is known then. */
  #rendered({ messages, tools, variables }: ReadChat, tenant: string): Rendered {
    const own = this.#known(tenant, this.#format.render(messages, tools, variables))
    const written = this.#called.written(tenant, messages)
    if (written === undefined) return own
    try {
      const other = this.#known(tenant, this.#format.render(written, tools, variables))
      return (other.known?.length ?? 0) > (own.known?.length ?? 0) ? other : own
    } catch {
      // A template may refuse messages of tools without calls in front of them.
      return own
    }
  }

  #known(tenant: string, text: string): Rendered {
    // Places cost a pass over the text.
    if (!this.#conversations.has(tenant)) return { text, known: undefined }
    return { text, known: this.#conversations.find(tenant, text, this.#codec.encoder.places(text)) }
  }

  #isEnd({ token }: Mark): boolean {
    return token !== undefined && (this.#format.endOfTurn === undefined || token === this.#format.endOfTurn)
  }

  /** Remembers the prompt up to its first and its last message, so that chats with a common start tokenise it once. */
  #rememberPrompt(tenant: string, text: string, ids: Uint32Array, marks: readonly Mark[], known: number): void {
    const worth = marks.filter(mark => mark.text - known >= WORTH)
    const ends = worth.filter(mark => this.#isEnd(mark))
    const places = [...new Set([ends[0], ends.at(-1), worth.at(-1)])].filter(mark => mark !== undefined)
    const ascending = places.filter((mark, place) => places.findIndex(other => other.text === mark.text) === place)
    if (ascending.length > 0) this.#conversations.remember(tenant, text, ids, ascending)
  }

  #checkpoints({ checkpoints }: ReadChat, known: number, marks: readonly Mark[], length: number): number[] {
    const ends = marks.filter(mark => this.#isEnd(mark)).map(mark => mark.ids)
    const own = [...(known > 0 ? [known] : []), ...ends].slice(-CHECKPOINTS_MAX)
    return [...new Set([...own, ...checkpoints])]
      .filter(place => place > 0 && place <= length)
      .toSorted((a, b) => a - b)
  }

  #remember(
    tenant: string,
    prompt: string,
    ids: Uint32Array,
    answer: readonly number[],
    calls: readonly ToolCall[],
  ): void {
    const end = this.#format.endOfTurn
    const raw = this.#codec.rawText(answer)
    if (calls.length > 0) this.#called.remember(tenant, calls, this.#format.written(raw, prompt))
    if (end === undefined) return
    const behind = this.#codec.rawText([end])
    const put = (text: string, own: readonly number[]): void => {
      const all = Uint32Array.from([...ids, ...own, end])
      const whole = `${prompt}${text}${behind}`
      this.#conversations.remember(tenant, whole, all, [{ text: whole.length, ids: all.length }])
    }
    put(raw, answer)
    // Many templates trim answers. If whole tokens are trimmed, the others stay as they are.
    const trimmed = raw.trimEnd()
    if (trimmed === raw || trimmed === '') return
    const kept = answer.slice(0, this.#codec.rawLengths(answer).indexOf(trimmed.length) + 1)
    // A token may end in the first bytes of a space.
    if (this.#codec.rawText(kept) === trimmed) put(trimmed, kept)
  }
}

/** A name of the tenant, under which its texts are remembered. */
function tenantOf({ salt, saltFrom = 0 }: ReadChat): string {
  if (salt === undefined || salt.length === 0) return ''
  return createHash('sha256').update(salt).update(`:${saltFrom}`).digest('base64')
}
