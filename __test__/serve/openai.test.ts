// OpenAI's own client against the server, with the tiny model.
import test from 'ava'
import OpenAI from 'openai'

import { textServer, type TextClient } from '../support/serve/text-server.js'

let server: TextClient
let openai: OpenAI

test.before(async () => {
  server = await textServer()
  openai = new OpenAI({ baseURL: `${server.client.at}/v1`, apiKey: 'any', maxRetries: 0 })
})

test.after.always(() => server[Symbol.asyncDispose]())

const messages = [{ role: 'user', content: 'What is a cache?' }] as const
const chat = { model: 'tiny', messages: [...messages], temperature: 0, max_tokens: 24 }

test('a chat, whole and streamed', async t => {
  const {
    choices: [choice],
    usage,
    object,
    model,
  } = await openai.chat.completions.create(chat)
  t.deepEqual(
    [object, model, choice?.finish_reason, usage?.completion_tokens],
    ['chat.completion', 'tiny', 'length', 24],
  )
  const chunks = []
  const stream = await openai.chat.completions.create({
    ...chat,
    stream: true,
    stream_options: { include_usage: true },
  })
  for await (const chunk of stream) chunks.push(chunk)
  const choices = chunks.flatMap(chunk => chunk.choices)
  t.is(choices[0]?.delta.role, 'assistant')
  t.true(choices.map(({ delta }) => delta.content ?? '').join('') === choice?.message.content)
  t.is(choices.at(-1)?.finish_reason, 'length')
  t.is(chunks.at(-1)?.usage?.completion_tokens, 24)
  t.true((chunks.at(-1)?.usage?.prompt_tokens_details?.cached_tokens ?? 0) > 0)
  t.true(chunks.slice(0, -1).every(chunk => chunk.usage === null))
})

test('the client collects a stream into a completion', async t => {
  const whole = await openai.chat.completions.create(chat)
  const collected = await openai.chat.completions.stream(chat).finalChatCompletion()
  t.is(collected.choices[0]?.message.content, whole.choices[0]?.message.content)
})

test('log-probabilities have bytes that make the text', async t => {
  const { choices } = await openai.chat.completions.create({ ...chat, max_tokens: 40, logprobs: true, top_logprobs: 3 })
  const entries = choices[0]?.logprobs?.content ?? []
  t.is(entries.length, 40)
  t.true(entries.every(({ logprob, top_logprobs }) => logprob <= 0 && top_logprobs.length === 3))
  const bytes = Uint8Array.from(entries.flatMap(entry => entry.bytes ?? []))
  t.true(new TextDecoder().decode(bytes) === choices[0]?.message.content)
})

test('several answers have seeds of their own, and the prompt is computed once', async t => {
  const asked = {
    ...chat,
    messages: [{ role: 'user' as const, content: 'x'.repeat(300) }],
    temperature: 1,
    n: 3,
    seed: 7,
  }
  const { choices, usage } = await openai.chat.completions.create(asked)
  const alone = []
  for (const seed of [7, 8, 9])
    alone.push((await openai.chat.completions.create({ ...asked, n: 1, seed })).choices[0]?.message.content)
  t.deepEqual(
    choices.map(({ message }) => message.content),
    alone,
  )
  t.is(new Set(alone).size, 3)
  t.is(usage?.completion_tokens, 72)
  t.true((usage?.prompt_tokens ?? 0) > 300 && (usage?.prompt_tokens ?? 0) < 400)
  const computed = await server.client.metric('kvtide_serve_computed_tokens_total')
  await openai.chat.completions.create({
    ...asked,
    messages: [{ role: 'user', content: 'y'.repeat(300) }],
    n: 4,
    max_tokens: 2,
  })
  const more = (await server.client.metric('kvtide_serve_computed_tokens_total')) - computed
  t.true(more < 320 + 100, `${more} tokens were computed for 4 answers to a prompt of about 320`)
})

