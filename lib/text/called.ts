// Messages with calls of tools, as the model wrote them.
//
// A template writes the calls of earlier turns in its own form: other spaces, other order. So a message whose calls an answer has made is given to the
// template as the text that the model wrote, if the calls still are the same: of the same ids and names, with equal arguments after parsing.
// The reasoning in front of it stays apart, because templates drop the reasoning of earlier turns.
import type { ReadMessage } from './messages.js'
import type { ToolCall } from './types.js'

/** @internal An answer as the model wrote it, with its reasoning apart. */
export interface WrittenAnswer {
  /** The reasoning without its marks; empty if there is none. */
  readonly reasoning: string
  readonly text: string
}

interface Written extends WrittenAnswer {
  readonly meaning: string
  readonly size: number
}

/** The maximum number of characters that are remembered. */
const TEXT_MAX = 4 * 2 ** 20

/** @internal Texts of messages with calls, by tenant and the id of the first call; the least recently used are forgotten first. */
export class CalledMessages {
  readonly #written = new Map<string, Written>()
  #size = 0

  remember(tenant: string, calls: readonly ToolCall[], { reasoning, text }: WrittenAnswer): void {
    const key = keyOf(tenant, calls)
    const size = reasoning.length + text.length
    if (key === undefined || size > TEXT_MAX) return
    this.#forget(key)
    this.#written.set(key, { meaning: meaningOf(calls), reasoning, text, size })
    this.#size += size
    for (const oldest of this.#written.keys()) {
      if (this.#size <= TEXT_MAX) break
      this.#forget(oldest)
    }
  }

  /** The messages with the texts of known calls in place of their content, and their reasoning if they lack it; `undefined` if no call is known. */
  written(tenant: string, messages: readonly ReadMessage[]): ReadMessage[] | undefined {
    let isAny = false
    const all = messages.map(message => {
      const { tool_calls, ...rest } = message
      const key = tool_calls === undefined ? undefined : keyOf(tenant, tool_calls)
      const known = key === undefined ? undefined : this.#written.get(key)
      if (known === undefined || known.meaning !== meaningOf(tool_calls as readonly ToolCall[])) return message
      isAny = true
      return { ...(known.reasoning === '' ? {} : { reasoning_content: known.reasoning }), ...rest, content: known.text }
    })
    return isAny ? all : undefined
  }

  #forget(key: string): void {
    this.#size -= this.#written.get(key)?.size ?? 0
    this.#written.delete(key)
  }
}

function keyOf(tenant: string, calls: readonly ToolCall[]): string | undefined {
  const id = calls[0]?.id
  return id === undefined || id === '' ? undefined : `${tenant}:${id}`
}

/** Calls without the form of their arguments. */
function meaningOf(calls: readonly ToolCall[]): string {
  return JSON.stringify(calls.map(({ function: { name, arguments: json } }) => [name, parsed(json)]))
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json, (_, value: unknown) => sorted(value))
  } catch {
    return json
  }
}

function sorted(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
  return Object.fromEntries(Object.entries(value).toSorted(([one], [other]) => (one < other ? -1 : 1)))
}
