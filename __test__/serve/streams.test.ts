// Streams and their ends: slow readers, clients that hang up, time-outs, a full server, and draining.
import { setTimeout as sleep } from 'node:timers/promises'

import test from 'ava'
import type { TextEvent } from 'kvtide/text'

import { until } from '../support/until.js'
import { type Answer, Client, eventsOf, MESSAGES } from '../support/serve/client.js'
import { said, ScriptedModel } from '../support/serve/scripted-model.js'

/** An answer without an end. */
function* endless(): Generator<TextEvent> {
  for (;;) yield said('x'.repeat(1000))
}

/** An answer that says one word, and then nothing until `go` is called. */
function held(): { readonly model: ScriptedModel; readonly go: () => void } {
  const gate = deferred()
  const model = new ScriptedModel(async function* () {
    yield said('one')
    await gate.promise
    yield said(' two')
  })
  return { model, go: () => gate.resolve() }
}

function deferred(): { promise: Promise<void>; resolve: () => void } {
  const resolves: (() => void)[] = []
  const promise = new Promise<void>(resolve => resolves.push(resolve))
  return { promise, resolve: () => resolves.forEach(resolve => resolve()) }
}

const STREAM = { messages: MESSAGES, stream: true }

test('a slow reader pauses its generation, and loses its connection after a while', async t => {
  const model = new ScriptedModel(endless)
  const client = await Client.of(t, { times: { write: 1 } }, model)
  const socket = client.silent(STREAM)
  t.true(await until(() => model.events > 10))
  let before = -1
  t.true(await until(() => before === (before = model.events), 200), 'the generation pauses')
  t.true(model.events < 20_000, `${model.events} kilobytes were generated for a client that reads nothing`)
  t.true(await until(() => model.running === 0), 'the generation ends')
  t.true(await until(() => client.server.active === 0))
  const connections = (): Promise<number> =>
    new Promise(resolve => client.server.app.server.getConnections((_, count) => resolve(count)))
  t.true(await until(async () => (await connections()) === 0), 'its connection is closed')
  socket.destroy()
  t.true((await client.metric('vllm:request_success_total{model_name="scripted",finished_reason="abort"}')) === 1)
})

test('a request for many answers causes no warning about listeners', async t => {
  const warnings: string[] = []
  const onWarning = ({ message }: Error): void => void warnings.push(message)
  process.on('warning', onWarning)
  t.teardown(() => process.off('warning', onWarning))
  const client = await Client.of(t)
  t.is((await client.asked({ n: 16 })).choices.length, 16)
  await sleep(0)
  t.deepEqual(warnings, [])
})

test('a slow reader that goes on gets everything', async t => {
  const words = Array.from({ length: 3000 }, (_, index) => said(`${index} `.repeat(100)))
  const client = await Client.of(t, {}, new ScriptedModel(() => words))
  const response = await client.post(STREAM)
  const reader = (response.body as ReadableStream<Uint8Array>).getReader()
  let text = ''
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += Buffer.from(part.value).toString()
    if (text.length < 2 ** 20) await sleep(2)
  }
  const content = eventsOf(text)
    .flatMap(({ choices }) => choices)
    .map(({ delta }) => delta.content ?? '')
    .join('')
  t.is(content, words.map(event => ('text' in event ? event.text : '')).join(''))
})

test('a client that hangs up ends its generations, streamed or not, in the line as well', async t => {
  const { model, go } = held()
  const client = await Client.of(t, { maxRunning: 2 }, model)
  const gone = new AbortController()
  const hung: Promise<unknown>[] = [
    client.post(STREAM, { signal: gone.signal }).then(response => response.text()),
    client.asked({}, { signal: gone.signal }),
  ]
  t.true(await until(() => model.events === 2))
  hung.push(client.asked({}, { signal: gone.signal }))
  t.true(await until(async () => (await client.metric('vllm:num_requests_waiting')) === 1))
  gone.abort()
  for (const { status } of await Promise.allSettled(hung)) t.is(status, 'rejected')
  t.true(await until(() => model.running === 0))
  t.true(await until(() => client.server.active === 0))
  t.is(model.asked.length, 2)
  go()
})

