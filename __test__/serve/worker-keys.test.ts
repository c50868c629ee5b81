// The keys of a prompt's blocks, which a router asks a worker for: bounded work that lets other requests go on.
import { once } from 'node:events'

import test from 'ava'

import { type Answer, Client, MESSAGES } from '../support/serve/client.js'
import { textServer } from '../support/serve/text-server.js'
import { until } from '../support/until.js'

const KEYS = '/worker/keys?of=chat'

test('keys of two prompts are computed at once, and a client that leaves ends its own', async t => {
  const client = await Client.of(t)
  const { tokenizer } = client.model
  const { encode } = tokenizer
  const gates: (() => void)[] = []
  const signals: (AbortSignal | undefined)[] = []
  Object.assign(tokenizer, {
    encodeAsync: (text: string, { signal }: { readonly signal?: AbortSignal } = {}) => {
      signals.push(signal)
      return new Promise((resolve, reject) => {
        gates.push(() => resolve(encode(text)))
        signal?.addEventListener('abort', () => reject(signal.reason as Error))
      })
    },
  })
  const gone = new AbortController()
  const ask = (signal?: AbortSignal): Promise<Response> =>
    client.post({ messages: MESSAGES }, { path: KEYS, ...(signal === undefined ? {} : { signal }) })
  const left = ask(gone.signal)
  const kept = ask()
  t.true(await until(() => gates.length === 2))
  const refused = await ask()
  t.deepEqual([refused.status, ((await refused.json()) as Answer).error.code], [503, 'overloaded'])
  t.regex(refused.headers.get('retry-after') ?? '', /^\d+$/)
  t.is(gates.length, 2)
  gone.abort()
  await t.throwsAsync(left, { any: true })
  t.true(await until(() => signals.some(signal => signal?.aborted === true)), 'its work ends')
  const next = ask()
  t.true(await until(() => gates.length === 3))
  gates.forEach(open => open())
  for (const response of await Promise.all([kept, next])) {
    t.is(response.status, 200)
    t.is((await response.arrayBuffer()).byteLength % 8, 0)
  }
})

test('a long prompt leaves the event loop its turns, and has no keys if it exceeds the context', async t => {
  await using server = await textServer({ maxBodyBytes: 2 ** 23 })
  const { client } = server
  const short = await client.post({ messages: MESSAGES }, { path: KEYS })
  t.is(short.status, 200)
  t.true((await short.arrayBuffer()).byteLength > 0)
  const text = 'a long prompt of many words, '.repeat(30_000)
  for (const [path, body, param] of [
    [KEYS, { messages: [{ role: 'user', content: text }] }, 'messages'],
    ['/worker/keys?of=completions', { prompt: text }, 'prompt'],
  ] as const) {
    let [longest, before] = [0, performance.now()]
    const timer = setInterval(() => {
      const now = performance.now()
      longest = Math.max(longest, now - before)
      before = now
    }, 1)
    const start = performance.now()
    const response = await client.post(body, { path })
    const whole = performance.now() - start
    clearInterval(timer)
    const { error } = (await response.json()) as Answer
    t.deepEqual([response.status, error.code, error.param], [400, 'context_length_exceeded', param])
    t.true(longest < whole / 2, `${longest} ms of ${whole} ms without a turn`)
  }
})

test('work on keys ends if the client leaves', async t => {
  await using server = await textServer({ maxBodyBytes: 2 ** 23 })
  const { client } = server
  const gone = new AbortController()
  const messages = [{ role: 'user', content: 'a long prompt of many words, '.repeat(100_000) }]
  const asked = client.post({ messages }, { path: KEYS, signal: gone.signal })
  await once(client.server.app.server, 'request')
  gone.abort()
  await t.throwsAsync(asked, { any: true })
  t.true(await until(async () => (await client.metric('kvtide_serve_refused_total{status="499"}')) === 1))
})

test('keys of a chat with tools are those of the prompt that is computed, for each choice of tools', async t => {
  await using server = await textServer()
  const { client } = server
  const parameters = { type: 'object', properties: { depth: { type: 'number' } } }
  const tools = [{ type: 'function', function: { name: 'dive', parameters } }]
  const keysOf = async (more: object): Promise<string> => {
    const response = await client.post({ messages: MESSAGES, ...more }, { path: KEYS })
    t.is(response.status, 200, JSON.stringify(more))
    return Buffer.from(await response.arrayBuffer()).toString('hex')
  }
  const [without, withTools] = [await keysOf({}), await keysOf({ tools })]
  t.true(without.length > 0 && withTools.length > without.length)
  t.is(await keysOf({ tools, tool_choice: 'none' }), without)
  for (const tool_choice of ['auto', 'required', { type: 'function', function: { name: 'dive' } }])
    t.is(await keysOf({ tools, tool_choice }), withTools)
})
