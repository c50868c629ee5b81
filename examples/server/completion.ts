// The answers to one request: generations of a sequence and its forks, streamed or sent at the end.
import { randomUUID } from 'node:crypto'
import type { ServerResponse } from 'node:http'

import type { GenerateOptions, Generation, OnnxModel, OnnxSequence } from 'kvtide/onnx'

import { event, send } from './http.js'
import type { Admitted, Asked, Line } from './line.js'
import { Refusal } from './refusal.js'
import type { ChatRequest } from './request.js'
import { type TextCodec, TextStream, UNDECODED } from './text.js'

/** A server's model, and the tokenizer for its text. */
export interface Served {
  readonly model: OnnxModel
  readonly codec: TextCodec
  /** The model name that clients send. */
  readonly name: string
  /** The maximum number of tokens of an answer if the client sets none; 1024 by default, or fewer if there is less room. */
  readonly maxTokens?: number
}

const MAX_TOKENS = 1024

/** One of the answers to a request. */
interface Choice {
  readonly index: number
  text: string
  tokens: number
  finishReason: string | null
  readonly logprobs: object[]
}

export class Completion {
  readonly #served: Served
  readonly #line: Line
  readonly #chat: ChatRequest
  readonly #response: ServerResponse
  readonly #head: object
  readonly #choices: readonly Choice[]
  readonly #stopped = new AbortController()

