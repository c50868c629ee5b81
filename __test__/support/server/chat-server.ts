// The chat server of examples/ for tests: with the reference model, and bytes as text.
import { once } from 'node:events'
import { request as httpRequest } from 'node:http'
import type { AddressInfo } from 'node:net'

import type { ExecutionContext } from 'ava'
import { OnnxModel, type OnnxModelOptions } from 'kvtide/onnx'

import { chatServer, type ServerOptions } from '../../../examples/server/server.js'
import { bytes } from '../../../examples/server/text.js'

export interface Choice {
  readonly index: number
  readonly message: { readonly content: string }
  readonly delta: { readonly role?: string; readonly content?: string }
  readonly finish_reason: string | null
  readonly logprobs: {
    readonly content: readonly {
      readonly token: string
      readonly logprob: number
      readonly bytes: number[] | null
      readonly top_logprobs: readonly object[]
    }[]
  } | null
}

export interface Answer {
  readonly object: string
  readonly choices: readonly Choice[]
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

type ModelConfig = NonNullable<OnnxModelOptions['config']>

interface Call {
  readonly key?: string
  readonly headers?: Readonly<Record<string, string | string[]>>
  readonly signal?: AbortSignal
}

export const messages: readonly { readonly role: string; readonly content: string }[] = [
  { role: 'user', content: 'What is a cache?' },
]

export const first = ({ choices }: Answer): Choice => choices[0] as Choice

/** The events of a stream, without the final `[DONE]`. */
export function eventsOf(body: string): Answer[] {
  const lines = body.split('\n\n').filter(line => line !== '')
  if (lines.pop() !== 'data: [DONE]') throw new Error('the stream does not say that it is done')
  return lines.map(line => JSON.parse(line.replace(/^data: /, '')) as Answer)
}

/** A server for one test file. */
export class ChatServer {
  readonly model: OnnxModel
  readonly at: string
  readonly #server: ReturnType<typeof chatServer>

  private constructor(model: OnnxModel, server: ReturnType<typeof chatServer>) {
    this.model = model
    this.#server = server
    this.at = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }

  static async start(
    options: Partial<ServerOptions> = {},
    cache: object = { memoryBytes: 2 ** 24, maxSequences: 16 },
    config?: ModelConfig,
  ): Promise<ChatServer> {
    const model = await OnnxModel.load('__test__/fixtures/llama/onnx/model.onnx', {
      threads: 1,
      cache,
      ...(config === undefined ? {} : { config }),
    })
    const server = chatServer({ model, codec: bytes, name: 'tiny', maxTokens: 16, maxBodyBytes: 4096, ...options })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    return new ChatServer(model, server)
  }

  /** Starts a server that runs until the test ends. */
  static async of(
    t: ExecutionContext,
    options?: Partial<ServerOptions>,
    cache?: object,
    config?: ModelConfig,
  ): Promise<ChatServer> {
    const server = await ChatServer.start(options, cache, config)
    t.teardown(() => server.stop())
    return server
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections()
    this.#server.close()
    await this.model.dispose()
  }

  post(body: object | string, { key = 'tenant', signal }: Call = {}): Promise<Response> {
    const text = typeof body === 'string' ? body : JSON.stringify(body)
    return fetch(`${this.at}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}` },
      body: text,
      ...(signal === undefined ? {} : { signal }),
    })
  }

  async asked(body: object, call?: Call): Promise<Answer> {
    return (await (await this.post({ model: 'tiny', messages, temperature: 0, ...body }, call)).json()) as Answer
  }

  async streamed(body: object): Promise<Answer[]> {
    return eventsOf(await (await this.post({ model: 'tiny', messages, temperature: 0, stream: true, ...body })).text())
  }

  /** Sends a request exactly as written, where `fetch` would correct it. */
  raw(
    method: string,
    path: string,
    { headers = {} }: Call = {},
    body = '',
  ): Promise<{ readonly status: number; readonly headers: object; readonly body: string }> {
    return new Promise((resolve, reject) => {
      const { hostname, port } = new URL(this.at)
      const sent = httpRequest({ hostname, port, method, path, headers, agent: false }, async response => {
        let text = ''
        for await (const part of response) text += String(part)
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body: text })
      })
      sent.on('error', reject)
      sent.end(body)
    })
  }

  /** Counts the tokens that the model computes from now on. */
  computed(): () => number {
    let tokens = 0
    const { cache } = this.model
    const { beginStep } = cache
    cache.beginStep = options => {
      tokens += (options as { readonly tokens: ArrayLike<number> }).tokens.length
      return beginStep.call(cache, options)
    }
    return () => tokens
  }
}
