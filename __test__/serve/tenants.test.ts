// Tenants share a model and never a cache hit; sixty streams at once get what the bare model answers.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test from 'ava'

import { until } from '../support/until.js'
import { type Answer, MESSAGES } from '../support/serve/client.js'
import { textServer, tinyModel } from '../support/serve/text-server.js'

const cachedOf = ({ usage }: { usage: { prompt_tokens_details: { cached_tokens: number } } }): number =>
  usage.prompt_tokens_details.cached_tokens

const long = (text: string) => [{ role: 'user', content: `${text} `.repeat(30) }]

test('a prompt is found by its own tenant alone, also by its other key', async t => {
  const keys = [{ key: 'one' }, { key: 'two' }, { name: 'team', key: 'three' }, { name: 'team', key: 'four' }]
  await using server = await textServer({ keys })
  const { client } = server
  const cached = async (key: string, more: object = {}): Promise<number> =>
    cachedOf(await client.asked({ messages: long('canary'), max_tokens: 1, ...more }, { key }))
  t.is(await cached('one'), 0)
  t.true((await cached('one')) > 100)
  t.is(await cached('two'), 0)
  t.is(await cached('three'), 0)
  t.true((await cached('four')) > 100)
  t.is(await cached('one', { cache_salt: 'apart' }), 0)
  t.true((await cached('one', { cache_salt: 'apart' })) > 100)
  t.is(await cached('two', { cache_salt: 'apart' }), 0)
  const completed = async (key: string): Promise<number> =>
    cachedOf(await client.completed({ prompt: 'a canary in a coal mine '.repeat(5), max_tokens: 1 }, { key }))
  t.deepEqual([await completed('one'), (await completed('one')) > 64, await completed('two')], [0, true, 0])
})

test('a tenant does not go on with the chat of another', async t => {
  await using server = await textServer({ keys: [{ key: 'one' }, { key: 'two' }] })
  const { client } = server
  const messages = long('a chat')
  const first = await client.asked({ messages, max_tokens: 40 }, { key: 'one' })
  const turn = [
    ...messages,
    { role: 'assistant', content: first.choices[0]?.message.content ?? '' },
    { role: 'user', content: 'more' },
  ]
  t.is(cachedOf(await client.asked({ messages: turn, max_tokens: 1 }, { key: 'two' })), 0)
  t.true(cachedOf(await client.asked({ messages: turn, max_tokens: 1 }, { key: 'one' })) > 200)
})

test('tenants share the public prompt, and nothing behind it', async t => {
  const publicPrompt = 'You answer questions about the sea, briefly and kindly. '.repeat(4).trim()
  await using server = await textServer({ keys: [{ key: 'one' }, { key: 'two' }], publicPrompt })
  const { client } = server
  const ask = async (key: string, system: string, content: string): Promise<number> =>
    cachedOf(
      await client.asked(
        {
          messages: [
            { role: 'system', content: system },
            { role: 'user', content },
          ],
          max_tokens: 1,
        },
        { key },
      ),
    )
  const question = 'How deep is it? '.repeat(10)
  t.is(await ask('one', publicPrompt, question), 0)
  const shared = await ask('two', publicPrompt, question)
  t.true(shared > 128 && shared <= publicPrompt.length + 20, `${shared} of ${publicPrompt.length}`)
  t.true((await ask('two', publicPrompt, question)) > publicPrompt.length + 100)
  const own = 'You answer questions about the land, at great length, rudely. '.repeat(4)
  t.is(await ask('one', own, question), 0)
  t.is(await ask('two', own, question), 0)
})

test('the public prompt is shared for each choice of tools', async t => {
  const publicPrompt = 'You answer questions about the sea, briefly and kindly. '.repeat(4).trim()
  const choices = ['none', 'auto', 'required', { type: 'function', function: { name: 'dive' } }]
  // Each choice has a tenant of its own, which has computed nothing before.
  const keys = ['first', ...choices.keys()].map(key => ({ key: String(key) }))
  await using server = await textServer({ keys, publicPrompt })
  const messages = [{ role: 'system', content: publicPrompt }, ...long('How deep is it?')]
  const tools = [{ type: 'function', function: { name: 'dive', parameters: { type: 'object', properties: {} } } }]
  for (const [key, tool_choice] of choices.entries()) {
    const asked = { messages, tools, tool_choice, max_tokens: 1 }
    t.is((await server.client.post(asked, { key: 'first' })).status, 200, String(tool_choice))
    const cached = cachedOf(await server.client.asked(asked, { key: String(key) }))
    t.true(cached > 128 && cached <= publicPrompt.length + 20, `${cached} with ${String(tool_choice)}`)
  }
})

test('sixty streams at once, of several tenants, are what the bare model answers', async t => {
  const keys = [{ key: 'one' }, { key: 'two' }, { key: 'three' }]
  await using server = await textServer({ keys, maxRunning: 24 })
  const { client, text } = server
  const prompts = Array.from({ length: 60 }, (_, at) => [
    { role: 'user' as const, content: `client ${at}: ${'x'.repeat((at * 7) % 40)}` },
  ])
  const alone: string[] = []
  for (const messages of prompts)
    alone.push(await text.chat({ messages, temperature: 0, maxTokens: 24, salt: 'alone' }).text())
  const streams = await Promise.all(
    prompts.map((messages, at) =>
      client.streamed({ messages, temperature: 0, max_tokens: 24 }, { key: keys[at % 3]?.key }),
    ),
  )
  t.deepEqual(
    streams.map(events =>
      events
        .flatMap(({ choices }) => choices)
        .map(({ delta }) => delta.content ?? '')
        .join(''),
    ),
    alone,
  )
  t.true(await until(() => text.model.cache.stats().activeBlocks === 0))
})

test('a template that throws is refused with its reason', async t => {
  const template = "{{ raise_exception('roles must alternate') }}"
  await using server = await textServer({}, await tinyModel({ template }))
  for (const stream of [false, true]) {
    const { error } = (await (await server.client.post({ messages: MESSAGES, stream })).json()) as Answer
    t.deepEqual([error.param, error.type], ['messages', 'invalid_request_error'])
    t.regex(error.message, /roles must alternate/)
  }
})

test('tokens from disk count as cached after a restart, for their tenant alone', async t => {
  const path = mkdtempSync(join(tmpdir(), 'kvtide-disk-'))
  t.teardown(() => rmSync(path, { recursive: true, force: true, maxRetries: 20 }))
  const cached: number[] = []
  for (const key of ['one', 'one', 'two']) {
    const prefixKey = new Uint8Array(32).fill(7)
    await using server = await textServer(
      { keys: [{ key: 'one' }, { key: 'two' }] },
      await tinyModel({ cache: { prefixKey, tiers: { disk: { path } } } }),
    )
    cached.push(cachedOf(await server.client.asked({ messages: long('saved'), max_tokens: 1 }, { key })))
    t.regex(await server.client.text('/metrics'), /^kvtide_tier_found_total\{tier="disk"\} \d+$/m)
  }
  t.deepEqual([cached[0], (cached[1] ?? 0) > 100, cached[2]], [0, true, 0])
})
