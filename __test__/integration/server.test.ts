// The chat server of examples/, over HTTP, with the reference model and bytes as text.
import { once } from 'node:events'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'

import test, { type ExecutionContext } from 'ava'
import { OnnxModel } from 'kvtide/onnx'

import { chatServer } from '../../examples/server/server.js'
import { bytes, TextStream } from '../../examples/server/text.js'

let model: OnnxModel
let server: Server
let at: string

test.before(async () => {
  model = await OnnxModel.load('__test__/fixtures/llama/onnx/model.onnx', { threads: 1, cache: { memoryBytes: 2 ** 24, maxSequences: 16 } })
  server = chatServer({ model, codec: bytes, name: 'tiny', maxTokens: 16, maxBodyBytes: 4096 })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  at = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})

test.after.always(async () => {
  server.closeAllConnections()
  server.close()
  await model.dispose()
})

const messages = [{ role: 'user', content: 'What is a cache?' }]

const post = (body: object | string, key = 'tenant', signal?: AbortSignal): Promise<Response> =>
  fetch(`${at}/v1/chat/completions`, { method: 'POST', headers: { authorization: `Bearer ${key}` }, body: typeof body === 'string' ? body : JSON.stringify(body), ...(signal === undefined ? {} : { signal }) })

interface Choice {
  readonly index: number
  readonly message: { readonly content: string }
  readonly delta: { readonly content?: string }
  readonly finish_reason: string | null
  readonly logprobs: { readonly content: readonly { readonly token: string; readonly logprob: number; readonly top_logprobs: readonly object[] }[] } | null
}

interface Answer {
  readonly object: string
  readonly choices: readonly Choice[]
  readonly usage: { readonly prompt_tokens: number; readonly completion_tokens: number; readonly prompt_tokens_details: { readonly cached_tokens: number } }
  readonly error: { readonly message: string; readonly param: string | null; readonly code: string | null }
}

const asked = async (body: object, key?: string): Promise<Answer> => (await (await post({ model: 'tiny', messages, temperature: 0, ...body }, key)).json()) as Answer

/** The events of a stream, without the last one, which says that it is done. */
async function events(response: Response): Promise<Answer[]> {
  const lines = (await response.text()).split('\n\n').filter(line => line !== '')
  if (lines.pop() !== 'data: [DONE]') throw new Error('the stream does not say that it is done')
  return lines.map(line => JSON.parse(line.replace(/^data: /, '')) as Answer)
}

const first = ({ choices }: Answer): Choice => choices[0] as Choice

test('an answer has its text, why it ended, and what it cost', async t => {
  const answer = await asked({ max_tokens: 12 })
  t.is(answer.object, 'chat.completion')
  t.is(first(answer).finish_reason, 'length')
  t.is(answer.usage.completion_tokens, 12)
  t.is(answer.usage.prompt_tokens, bytes.encodeChat(messages).length)
})

test('a stream has the same text, whole characters only', async t => {
  const whole = await asked({ max_tokens: 14 })
  const parts = await events(await post({ model: 'tiny', messages, temperature: 0, max_tokens: 14, stream: true, stream_options: { include_usage: true } }))
  const choices = parts.flatMap(part => part.choices)
  t.is(choices.map(({ delta }) => delta.content ?? '').join(''), first(whole).message.content)
  t.is(choices.at(-1)?.finish_reason, 'length')
  t.is(parts.at(-1)?.usage.completion_tokens, 14)
})

test('a prompt is found by its tenant alone', async t => {
  const long = [{ role: 'user', content: 'x'.repeat(200) }]
  const cached = async (key: string): Promise<number> => (await asked({ messages: long, max_tokens: 1 }, key)).usage.prompt_tokens_details.cached_tokens
  t.is(await cached('one'), 0)
  t.true((await cached('one')) >= 192)
  t.is(await cached('other'), 0)
})

