// A server for tests with a client that sends what a test writes.
import { request as httpRequest } from 'node:http'
import { connect, type Socket } from 'node:net'

import type { ExecutionContext } from 'ava'

import { createServer, type ServerOptions, type TextServer } from '../../../packages/serve/index.js'
import { ScriptedModel } from './scripted-model.js'

export const MESSAGES: readonly { readonly role: string; readonly content: string }[] = [
  { role: 'user', content: 'What is a cache?' },
]

/** Answers of servers, as far as tests read them. */
export interface Answer {
  readonly object: string
  readonly choices: readonly {
    readonly index: number
    readonly text: string
    readonly message: { readonly content: string | null; readonly tool_calls?: readonly object[] }
    readonly delta: { readonly role?: string; readonly content?: string; readonly tool_calls?: readonly object[] }
    readonly finish_reason: string | null
    readonly logprobs: { readonly content: readonly { readonly token: string; readonly bytes: number[] }[] } | null
  }[]
  readonly usage: {
    readonly prompt_tokens: number
    readonly completion_tokens: number
    readonly total_tokens: number
    readonly prompt_tokens_details: { readonly cached_tokens: number }
  }
  readonly error: {
    readonly message: string
    readonly type: string
    readonly param: string | null
    readonly code: string | null
  }
}

/** The events of a stream, without the final `[DONE]`. */
export function eventsOf(body: string): Answer[] {
  const lines = body.split('\n\n').filter(line => line !== '')
  if (lines.pop() !== 'data: [DONE]') throw new Error(`the stream does not say that it is done: ${body.slice(-200)}`)
  return lines.map(line => JSON.parse(line.replace(/^data: /, '')) as Answer)
}

interface Call {
  readonly key?: string | undefined
  readonly headers?: Readonly<Record<string, string | string[]>>
  readonly signal?: AbortSignal
  readonly path?: string
}

/** A server, and requests to it. */
export class Client {
  readonly server: TextServer
  readonly model: ScriptedModel
  readonly at: string

  constructor(server: TextServer, model: ScriptedModel, at: string) {
    this.server = server
    this.model = model
    this.at = at
  }

  /** Starts a server of a scripted model, which runs until the test ends. */
  static async of(
    t: ExecutionContext,
    options: Partial<ServerOptions> = {},
    model: ScriptedModel = new ScriptedModel(),
  ): Promise<Client> {
    const client = await Client.start(options, model)
    t.teardown(() => client.server.close())
    return client
  }

  static async start(
    options: Partial<ServerOptions> = {},
    model: ScriptedModel = new ScriptedModel(),
  ): Promise<Client> {
    const server = createServer({ maxBodyBytes: 2 ** 16, ...options, model: options.model ?? model.asModel })
    return new Client(server, model, await server.listen({ port: 0 }))
  }

  get port(): number {
    return Number(new URL(this.at).port)
  }

  post(
    body: object | string,
    { key, headers = {}, signal, path = '/v1/chat/completions' }: Call = {},
  ): Promise<Response> {
    return fetch(`${this.at}${path}`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
        ...(headers as Record<string, string>),
      },
      body: typeof body === 'string' ? body : JSON.stringify(body),
      ...(signal === undefined ? {} : { signal }),
    })
  }

  async asked(body: object, call?: Call): Promise<Answer> {
    return (await (await this.post({ messages: MESSAGES, ...body }, call)).json()) as Answer
  }

  async completed(body: object, call?: Call): Promise<Answer> {
    return (await (await this.post(body, { ...call, path: '/v1/completions' })).json()) as Answer
  }

  async streamed(body: object, call?: Call): Promise<Answer[]> {
    return eventsOf(await (await this.post({ messages: MESSAGES, stream: true, ...body }, call)).text())
  }

  async text(path: string, headers: Record<string, string> = {}): Promise<string> {
    return (await fetch(`${this.at}${path}`, { headers })).text()
  }

  /** A sample of a metric. */
  async metric(name: string): Promise<number> {
    const line = (await this.text('/metrics')).split('\n').find(each => each.startsWith(name))
    return Number(line?.split(' ').at(-1))
  }

  /** Sends a request exactly as written, where `fetch` would correct it. */
  raw(
    method: string,
    path: string,
    { headers = {} }: Call = {},
    body = '',
  ): Promise<{ readonly status: number; readonly headers: Record<string, string>; readonly body: string }> {
    return new Promise((resolve, reject) => {
      const { hostname, port } = new URL(this.at)
      const sent = httpRequest({ hostname, port, method, path, headers, agent: false }, async response => {
        let text = ''
        for await (const part of response) text += String(part)
        resolve({ status: response.statusCode ?? 0, headers: response.headers as Record<string, string>, body: text })
      })
      sent.on('error', reject)
      sent.end(body)
    })
  }

  /** Opens a connection that sends a request for a stream and reads nothing. */
  silent(body: object, path = '/v1/chat/completions', key?: string): Socket {
    const text = JSON.stringify(body)
    const authorization = key === undefined ? '' : `Authorization: Bearer ${key}\r\n`
    const socket = connect(this.port, '127.0.0.1')
    socket.pause()
    socket.on('error', () => {})
    socket.write(
      `POST ${path} HTTP/1.1\r\nHost: x\r\n${authorization}Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`,
    )
    return socket
  }
}
