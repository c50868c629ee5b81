// Time limits that no timer can have: none at all, and longer than 25 days. A timer of such a time would end at once.
import { setTimeout as sleep } from 'node:timers/promises'

import test from 'ava'

import type { ServerTimes } from '../../packages/serve/lib/options.js'
import { eventsOf, Client, MESSAGES } from '../support/serve/client.js'
import { said, ScriptedModel } from '../support/serve/scripted-model.js'
import { until } from '../support/until.js'

const NAMES: readonly (keyof ServerTimes)[] = ['firstToken', 'request', 'write', 'body', 'drain']

/** A model that takes its time, and whose answers are longer than what a connection buffers. */
const slow = (): ScriptedModel =>
  new ScriptedModel(async function* () {
    await sleep(50)
    for (let part = 0; part < 40; part++) yield said('x'.repeat(50_000))
  })

for (const seconds of [Infinity, 3e6, 1e300]) {
  test(`limits of ${seconds} seconds end nothing`, async t => {
    const times = Object.fromEntries(NAMES.map(name => [name, seconds]))
    const client = await Client.of(t, { times }, slow())
    const whole = client.asked({})
    const stream = await client.post({ messages: MESSAGES, stream: true })
    // The server waits for a reader that takes its time.
    await sleep(50)
    t.is(eventsOf(await stream.text()).length, 42)
    t.is((await whole).choices[0]?.message.content?.length, 2_000_000)
  })

  test(`draining with a limit of ${seconds} seconds lets running requests finish`, async t => {
    let go: (() => void) | undefined
    const held = new Promise<void>(resolve => (go = resolve))
    const model = new ScriptedModel(async function* () {
      await held
      yield said('one two')
    })
    const client = await Client.of(t, { times: { drain: seconds } }, model)
    const running = client.asked({})
    t.true(await until(() => model.running === 1))
    const draining = client.server.drain()
    await sleep(50)
    go?.()
    await draining
    t.is((await running).choices[0]?.message.content, 'one two')
  })
}
