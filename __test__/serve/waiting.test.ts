// Requests that wait: the memory that they keep, and the work that is done before they have their places.
import test, { type ExecutionContext } from 'ava'

import type { ServerOptions } from '../../packages/serve/index.js'
import { until } from '../support/until.js'
import { type Answer, Client, eventsOf, MESSAGES } from '../support/serve/client.js'
import { said, ScriptedModel } from '../support/serve/scripted-model.js'

/** A server with one place, which a request has taken until `go` is called. */
async function busy(
  t: ExecutionContext,
  options: Partial<ServerOptions> = {},
): Promise<{ readonly client: Client; readonly go: () => void }> {
  const gates: (() => void)[] = []
  const gate = new Promise<void>(resolve => gates.push(resolve))
  const model = new ScriptedModel(async function* (_, call) {
    if (call === 0) await gate
    yield said('!')
  })
  const client = await Client.of(t, { maxRunning: 1, maxBodyBytes: 2 ** 20, ...options }, model)
  client.completed({ prompt: 'first' }, { key: 'one' }).catch(() => {})
  t.true(await until(() => model.running === 1))
  return { client, go: () => gates.forEach(open => open()) }
}

const waiting = (client: Client, count: number): Promise<boolean> =>
  until(async () => (await client.metric('vllm:num_requests_waiting')) === count)

test('a prompt in front of its answers is decoded once, when the first one begins', async t => {
  const { client, go } = await busy(t)
  const { tokenizer } = client.model
  const { decode } = tokenizer
  let decoded = 0
  tokenizer.decode = ids => {
    decoded += 1
    return decode(ids)
  }
  const prompt = ['one', 'two'].map(text => Array.from(tokenizer.encode(text)))
  const whole = client.completed({ prompt, echo: true, n: 4 })
  t.true(await waiting(client, 1))
  t.is(decoded, 0)
  go()
  t.deepEqual(
    (await whole).choices.map(({ text }) => text),
    [...Array.from({ length: 4 }, () => 'one!'), ...Array.from({ length: 4 }, () => 'two!')],
  )
  t.is(decoded, 2)
  const streamed = await client.post({ prompt: prompt[0], echo: true, stream: true }, { path: '/v1/completions' })
  const texts = eventsOf(await streamed.text()).map(({ choices }) => choices[0]?.text)
  t.deepEqual([texts.join(''), decoded], ['one!', 3])
})

const ids = (length: number): number[] => Array.from({ length }, () => 5)

test('a list of ids that is longer than the context is refused before it waits', async t => {
  const { client, go } = await busy(t, { maxWaiting: 0 })
  const path = '/v1/completions'
  for (const prompt of [ids(4097), [ids(3), ids(5000)]])
    for (const more of [{}, { stream: true }, { echo: true, n: 16 }]) {
      const response = await client.post({ prompt, ...more }, { path })
      const { error } = (await response.json()) as Answer
      t.deepEqual([response.status, error.code, error.param], [400, 'context_length_exceeded', 'prompt'])
      t.regex(error.message, /^(4097|5000) tokens exceed the model's context of 4096 tokens$/)
    }
  t.is((await client.post({ prompt: ids(4097) }, { path: '/worker/keys?of=completions' })).status, 400)
  t.is((await client.post({ prompt: ids(4096) }, { path })).status, 503, 'it fits, and the server is full')
  go()
})

test('waiting requests with large bodies fill the line', async t => {
  const { client, go } = await busy(t, { maxWaiting: 4 })
  const large = { prompt: 'x'.repeat(600_000) }
  const more = [client.post(large, { path: '/v1/completions' })]
  t.true(await waiting(client, 1))
  t.is((await client.post(large, { path: '/v1/completions' })).status, 503)
  more.push(client.post({ messages: MESSAGES }))
  t.true(await waiting(client, 2))
  go()
  for (const response of await Promise.all(more)) t.is(response.status, 200)
})

test('a chat is rendered for the public prompt once it has its place', async t => {
  const { client, go } = await busy(t, { publicPrompt: 'Be brief', keys: [{ key: 'one' }] })
  let rendered = 0
  const { render } = client.model
  client.model.render = options => {
    rendered += 1
    return render.call(client.model, options)
  }
  const asked = client.asked({ n: 3 }, { key: 'one' })
  t.true(await waiting(client, 1))
  t.is(rendered, 0)
  go()
  t.is((await asked).choices.length, 3)
  // The stand-in renders once more for each answer.
  t.is(rendered, 1 + 3)
})
