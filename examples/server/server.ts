// A chat server with OpenAI's HTTP API, on `kvtide/onnx`.
//
//   npx tsx examples/server/main.ts --model model.onnx [--tokenizer folder | bytes] [--port 8080]
//
// The requests of all clients are batched in shared steps. A prefix that two prompts of a tenant share is computed once: the API key is the salt.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'

import { Tenants } from './auth.js'
import { Completion, type Served } from './completion.js'
import { bodyOf, pathOf, send } from './http.js'
import { Line } from './line.js'
import { Refusal, refusalOf } from './refusal.js'
import { readRequest } from './request.js'

export interface ServerOptions extends Served {
  /** The accepted API keys. Without them, every key is a tenant of its own, and all requests without a key are one tenant. */
  readonly keys?: Iterable<string>
  /** The maximum number of waiting requests, 256 by default. */
  readonly maxWaiting?: number
  /** The maximum size of a request, 4 MiB by default. */
  readonly maxBodyBytes?: number
}

type Answer = (request: IncomingMessage, response: ServerResponse) => Promise<void> | void

export function chatServer(options: ServerOptions): Server {
  const created = Math.floor(Date.now() / 1000)
  const card = { id: options.name, object: 'model', created, owned_by: 'kvtide' }
  const tenants = new Tenants(options.keys)
  const line = new Line(options.model, options.maxWaiting ?? 256)
  /** Wraps a handler so that it checks the API key first. */
  const keyed =
    (answer: (tenant: string | undefined, ...of: Parameters<Answer>) => ReturnType<Answer>): Answer =>
    (request, response) =>
      answer(tenants.of(request), request, response)
  const routes: Readonly<Record<string, Readonly<Record<string, Answer>>>> = {
    '/health': { GET: (_, response) => send(response, 200, { status: 'ok' }) },
    '/v1/models': { GET: keyed((_, __, response) => send(response, 200, { object: 'list', data: [card] })) },
    '/v1/stats': { GET: keyed((_, __, response) => send(response, 200, options.model.cache.stats())) },
    '/v1/chat/completions': {
      POST: keyed(async (tenant, request, response) => {
        const chat = readRequest(await bodyOf(request, options.maxBodyBytes ?? 2 ** 22), {
          name: options.name,
          vocabulary: options.model.vocabularySize,
        })
        await new Completion(options, line, chat, response).answer(tenant)
      }),
    },
  }
  const answer: Answer = async (request, response) => {
    const path = pathOf(request)
    const methods = Object.hasOwn(routes, path) ? (routes[path] as Readonly<Record<string, Answer>>) : undefined
    if (methods === undefined) throw new Refusal(404, `there is no ${request.method} ${path.slice(0, 200)}`)
    const method = request.method === 'HEAD' ? 'GET' : (request.method ?? 'GET')
    const known = Object.hasOwn(methods, method) ? methods[method] : undefined
    if (known === undefined)
      throw new Refusal(405, `there is no ${request.method} ${path}`, null, 'method_not_supported', {
        allow: Object.keys(methods).join(', '),
      })
    await known(request, response)
  }
  return createServer((request, response) => {
    void (async () => answer(request, response))().catch((error: unknown) => fail(response, error))
  })
}

function fail(response: ServerResponse, error: unknown): void {
  if (response.destroyed) return
  const refusal = refusalOf(error)
  if (!response.headersSent) return send(response, refusal.status, refusal.body, refusal.headers)
  // The status was sent already, so the error is sent as the last event.
  response.end(`data: ${JSON.stringify(refusal.body)}\n\n`)
}