test('a stop text ends an answer, and is not part of it', async t => {
  const whole = (await openai.chat.completions.create(chat)).choices[0]?.message.content ?? ''
  const stop = [...whole].slice(3, 5).join('')
  const { choices } = await openai.chat.completions.create({ ...chat, stop })
  t.deepEqual([choices[0]?.message.content, choices[0]?.finish_reason], [whole.slice(0, whole.indexOf(stop)), 'stop'])
})

test('completions: texts, ids, lists, echo and the older log-probabilities', async t => {
  const asked = { model: 'tiny', temperature: 0, max_tokens: 8 }
  const { choices, object } = await openai.completions.create({ ...asked, prompt: ['Once', 'upon'] })
  t.is(object, 'text_completion')
  const ids = await openai.completions.create({ ...asked, prompt: Array.from(server.text.tokenizer.encode('Once')) })
  t.is(ids.choices[0]?.text, choices[0]?.text)
  const single = await openai.completions.create({ ...asked, prompt: 'upon', echo: true })
  t.is(single.choices[0]?.text, `upon${choices[1]?.text ?? ''}`)
  const { logprobs, text } =
    (await openai.completions.create({ ...asked, prompt: 'Once', logprobs: 2 })).choices[0] ?? t.fail()
  t.is(logprobs?.tokens?.length, 8)
  t.true(logprobs?.top_logprobs?.every(top => Object.keys(top).length <= 2))
  t.true(text === choices[0]?.text)
  let streamed = ''
  for await (const chunk of await openai.completions.create({ ...asked, prompt: 'Once', stream: true }))
    streamed += chunk.choices[0]?.text ?? ''
  t.is(streamed, text)
})

test('models', async t => {
  t.deepEqual(
    (await openai.models.list()).data.map(({ id }) => id),
    ['tiny'],
  )
  t.is((await openai.models.retrieve('tiny')).id, 'tiny')
  await t.throwsAsync(openai.models.retrieve('other'), { instanceOf: OpenAI.NotFoundError })
})

test("errors are the client's classes, with the parameter", async t => {
  for (const [more, param] of [
    [{ temperature: 9 }, 'temperature'],
    [{ top_p: 0, stream: true }, 'top_p'],
    [{ messages: [] }, 'messages'],
  ] as const)
    t.like(await t.throwsAsync(openai.chat.completions.create({ ...chat, ...more } as typeof chat)), {
      status: 400,
      param,
      type: 'invalid_request_error',
    })
  await t.throwsAsync(openai.chat.completions.create({ ...chat, model: 'other' }), { instanceOf: OpenAI.NotFoundError })
  const long = await t.throwsAsync(
    openai.chat.completions.create({ ...chat, messages: [{ role: 'user', content: 'x'.repeat(5000) }] }),
  )
  t.like(long, { status: 400, code: 'context_length_exceeded', param: 'messages' })
  const ids = await t.throwsAsync(
    openai.completions.create({ model: 'tiny', prompt: Array.from({ length: 5000 }, () => 5) }),
  )
  t.like(ids, { status: 400, code: 'context_length_exceeded', param: 'prompt' })
})

test('a stream that the client ends is aborted', async t => {
  const stream = await openai.chat.completions.create({ ...chat, max_tokens: 3000, stream: true })
  for await (const _ of stream) break
  stream.controller.abort()
  for (let wait = 0; wait < 500 && server.client.server.active > 0; wait++)
    await new Promise(resolve => setTimeout(resolve, 10))
  t.is(server.client.server.active, 0)
})

test('a chat goes on with the tokens that were generated', async t => {
  const first = await openai.chat.completions.create({ ...chat, max_tokens: 40 })
  const answer = first.choices[0]?.message.content ?? ''
  const { usage } = await openai.chat.completions.create({
    ...chat,
    messages: [...messages, { role: 'assistant', content: answer }, { role: 'user', content: 'And then?' }],
    max_tokens: 1,
  })
  const known = (first.usage?.prompt_tokens ?? 0) + 40
  t.true(
    (usage?.prompt_tokens_details?.cached_tokens ?? 0) >= known - 16 - (known % 16),
    `${usage?.prompt_tokens_details?.cached_tokens} of ${known}`,
  )
})
