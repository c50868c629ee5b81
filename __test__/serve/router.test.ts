// A router in front of two workers: it finds the worker with the prompt, passes streams on, and moves requests away from workers that are gone.
import { request as httpRequest } from 'node:http'

import test, { type ExecutionContext } from 'ava'
import { KvTideError, PrefixRouter, publishEvents } from 'kvtide'
import type { TextEvent } from 'kvtide/text'

import { createRouter, type RouterServer } from '../../packages/serve/index.js'
import { type Answer, Client, eventsOf, MESSAGES } from '../support/serve/client.js'
import { said, ScriptedModel } from '../support/serve/scripted-model.js'
import { type TextClient, textServer, tinyModel } from '../support/serve/text-server.js'
import { until } from '../support/until.js'

const prefixKey = new Uint8Array(32).fill(7)

/** A worker that publishes its events. */
async function worker(t: ExecutionContext, keys?: readonly { readonly key: string }[]): Promise<TextClient> {
  const text = await tinyModel({ cache: { prefixKey, events: 10_000 } })
  const endpoint = 'tcp://127.0.0.1:0'
  const published = await publishEvents(text.model.cache, { endpoint, replayEndpoint: endpoint })
  const server = await textServer(
    { keys, events: { endpoint: published.endpoint, replayEndpoint: published.replayEndpoint } },
    text,
  )
  t.teardown(async () => {
    published.dispose()
    await server[Symbol.asyncDispose]()
  })
  return server
}

async function routerOf(
  t: ExecutionContext,
  workers: readonly string[],
): Promise<{ readonly router: RouterServer; readonly at: string }> {
  const router = createRouter({ workers, drainSeconds: 60 })
  t.teardown(() => router.close())
  return { router, at: await router.listen({ port: 0 }) }
}

