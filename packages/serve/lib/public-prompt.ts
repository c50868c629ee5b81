// A system prompt that all tenants share: its tokens are computed once for all of them, and the salt of a tenant begins behind them. Only the operator's own text is
// shared, because the time of an answer reveals whether a prefix was cached.
import type { ChatOptions, TextModel } from 'kvtide/text'

import { invalid } from './arguments.js'

/** Characters behind the shared text that may be part of its last token. */
const BEHIND = 64

type Chat = Pick<ChatOptions, 'messages' | 'tools' | 'templateOptions'>

/** Finds the shared tokens of chats. */
export class PublicPrompt {
  readonly #model: TextModel
  readonly #shared: string
  /** The ids of the shared text alone. */
  readonly #alone: Uint32Array

  /** `text` is the system message that tenants share, or its beginning. */
  constructor(model: TextModel, text: string) {
    this.#model = model
    const alone = model.render({
      messages: [
        { role: 'system', content: text },
        { role: 'user', content: '-' },
      ],
    })
    const at = alone.indexOf(text)
    if (at < 0)
      throw invalid('publicPrompt', text, 'a text that the chat template shows as it is: others cannot be shared', {
        isHidden: true,
      })
    this.#shared = alone.slice(0, at + text.length)
    this.#alone = this.#idsOf(this.#shared)
  }

  /** Returns the number of tokens at the start of a chat that all tenants share. */
  tokens(chat: Chat): number {
    const text = this.#model.render(chat)
    if (!text.startsWith(this.#shared)) return 0
    const [alone, more] = [this.#alone, this.#idsOf(text.slice(0, this.#shared.length + BEHIND))]
    let length = 0
    while (length < alone.length && alone[length] === more[length]) length += 1
    return length
  }

  #idsOf(text: string): Uint32Array {
    return this.#model.tokenizer.encode(text, { addSpecialTokens: false })
  }
}