test('a full server says when to come again', async t => {
  const { model, go } = held()
  const client = await Client.of(t, { maxRunning: 1, maxWaiting: 1 }, model)
  const [first, second] = [client.asked({}), client.asked({})]
  t.true(await until(async () => (await client.metric('vllm:num_requests_waiting')) === 1))
  for (const body of [{}, { stream: true }]) {
    const response = await client.post({ messages: MESSAGES, ...body })
    const { error } = (await response.json()) as Answer
    t.deepEqual([response.status, error.type, error.code], [503, 'server_error', 'overloaded'])
    t.regex(response.headers.get('retry-after') ?? '', /^\d+$/)
  }
  t.is(await client.metric('vllm:num_requests_running'), 1)
  go()
  for (const each of [first, second]) t.is((await each).choices[0]?.message.content, 'one two')
  t.true(await until(async () => (await client.metric('vllm:num_requests_running')) === 0))
  t.is(await client.metric('kvtide_serve_refused_total{status="503"}'), 2)
})

test('a tenant that asks too much gets 429, and another one is served', async t => {
  const { model, go } = held()
  const client = await Client.of(
    t,
    { maxRunning: 1, maxWaiting: 2, keys: [{ key: 'greedy' }, { key: 'modest' }] },
    model,
  )
  const running = client.post({ messages: MESSAGES }, { key: 'greedy' })
  t.true(await until(() => model.events === 1))
  const more = Array.from({ length: 3 }, () => client.post({ messages: MESSAGES }, { key: 'greedy' }))
  t.true(await until(async () => (await client.metric('kvtide_serve_refused_total{status="429"}')) === 1))
  const modest = client.post({ messages: MESSAGES }, { key: 'modest' })
  t.true(await until(async () => (await client.metric('kvtide_serve_refused_total{status="429"}')) === 2))
  go()
  t.is((await modest).status, 200)
  const statuses = (await Promise.all([running, ...more])).map(({ status }) => status)
  t.deepEqual(statuses.sort(), [200, 200, 429, 429])
})

