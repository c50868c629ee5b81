// The answers to one request: generations of a sequence and its forks, told as they come or at the end.
import { randomUUID } from 'node:crypto'
import type { ServerResponse } from 'node:http'

import type { OnnxModel, OnnxSequence } from 'kvtide/onnx'

import { event, send } from './http.js'
import type { ChatRequest } from './request.js'
import { type TextCodec, TextStream } from './text.js'

/** The model that a server has, and how its text becomes tokens. */
export interface Served {
  readonly model: OnnxModel
  readonly codec: TextCodec
  /** The name that clients ask for. */
  readonly name: string
  /** The most tokens of an answer, unless the client says less. */
  readonly maxTokens?: number
}

/** One of the answers that a request asks for. */
interface Choice {
  readonly index: number
  text: string
  tokens: number
  finishReason: string | null
  readonly logprobs: object[]
}

export class Completion {
  readonly #served: Served
  readonly #chat: ChatRequest
  readonly #response: ServerResponse
  readonly #head: object
  readonly #choices: readonly Choice[]
  readonly #stopped = new AbortController()

  constructor(served: Served, chat: ChatRequest, response: ServerResponse) {
    this.#served = served
    this.#chat = chat
    this.#response = response
    this.#head = { id: `chatcmpl-${randomUUID()}`, created: Math.floor(Date.now() / 1000), model: served.name }
    this.#choices = Array.from({ length: chat.count }, (_, index) => ({ index, text: '', tokens: 0, finishReason: null, logprobs: [] }))
    // A client that hangs up pays for nobody's steps any longer.
    response.on('close', () => this.#stopped.abort())
  }

  /** Answers. The key is the tenant: prompts of other tenants are not found. */
  async answer(key: string | undefined): Promise<void> {
    const { model, codec } = this.#served
    const tokens = Uint32Array.from(codec.encodeChat(this.#chat.messages))
    using first = model.open(key === undefined ? { tokens } : { tokens, salt: key })
    const cached = first.length
    const forks = this.#choices.slice(1).map(() => first.fork())
    try {
      if (this.#chat.stream) this.#response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' })
      const ended = await Promise.allSettled([first, ...forks].map((sequence, index) => this.#choose(sequence, this.#choices[index] as Choice)))
      for (const end of ended) if (end.status === 'rejected') throw end.reason
      await this.#end(this.#usage(tokens.length, cached))
    } finally {
      forks.forEach(fork => fork.dispose())
    }
  }

  async #choose(sequence: OnnxSequence, choice: Choice): Promise<void> {
    const { stream, stop, logprobs } = this.#chat
    const { model, codec } = this.#served
    const text = new TextStream(codec, stop)
    const generation = model.generate(sequence, this.#options(choice.index))
    if (stream) await this.#tell({ role: 'assistant', content: '' }, choice)
    for await (const token of generation) {
      choice.tokens += 1
      await this.#give(choice, text.push(token), logprobs === undefined ? [] : [entry(codec, generation.logprobs)])
      if (text.ended) break
    }
    await this.#give(choice, text.flush(), [])
    choice.finishReason = text.ended ? 'stop' : (generation.finishReason ?? 'stop')
    if (stream) await this.#tell({}, choice)
  }

  #options(index: number): object {
    const { sampling: { seed, maxTokens = this.#served.maxTokens ?? 1024, ...sampling }, logprobs } = this.#chat
    return {
      ...sampling,
      maxTokens,
      stop: this.#served.codec.stop,
      signal: this.#stopped.signal,
      ...(seed === undefined ? {} : { seed: seed + index }),
      ...(logprobs === undefined ? {} : { logprobs }),
    }
  }

  async #give(choice: Choice, piece: string, entries: readonly object[]): Promise<void> {
    choice.text += piece
    choice.logprobs.push(...entries)
    if (this.#chat.stream && (piece !== '' || entries.length > 0)) await this.#tell({ content: piece }, choice, entries)
  }

  /** Sends a piece of an answer. */
  #tell(delta: object, { index, finishReason }: Choice, entries: readonly object[] = []): Promise<void> {
    const logprobs = this.#chat.logprobs === undefined ? null : { content: entries }
    return event(this.#response, { ...this.#head, object: 'chat.completion.chunk', choices: [{ index, delta, finish_reason: finishReason, logprobs }] })
  }

  async #end(usage: object): Promise<void> {
    if (this.#chat.stream) {
      if (this.#chat.includeUsage) await event(this.#response, { ...this.#head, object: 'chat.completion.chunk', choices: [], usage })
      this.#response.end('data: [DONE]\n\n')
      return
    }
    const choices = this.#choices.map(({ index, text, finishReason, logprobs }) => ({
      index,
      message: { role: 'assistant', content: text, refusal: null },
      finish_reason: finishReason,
      logprobs: this.#chat.logprobs === undefined ? null : { content: logprobs },
    }))
    send(this.#response, 200, { ...this.#head, object: 'chat.completion', choices, usage })
  }

  #usage(prompt: number, cached: number): object {
    const completion = this.#choices.reduce((sum, choice) => sum + choice.tokens, 0)
    return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion, prompt_tokens_details: { cached_tokens: cached } }
  }
}

interface Logprobs {
  readonly token: number
  readonly logprob: number
  readonly top: readonly { readonly token: number; readonly logprob: number }[]
}

/** A token's log-probability and its alternatives', as clients read them. */
function entry(codec: TextCodec, of: Logprobs | undefined): object {
  const one = (token: number, logprob: number) => {
    const text = codec.decode([token])
    return { token: text, logprob, bytes: [...new TextEncoder().encode(text)] }
  }
  if (of === undefined) throw new Error('the model gave no log-probabilities')
  return { ...one(of.token, of.logprob), top_logprobs: of.top.map(({ token, logprob }) => one(token, logprob)) }
}