const post = (at: string, body: object, key?: string, path = '/v1/chat/completions'): Promise<Response> =>
  fetch(`${at}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(key === undefined ? {} : { authorization: `Bearer ${key}` }) },
    body: JSON.stringify(body),
  })

const metric = async (at: string, name: string): Promise<number> =>
  Number(
    (await (await fetch(`${at}/metrics`)).text())
      .split('\n')
      .find(line => line.startsWith(name))
      ?.split(' ')
      .at(-1),
  )

const prompt = (name: string) => [{ role: 'user', content: `${name} `.repeat(40) }]

test.serial('a router without the network says so, instead of finding no worker', async t => {
  const [publishing, silent] = [await worker(t), await textServer()]
  t.teardown(() => silent[Symbol.asyncDispose]())
  const { follow } = PrefixRouter.prototype
  PrefixRouter.prototype.follow = () => {
    throw new KvTideError('BINDING_NOT_FOUND', 'install it', { platform: 'here', reason: 'install it' })
  }
  try {
    const refused = await t.throwsAsync(routerOf(t, [silent.client.at, publishing.client.at]))
    t.is((refused as KvTideError).code, 'BINDING_NOT_FOUND')
    const { at } = await routerOf(t, [silent.client.at])
    t.is((await fetch(`${at}/ready`)).status, 200)
  } finally {
    PrefixRouter.prototype.follow = follow
  }
})

test('a prompt goes to the worker that has its prefix, with the salt of its tenant', async t => {
  const keys = [{ key: 'one' }, { key: 'two' }]
  const workers = [await worker(t, keys), await worker(t, keys)]
  const { at } = await routerOf(
    t,
    workers.map(({ client }) => client.at),
  )
  const ask = async (name: string, key: string): Promise<number> => {
    const response = await post(at, { messages: prompt(name), max_tokens: 1, temperature: 0 }, key)
    t.is(response.status, 200)
    return ((await response.json()) as Answer).usage.prompt_tokens_details.cached_tokens
  }
  // One worker alone gets each prompt first; half of them land on the one that a hash would not choose.
  const names = Array.from({ length: 8 }, (_, at_) => `prompt ${at_}`)
  for (const [place, name] of names.entries())
    await workers[place % 2]?.client.asked({ messages: prompt(name), max_tokens: 1 }, { key: 'one' })
  t.true(await until(async () => (await metric(at, 'kvtide_router_blocks')) >= names.length * 15))
  for (const name of names) t.true((await ask(name, 'one')) > 200, name)
  // The other tenant gets no hit anywhere.
  for (const name of names) t.is(await ask(name, 'two'), 0, name)
  t.is((await post(at, { messages: MESSAGES }, 'wrong')).status, 401)
  t.is((await post(at, { messages: 5 }, 'one')).status, 400)
  const completed = await post(at, { prompt: 'Once upon a time', max_tokens: 3 }, 'one', '/v1/completions')
  t.is(((await completed.json()) as Answer).object, 'text_completion')
  const models = (await (await fetch(`${at}/v1/models`, { headers: { authorization: 'Bearer one' } })).json()) as {
    data: unknown[]
  }
  t.is(models.data.length, 1)
})

test('a request moves on from a worker that is gone, drains or is full', async t => {
  const models = [new ScriptedModel(() => [said('one')]), new ScriptedModel(() => [said('two')])]
  const clients = await Promise.all(models.map(model => Client.start({}, model)))
  t.teardown(async () => {
    for (const { server } of clients) await server.close()
  })
  const { at } = await routerOf(
    t,
    clients.map(client => client.at),
  )
  const asked = async (): Promise<string | null | undefined> => {
    const response = await post(at, { messages: MESSAGES })
    t.is(response.status, 200)
    return ((await response.json()) as Answer).choices[0]?.message.content
  }
  const first = await asked()
  const chosen = first === 'one' ? 0 : 1
  await clients[chosen]?.server.close()
  for (let time = 0; time < 5; time++) t.is(await asked(), first === 'one' ? 'two' : 'one')
  t.is((await fetch(`${at}/health`)).status, 200)
  await clients[1 - chosen]?.server.close()
  const none = await post(at, { messages: MESSAGES })
  t.deepEqual([none.status, none.headers.get('retry-after')], [503, '1'])
  t.true(await until(async () => (await fetch(`${at}/health`)).status === 503))
})

test('a request moves on from a worker that is full, and is refused once all of them are', async t => {
  let open!: () => void
  const gate = new Promise<void>(resolve => (open = resolve))
  const script = (text: string) =>
    async function* (_asked: unknown, call: number) {
      yield said(text)
      if (call === 1) await gate
    }
  const models = [new ScriptedModel(script('one')), new ScriptedModel(script('two'))]
  const clients = await Promise.all(models.map(model => Client.of(t, { maxRunning: 1, maxWaiting: 0 }, model)))
  const { at } = await routerOf(
    t,
    clients.map(client => client.at),
  )
  const asked = async (): Promise<string | null | undefined> =>
    ((await (await post(at, { messages: MESSAGES })).json()) as Answer).choices[0]?.message.content
  const chosen = (await asked()) === 'one' ? 0 : 1
  const running: unknown[] = []
  const fill = async (place: number): Promise<void> => {
    running.push(clients[place]?.asked({}))
    t.true(await until(() => models[place]?.running === 1))
  }
  await fill(chosen)
  t.is(await asked(), chosen === 0 ? 'two' : 'one')
  t.is(await metric(at, 'kvtide_router_failovers_total'), 1)
  await fill(1 - chosen)
  const none = await post(at, { messages: MESSAGES })
  t.is(none.status, 503)
  t.regex(none.headers.get('retry-after') ?? '', /^\d+$/)
  open()
  await Promise.all(running)
})

/** An answer without an end. */
function* endless(): Generator<TextEvent> {
  for (;;) yield said('x'.repeat(1000))
}

test('streams pass with back-pressure, and a client that hangs up ends them', async t => {
  const model = new ScriptedModel(endless)
  const client = await Client.of(t, {}, model)
  const { at } = await routerOf(t, [client.at])
  const { hostname, port } = new URL(at)
  const body = JSON.stringify({ messages: MESSAGES, stream: true })
  const headers = { 'content-type': 'application/json', 'content-length': body.length }
  const sent = httpRequest({ hostname, port, method: 'POST', path: '/v1/chat/completions', headers, agent: false })
  sent.on('response', response => response.pause())
  sent.on('error', () => {})
  sent.end(body)
  t.true(await until(() => model.events > 10))
  let before = -1
  t.true(await until(() => before === (before = model.events), 200), 'the generation pauses')
  t.true(model.events < 30_000)
  sent.destroy()
  t.true(await until(() => model.running === 0), 'the generation ends')
})

test('a worker that goes during a stream ends it with an error', async t => {
  const model = new ScriptedModel(async function* () {
    yield said('one')
    await new Promise(() => {})
  })
  const client = await Client.start({ times: { drain: 0.1 } }, model)
  const { at } = await routerOf(t, [client.at])
  const streamed = post(at, { messages: MESSAGES, stream: true }).then(response => response.text())
  t.true(await until(() => model.events === 1))
  client.server.app.server.closeAllConnections()
  t.regex(await streamed, /"content":"one"[\s\S]*data: \{"error":\{"message":"the worker ended during the answer"/)
  await client.server.close()
})

test('a router drains', async t => {
  const gates: (() => void)[] = []
  const gate = new Promise<void>(resolve => gates.push(resolve))
  const model = new ScriptedModel(async function* () {
    yield said('one')
    await gate
  })
  const client = await Client.of(t, {}, model)
  const { router, at } = await routerOf(t, [client.at])
  const streamed = post(at, { messages: MESSAGES, stream: true }).then(response => response.text())
  t.true(await until(() => model.events === 1))
  const drained = router.drain()
  t.is((await fetch(`${at}/health`)).status, 503)
  t.is((await post(at, { messages: MESSAGES })).status, 503)
  gates.forEach(open => open())
  t.is(eventsOf(await streamed).length, 3)
  await drained
})
