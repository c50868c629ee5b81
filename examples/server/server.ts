// An HTTP server for chats, in the form of OpenAI's API, on `kvtide/onnx`.
//
//   npx tsx examples/server/main.ts --model model.onnx [--tokenizer folder | bytes] [--port 8080]
//
// All clients share the model's steps. What two prompts begin with alike is computed once, within a tenant: the API key is the salt.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'

import { isKvTideError } from 'kvtide'

import { Completion, type Served } from './completion.js'
import { bodyOf, send } from './http.js'
import { readRequest, Refusal } from './request.js'

export interface ServerOptions extends Served {
  /** The most bytes of a request, 4 MiB by default. */
  readonly maxBodyBytes?: number
}

export function chatServer(options: ServerOptions): Server {
  const created = Math.floor(Date.now() / 1000)
  const card = { id: options.name, object: 'model', created, owned_by: 'kvtide' }
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { pathname } = new URL(request.url ?? '/', 'http://server')
    const route = `${request.method} ${pathname}`
    if (route === 'GET /health') return send(response, 200, { status: 'ok' })
    if (route === 'GET /v1/models') return send(response, 200, { object: 'list', data: [card] })
    if (route === 'GET /v1/stats') return send(response, 200, options.model.cache.stats())
    if (route !== 'POST /v1/chat/completions') throw new Refusal(404, `there is no ${route}`)
    const chat = readRequest(await bodyOf(request, options.maxBodyBytes ?? 2 ** 22), options.name)
    await new Completion(options, chat, response).answer(/^Bearer (.+)$/.exec(request.headers.authorization ?? '')?.[1])
  }
  return createServer((request, response) => {
    void answer(request, response).catch((error: unknown) => fail(response, error))
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