test('time-outs: before the first token, and of the whole request', async t => {
  const silent = new ScriptedModel(async function* () {
    await sleep(60_000, undefined, { ref: false })
    yield said('late')
  })
  const first = await Client.of(t, { times: { firstToken: 0.2 } }, silent)
  for (const body of [{}, { stream: true }]) {
    const response = await first.post({ messages: MESSAGES, ...body })
    t.deepEqual([response.status, ((await response.json()) as Answer).error.code], [504, 'timeout'])
  }
  t.is(silent.running, 0)
  const slow = new ScriptedModel(async function* () {
    for (;;) {
      yield said('x')
      await sleep(20)
    }
  })
  const whole = await Client.of(t, { times: { request: 0.3 } }, slow)
  t.is((await whole.post({ messages: MESSAGES })).status, 504)
  const text = await (await whole.post(STREAM)).text()
  t.regex(
    text,
    /^data: \{"id"[\s\S]*\n\ndata: \{"error":\{"message":"the answer took longer[^\n]*"code":"timeout"\}\}\n\n$/,
  )
  t.is(slow.running, 0)
})

test('an error before the first token has its own status, and one behind it is the last event', async t => {
  const model = new ScriptedModel(() => {
    throw new Error('canary: /home/model is broken')
  })
  const client = await Client.of(t, {}, model)
  const response = await client.post(STREAM)
  t.is(response.status, 500)
  t.false((await response.text()).includes('canary'))
  model.script = function* () {
    yield said('one')
    throw new Error('canary')
  }
  const text = await (await client.post(STREAM)).text()
  t.regex(text, /"content":"one"[\s\S]*data: \{"error":\{"message":"the server failed"/)
  t.false(text.includes('canary') || text.includes('[DONE]'))
})

test('draining: health fails, new requests are refused, running ones finish', async t => {
  const { model, go } = held()
  const client = await Client.start({ maxRunning: 1 }, model)
  const streamed = client.post(STREAM).then(response => response.text())
  t.true(await until(() => model.events === 1))
  const waiting = client.post({ messages: MESSAGES })
  t.true(await until(async () => (await client.metric('vllm:num_requests_waiting')) === 1))
  const drained = client.server.drain()
  t.is((await waiting).status, 503)
  for (const path of ['/health', '/ready']) t.is((await fetch(`${client.at}${path}`)).status, 503)
  t.is((await client.post({ messages: MESSAGES })).status, 503)
  t.is(client.server.active, 1)
  go()
  await drained
  t.is(
    eventsOf(await streamed)
      .flatMap(({ choices }) => choices)
      .map(({ delta }) => delta.content ?? '')
      .join(''),
    'one two',
  )
  await t.throwsAsync(fetch(`${client.at}/health`))
})

test('a server that is closed while it drains ends both calls', async t => {
  const { model } = held()
  const client = await Client.start({ times: { drain: 60 } }, model)
  const streamed = client.post(STREAM).then(response => response.text())
  t.true(await until(() => model.events === 1))
  const ended = [client.server.drain(), client.server.close(), client.server.drain()]
  t.is(await Promise.race([Promise.all(ended).then(() => 'ended'), sleep(20_000, 'still waits')]), 'ended')
  t.regex(await streamed, /"content":"one"[\s\S]*data: \{"error":\{"message":"the server is shutting down"/)
})

test('draining ends what takes too long', async t => {
  const { model } = held()
  const client = await Client.start({ times: { drain: 0.2 } }, model)
  const streamed = client.post(STREAM).then(response => response.text())
  t.true(await until(() => model.events === 1))
  await client.server.drain()
  t.regex(await streamed, /"content":"one"[\s\S]*data: \{"error":\{"message":"the server is shutting down"/)
  t.is(model.running, 0)
})

test('several answers and several prompts are computed with at most as many at once as there are places', async t => {
  let most = 0
  const model = new ScriptedModel(async function* (asked, call) {
    most = Math.max(most, model.running)
    yield said(`${String(asked.prompt)}${asked.seed ?? call};`)
    await sleep(5)
  })
  const client = await Client.of(t, { maxRunning: 3 }, model)
  const { choices, usage } = await client.completed({ prompt: ['a', 'b'], n: 4, seed: 5 })
  t.deepEqual(
    choices.map(({ index, text }) => `${index}${text}`),
    ['0a5;', '1a6;', '2a7;', '3a8;', '4b5;', '5b6;', '6b7;', '7b8;'],
  )
  t.is(most, 3)
  t.deepEqual([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens], [2, 8, 10])
})

test('calls of tools are streamed as deltas, and collected otherwise', async t => {
  const calls: TextEvent[] = [
    { type: 'reasoning', text: 'hm', tokens: [3] },
    { type: 'tool-call', index: 0, id: 'a', name: 'look' },
    { type: 'tool-arguments', index: 0, text: '{"at":' },
    { type: 'tool-arguments', index: 0, text: '1}' },
    { type: 'tool-call', index: 1, id: 'b', name: 'look' },
    { type: 'tool-arguments', index: 1, text: '{}' },
  ]
  const client = await Client.of(t, {}, new ScriptedModel(() => calls))
  const whole = [
    { id: 'a', type: 'function', function: { name: 'look', arguments: '{"at":1}' } },
    { id: 'b', type: 'function', function: { name: 'look', arguments: '{}' } },
  ]
  const { message } = (await client.asked({})).choices[0] ?? t.fail()
  t.deepEqual([message.content, message.tool_calls], [null, whole])
  const deltas = (await client.streamed({})).flatMap(({ choices }) => choices).map(({ delta }) => delta)
  t.deepEqual(
    deltas.map(({ role, tool_calls }) => role ?? tool_calls?.[0]),
    [
      'assistant',
      undefined,
      { index: 0, id: 'a', type: 'function', function: { name: 'look', arguments: '' } },
      { index: 0, function: { arguments: '{"at":' } },
      { index: 0, function: { arguments: '1}' } },
      { index: 1, id: 'b', type: 'function', function: { name: 'look', arguments: '' } },
      { index: 1, function: { arguments: '{}' } },
      undefined,
    ],
  )
  const single = (await client.asked({ parallel_tool_calls: false })).choices[0]
  t.deepEqual([single?.message.tool_calls, single?.finish_reason], [whole.slice(0, 1), 'tool_calls'])
})
