// Many clients of several tenants at once, a part of which hang up at any moment, reset their connections, or send nonsense: the others get their whole
// answers, and nothing is left behind.
import { setTimeout } from 'node:timers/promises'

import test from 'ava'

import { Chance } from '../support/racing/rows.js'
import { type Answer, eventsOf } from '../support/serve/client.js'
import { textServer, tinyModel } from '../support/serve/text-server.js'
import { until } from '../support/until.js'

const CLIENTS = 45
/** Different prompts. */
const PROMPTS = 9
const KEYS = ['one', 'two', 'three']

type Fate = 'reads' | 'streams' | 'aborts' | 'resets' | 'nonsense'
const FATES: readonly Fate[] = ['reads', 'streams', 'aborts', 'resets', 'nonsense', 'streams']

const textOf = (events: readonly Answer[]): string =>
  events
    .flatMap(({ choices }) => choices)
    .map(({ delta }) => delta.content ?? '')
    .join('')

const bodyOf = (at: number): object => ({
  messages: [
    { role: 'user', content: `${'the same beginning '.repeat(3)}${at % PROMPTS}: ${'x'.repeat((at % PROMPTS) * 3)}` },
  ],
  temperature: 0,
  max_tokens: 16,
})

test('clients that hang up at any moment leave the other answers whole', async t => {
  const seed = Number(process.env['KVTIDE_SEED'] ?? Date.now() & 0xffff)
  t.log(`KVTIDE_SEED=${seed}`)
  const chance = new Chance(seed)
  // A small cache: answers wait for each other, and are preempted.
  const text = await tinyModel({ cache: { memoryBytes: 2 ** 21, maxSequences: 16 } })
  await using server = await textServer({ keys: KEYS.map(key => ({ key })), maxRunning: 12, maxWaiting: CLIENTS }, text)
  const { client } = server
  const alone = new Map<number, string>()
  for (let at = 0; at < PROMPTS; at++) {
    const { choices } = await client.asked(bodyOf(at), { key: KEYS[at % 3] })
    alone.set(at, choices[0]?.message.content ?? '')
  }
  const ended: Record<string, number> = {}
  const one = async (at: number): Promise<void> => {
    const [fate, key, after] = [chance.of(FATES), KEYS[at % 3] as string, chance.below(120)]
    ended[fate] = (ended[fate] ?? 0) + 1
    await setTimeout(chance.below(60))
    if (fate === 'reads') {
      const { choices } = await client.asked(bodyOf(at), { key })
      t.is(choices[0]?.message.content ?? '', alone.get(at % PROMPTS) ?? '', `client ${at}`)
    } else if (fate === 'streams') {
      const response = await client.post({ ...bodyOf(at), stream: true }, { key })
      t.is(textOf(eventsOf(await response.text())), alone.get(at % PROMPTS) ?? '', `client ${at}`)
    } else if (fate === 'aborts') {
      const signal = AbortSignal.timeout(after)
      const body = { ...bodyOf(at), stream: chance.once(2) }
      await client
        .post(body, { key, signal })
        .then(
          response => response.text(),
          () => '',
        )
        .catch(() => '')
    } else if (fate === 'resets') {
      const socket = client.silent({ ...bodyOf(at), stream: true }, '/v1/chat/completions', key)
      await setTimeout(after)
      socket.resetAndDestroy()
    } else {
      const response = await client.post(chance.of(['{', '[]', '{"messages":[]}', '{"messages":7}', 'null']), { key })
      t.true(response.status >= 400 && response.status < 500, String(response.status))
      await response.text()
    }
  }
  await Promise.all(Array.from({ length: CLIENTS }, (_, at) => one(at)))
  t.log(ended)
  t.true(
    await until(
      async () =>
        (await client.metric('vllm:num_requests_running')) === 0 && text.model.cache.stats().activeBlocks === 0,
    ),
    `${text.model.cache.stats().activeBlocks} blocks are in use`,
  )
  t.is(await client.metric('vllm:num_requests_waiting'), 0)
  text.model.cache.checkInvariants()
  const { choices } = await client.asked(bodyOf(3), { key: KEYS[0] })
  t.is(choices[0]?.message.content, alone.get(3))
})