test('several answers, each with a seed of its own, are the same again', async t => {
  const twice = await Promise.all([1, 2].map(() => asked({ n: 3, temperature: 1, seed: 5, max_tokens: 10 })))
  const [one, two] = twice.map(({ choices }) => choices.map(({ message }) => message.content))
  t.deepEqual(one, two)
  t.is(new Set(one).size, 3)
})

test('log-probabilities come with each token', async t => {
  const { logprobs } = first(await asked({ max_tokens: 4, logprobs: true, top_logprobs: 3 }))
  t.is(logprobs?.content.length, 4)
  t.true(logprobs?.content.every(({ logprob, top_logprobs }) => logprob <= 0 && top_logprobs.length === 3))
})

test('a stop text ends an answer, and is not part of it', async t => {
  const text = first(await asked({ max_tokens: 14 })).message.content
  const stop = [...text].slice(3, 5).join('')
  const stopped = first(await asked({ max_tokens: 14, stop }))
  t.is(stopped.message.content, text.slice(0, text.indexOf(stop)))
  t.is(stopped.finish_reason, 'stop')
})

test('twenty clients at once get what each gets alone', async t => {
  const prompts = Array.from({ length: 20 }, (_, client) => [{ role: 'user', content: `client ${client}` }])
  const alone: string[] = []
  for (const prompt of prompts) alone.push(first(await asked({ messages: prompt, max_tokens: 8 }, 'alone')).message.content)
  const together = await Promise.all(prompts.map(async prompt => first(await asked({ messages: prompt, max_tokens: 8 }, 'together')).message.content))
  t.deepEqual(together, alone)
})

const refused = async (t: ExecutionContext, body: object | string, status: number, param: string | null): Promise<void> => {
  const response = await post(body)
  const { error } = (await response.json()) as Answer
  t.deepEqual([response.status, error.param], [status, param], error.message)
}

test('what is wrong is refused with its name', async t => {
  await refused(t, 'no json', 400, null)
  await refused(t, '[]', 400, null)
  await refused(t, {}, 400, 'messages')
  await refused(t, { messages: [{ role: 'user', content: 4 }] }, 400, 'messages[0].content')
  await refused(t, { messages, model: 'other' }, 404, 'model')
  for (const [param, value] of Object.entries({ temperature: 3, top_p: -1, n: 0, max_tokens: 0.5, stop: [''], stream: 'yes', logit_bias: { a: 1 }, tools: [{}], response_format: { type: 'json_object' } })) {
    await refused(t, { messages, [param]: value }, 400, param)
  }
  await refused(t, { messages: [{ role: 'user', content: 'x'.repeat(5000) }] }, 413, null)
  t.is((await fetch(`${at}/v1/nothing`)).status, 404)
})

test('a client that hangs up ends its generation', async t => {
  const gone = new AbortController()
  const response = await post({ messages, temperature: 0, max_tokens: 400, stream: true }, 'gone', gone.signal)
  const reader = response.body?.getReader()
  await reader?.read()
  gone.abort()
  await t.throwsAsync(
    async () => {
      for (;;) if ((await reader?.read())?.done !== false) return
    },
    { any: true },
  )
  // Its sequence goes, and nothing is computed any more.
  while (model.cache.stats().activeBlocks > 0) await new Promise(resolve => setTimeout(resolve, 5))
  t.is((await asked({ max_tokens: 2 })).usage.completion_tokens, 2)
})

test('text of a stream is held back where it may be the start of a stop text', t => {
  const stream = new TextStream(bytes, ['stop!', 'op'])
  const ids = bytes.encode('a st é sto')
  t.is(ids.map(id => stream.push(id)).join(''), 'a st é ')
  t.is(bytes.encode('p and more').map(id => stream.push(id)).join(''), 'st')
  t.true(stream.ended)
  t.is(stream.flush(), '')
})

test('half a character waits for its other half', t => {
  const stream = new TextStream(bytes, [])
  t.deepEqual(bytes.encode('é!').map(id => stream.push(id)), ['', 'é', '!'])
})
