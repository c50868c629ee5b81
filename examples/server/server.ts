// An HTTP server for chats, in the form of OpenAI's API, on `kvtide/onnx`.
//
//   npx tsx examples/server/main.ts --model model.onnx [--tokenizer folder | bytes] [--port 8080]
//
// All clients share the model's steps. What two prompts begin with alike is computed once, within a tenant: the API key is the salt.
import { randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'

import { isKvTideError } from 'kvtide'
import type { OnnxModel } from 'kvtide/onnx'

import { type ChatRequest, readRequest, Refusal } from './request.js'
import { type TextCodec, TextStream } from './text.js'

export interface ServerOptions {
  readonly model: OnnxModel
  readonly codec: TextCodec
  /** The name that clients ask for. */
  readonly name: string
  /** The most tokens of an answer, unless the client says less. */
  readonly maxTokens?: number
  /** The most bytes of a request, 4 MiB by default. */
  readonly maxBodyBytes?: number
}

/** One of the answers that a request asks for. */
interface Choice {
  readonly index: number
  text: string
  tokens: number
  finishReason: string | null
  readonly logprobs: object[]
}

export function chatServer(options: ServerOptions): Server {
  const created = Math.floor(Date.now() / 1000)
  const card = { id: options.name, object: 'model', created, owned_by: 'kvtide' }
  return createServer((request, response) => {
    void answer(request, response).catch((error: unknown) => fail(response, error))
  })

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname } = new URL(request.url ?? '/', 'http://server')
    const route = `${request.method} ${pathname}`
    if (route === 'GET /health') return send(response, 200, { status: 'ok' })
    if (route === 'GET /v1/models') return send(response, 200, { object: 'list', data: [card] })
    if (route === 'GET /v1/stats') return send(response, 200, options.model.cache.stats())
    if (route !== 'POST /v1/chat/completions') throw new Refusal(404, `there is no ${route}`)
    const chat = readRequest(await bodyOf(request, options.maxBodyBytes ?? 2 ** 22), options.name)
    await complete(chat, /^Bearer (.+)$/.exec(request.headers.authorization ?? '')?.[1], response)
  }

  async function complete(chat: ChatRequest, key: string | undefined, response: ServerResponse): Promise<void> {
    const { model, codec, name } = options
    const tokens = Uint32Array.from(codec.encodeChat(chat.messages))
    const head = { id: `chatcmpl-${randomUUID()}`, created: Math.floor(Date.now() / 1000), model: name }
    const stopped = new AbortController()
    // A client that hangs up pays for nobody's steps any longer.
    response.on('close', () => stopped.abort())
    using first = model.open(key === undefined ? { tokens } : { tokens, salt: key })
    const cached = first.length
    const others = Array.from({ length: chat.count - 1 }, () => first.fork())
    const choices = Array.from({ length: chat.count }, (_, index): Choice => ({ index, text: '', tokens: 0, finishReason: null, logprobs: [] }))
    const usage = () => {
      const completion = choices.reduce((sum, choice) => sum + choice.tokens, 0)
      return { prompt_tokens: tokens.length, completion_tokens: completion, total_tokens: tokens.length + completion, prompt_tokens_details: { cached_tokens: cached } }
    }
    const chunk = (delta: object, choice: Choice, entries: readonly object[] = []) =>
      event(response, {
        ...head,
        object: 'chat.completion.chunk',
        choices: [{ index: choice.index, delta, finish_reason: choice.finishReason, logprobs: chat.logprobs === undefined ? null : { content: entries } }],
      })
    const run = async (choice: Choice): Promise<void> => {
      const sequence = choice.index === 0 ? first : (others[choice.index - 1] as typeof first)
      const text = new TextStream(codec, chat.stop)
      const { seed, maxTokens = options.maxTokens ?? 1024, ...sampling } = chat.sampling
      const asked = { ...sampling, maxTokens, stop: codec.stop, signal: stopped.signal, ...(seed === undefined ? {} : { seed: seed + choice.index }), ...(chat.logprobs === undefined ? {} : { logprobs: chat.logprobs }) }
      const generation = model.generate(sequence, asked)
      const give = async (piece: string, entries: object[]): Promise<void> => {
        choice.text += piece
        choice.logprobs.push(...entries)
        if (chat.stream && (piece !== '' || entries.length > 0)) await chunk({ content: piece }, choice, entries)
      }
      if (chat.stream) await chunk({ role: 'assistant', content: '' }, choice)
      for await (const token of generation) {
        choice.tokens += 1
        await give(text.push(token), chat.logprobs === undefined ? [] : [entry(codec, generation.logprobs)])
        if (text.ended) break
      }
      await give(text.flush(), [])
      choice.finishReason = text.ended ? 'stop' : (generation.finishReason ?? 'stop')
      if (chat.stream) await chunk({}, choice)
    }
    try {
      if (chat.stream) response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' })
      const ended = await Promise.allSettled(choices.map(run))
      for (const end of ended) if (end.status === 'rejected') throw end.reason
      if (!chat.stream) {
        const answers = choices.map(({ index, text, finishReason, logprobs }) => ({
          index,
          message: { role: 'assistant', content: text, refusal: null },
          finish_reason: finishReason,
          logprobs: chat.logprobs === undefined ? null : { content: logprobs },
        }))
        return send(response, 200, { ...head, object: 'chat.completion', choices: answers, usage: usage() })
      }
      if (chat.includeUsage) await event(response, { ...head, object: 'chat.completion.chunk', choices: [], usage: usage() })
      response.end('data: [DONE]\n\n')
    } finally {
      others.forEach(other => other.dispose())
    }
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

async function bodyOf(request: IncomingMessage, most: number): Promise<string> {
  const parts: Buffer[] = []
  let length = 0
  for await (const part of request as AsyncIterable<Buffer>) {
    length += part.length
    if (length > most) throw new Refusal(413, `the request has more than ${most} bytes`)
    parts.push(part)
  }
  return Buffer.concat(parts).toString('utf8')
}

function send(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json; charset=utf-8' }).end(JSON.stringify(body))
}

/** Sends an event, and waits while the client reads more slowly than the model writes. */
async function event(response: ServerResponse, body: object): Promise<void> {
  if (response.destroyed || response.write(`data: ${JSON.stringify(body)}\n\n`)) return
  await new Promise<void>(resolve => {
    const go = () => {
      response.off('drain', go).off('close', go)
      resolve()
    }
    response.on('drain', go).on('close', go)
  })
}

function fail(response: ServerResponse, error: unknown): void {
  if (response.destroyed) return
  const refusal = refusalOf(error)
  if (!response.headersSent) return send(response, refusal.status, refusal.body)
  // The status is on its way already: what went wrong comes as the last event.
  response.end(`data: ${JSON.stringify(refusal.body)}\n\n`)
}

function refusalOf(error: unknown): Refusal {
  if (error instanceof Refusal) return error
  if (isKvTideError(error)) {
    const status = error.code === 'INVALID_ARGUMENT' ? 400 : error.code === 'OUT_OF_BLOCKS' ? 503 : 500
    return new Refusal(status, error.message, null, error.code)
  }
  console.error(error)
  return new Refusal(500, 'the server failed')
}