  constructor(served: Served, line: Line, chat: ChatRequest, response: ServerResponse) {
    this.#served = served
    this.#line = line
    this.#chat = chat
    this.#response = response
    this.#head = { id: `chatcmpl-${randomUUID()}`, created: Math.floor(Date.now() / 1000), model: served.name }
    this.#choices = Array.from({ length: chat.count }, (_, index) => ({
      index,
      text: '',
      tokens: 0,
      finishReason: null,
      logprobs: [],
    }))
    // If the client disconnects, its generations end.
    response.on('close', () => this.#stopped.abort())
  }

  /** Answers the request. Other tenants' prompts give no cache hits. A stream starts with its first token: an error before it has its own HTTP status. */
  async answer(tenant: string | undefined): Promise<void> {
    const {
      count,
      sampling: { maxTokens = this.#served.maxTokens ?? MAX_TOKENS },
      maxTokensParam,
    } = this.#chat
    const tokens = this.#prompt()
    const asked: Asked = { tokens, tenant, count, maxTokens, maxTokensParam, signal: this.#stopped.signal }
    using admitted = await this.#line.admit(asked)
    const cached = admitted.sequence.length
    if (admitted.count < count) await this.#inTurn(asked, admitted)
    else await this.#together(admitted)
    await this.#end(this.#usage(tokens.length, cached))
  }

  #prompt(): Uint32Array {
    try {
      return Uint32Array.from(this.#served.codec.encodeChat(this.#chat.messages))
    } catch (error) {
      // Chat templates throw for conversations that their model does not support, for example roles in the wrong order.
      throw new Refusal(
        400,
        `the chat template refuses these messages: ${error instanceof Error ? error.message : String(error)}`,
        'messages',
        'invalid_value',
      )
    }
  }

  /** Computes the answers one after the other, each admitted separately, if there is not enough room for all at once. */
  async #inTurn(asked: Asked, admitted: Admitted): Promise<void> {
    for (const choice of this.#choices) {
      using own = choice.index === 0 ? admitted : await this.#line.admit({ ...asked, count: 1 })
      await this.#choose(this.#served.model.generate(own.sequence, this.#options(choice.index, own.maxTokens)), choice)
    }
  }

  /** Computes all answers at once. With several, the prompt except its last token is computed first, and then forked. */
  async #together({ sequence, maxTokens }: Admitted): Promise<void> {
    const { model } = this.#served
    const sequences = [sequence]
    try {
      let tokens = new Uint32Array(0)
      if (this.#choices.length > 1) {
        tokens = sequence.tokens.slice(-1)
        sequence.truncate(sequence.tokens.length - 1)
      }
      const start = (of: OnnxSequence, index: number): Generation =>
        model.generate(of, { ...this.#options(index, maxTokens), tokens })
      // Validates the options before anything is computed.
      const first = start(sequence, 0)
      if (this.#choices.length > 1 && sequence.length < sequence.tokens.length)
        await model.run([{ sequence }], { signal: this.#stopped.signal })
      while (sequences.length < this.#choices.length) sequences.push(sequence.fork())
      await this.#chooseAll([first, ...sequences.slice(1).map((fork, at) => start(fork, at + 1))], sequences)
    } finally {
      sequences.forEach(each => each.dispose())
    }
  }

  /** If one answer fails, the others are aborted, and its error is thrown. A finished answer frees its blocks for the others. */
  async #chooseAll(generations: readonly Generation[], sequences: readonly OnnxSequence[]): Promise<void> {
    let failure: { readonly error: unknown } | undefined
    await Promise.all(
      this.#choices.map(async (choice, index) => {
        try {
          await this.#choose(generations[index] as Generation, choice)
        } catch (error) {
          failure ??= { error }
          this.#stopped.abort()
        } finally {
          sequences[index]?.dispose()
        }
      }),
    )
    if (failure !== undefined) throw failure.error
  }

  async #choose(generation: Generation, choice: Choice): Promise<void> {
    const { stream, stop, logprobs } = this.#chat
    const { codec } = this.#served
    const text = new TextStream(codec, stop)
    const begin = async (): Promise<void> => {
      if (stream && choice.tokens === 0) await this.#tell({ role: 'assistant', content: '' }, choice)
    }
    for await (const token of generation) {
      await begin()
      choice.tokens += 1
      await this.#give(choice, text.push(token), logprobs === undefined ? [] : [entry(codec, generation.logprobs)])
      if (text.ended) break
    }
    await begin()
    await this.#give(choice, text.flush(), [])
    choice.finishReason = text.ended ? 'stop' : (generation.finishReason ?? 'stop')
    if (stream) await this.#tell({}, choice)
  }

  #options(index: number, maxTokens: number): GenerateOptions {
    const {
      sampling: { seed, ...sampling },
      logprobs,
    } = this.#chat
    return {
      ...sampling,
      maxTokens,
      stop: this.#served.codec.stop,
      signal: this.#stopped.signal,
      ...(seed === undefined ? {} : { seed: Number(BigInt.asUintN(53, BigInt(seed) + BigInt(index))) }),
      ...(logprobs === undefined ? {} : { logprobs }),
    }
  }

  async #give(choice: Choice, piece: string, entries: readonly object[]): Promise<void> {
    choice.text += piece
    choice.logprobs.push(...entries)
    if (this.#chat.stream && (piece !== '' || entries.length > 0)) await this.#tell({ content: piece }, choice, entries)
  }

  /** Sends a part of an answer to the client. */
  #tell(delta: object, { index, finishReason }: Choice, entries: readonly object[] = []): Promise<void> {
    const logprobs = this.#chat.logprobs === undefined ? null : { content: entries }
    return event(this.#response, {
      ...this.#head,
      object: 'chat.completion.chunk',
      choices: [{ index, delta, finish_reason: finishReason, logprobs }],
    })
  }

  async #end(usage: object): Promise<void> {
    if (this.#chat.stream) {
      if (this.#chat.includeUsage)
        await event(this.#response, { ...this.#head, object: 'chat.completion.chunk', choices: [], usage })
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
    return {
      prompt_tokens: prompt,
      completion_tokens: completion,
      total_tokens: prompt + completion,
      prompt_tokens_details: { cached_tokens: cached },
    }
  }
}

interface Logprobs {
  readonly token: number
  readonly logprob: number
  readonly top: readonly { readonly token: number; readonly logprob: number }[]
}

/** Returns a token's log-probability and its alternatives' in OpenAI's form. From the bytes, a client can assemble a split character. */
function entry(codec: TextCodec, of: Logprobs | undefined): object {
  const one = (token: number, logprob: number) => {
    const text = codec.decode([token])
    const bytes = codec.bytesOf?.(token) ?? (text.includes(UNDECODED) ? undefined : new TextEncoder().encode(text))
    return { token: text, logprob, bytes: bytes === undefined ? null : [...bytes] }
  }
  if (of === undefined) throw new Error('the model returned no log-probabilities')
  return { ...one(of.token, of.logprob), top_logprobs: of.top.map(({ token, logprob }) => one(token, logprob)) }
}
