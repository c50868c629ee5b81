// The answers of the chat server of examples/, over HTTP, with the reference model and bytes as text.
import test from 'ava'

import { bytes } from '../../examples/server/text.js'
import { ChatServer, first, messages } from '../support/server/chat-server.js'

let server: ChatServer

test.before(async () => {
  server = await ChatServer.start()
})

test.after.always(() => server.stop())

test('an answer has its text, why it ended, and what it cost', async t => {
  const answer = await server.asked({ max_tokens: 12 })
  t.is(answer.object, 'chat.completion')
  t.is(first(answer).finish_reason, 'length')
  t.is(answer.usage.completion_tokens, 12)
  t.is(answer.usage.prompt_tokens, bytes.encodeChat(messages).length)
})

test('a stream has the same text, whole characters only', async t => {
  const whole = await server.asked({ max_tokens: 14 })
  const parts = await server.streamed({ max_tokens: 14, stream_options: { include_usage: true } })
  const choices = parts.flatMap(part => part.choices)
  t.is(choices[0]?.delta.role, 'assistant')
  t.is(choices.map(({ delta }) => delta.content ?? '').join(''), first(whole).message.content)
  t.is(choices.at(-1)?.finish_reason, 'length')
  t.is(parts.at(-1)?.usage.completion_tokens, 14)
})

test('a character that the answer does not finish is told as one that cannot be decoded', async t => {
  const logit_bias = { [bytes.encode('é')[0] as number]: 100 }
  t.is(first(await server.asked({ max_tokens: 1, logit_bias })).message.content, '\uFFFD')
  const parts = await server.streamed({ max_tokens: 1, logit_bias })
  t.is(
    parts
      .flatMap(part => part.choices)
      .map(({ delta }) => delta.content ?? '')
      .join(''),
    '\uFFFD',
  )
})

test('a prompt is found by its tenant alone', async t => {
  const long = [{ role: 'user', content: 'x'.repeat(200) }]
  const cached = async (key: string): Promise<number> =>
    (await server.asked({ messages: long, max_tokens: 1 }, { key })).usage.prompt_tokens_details.cached_tokens
  t.is(await cached('one'), 0)
  t.true((await cached('one')) >= 192)
  t.is(await cached('other'), 0)
})

test('several answers, each with a seed of its own, are the same again', async t => {
  const twice = await Promise.all(
    [1, 2].map(() => server.asked({ n: 3, temperature: 1, seed: Number.MAX_SAFE_INTEGER - 1, max_tokens: 10 })),
  )
  const [one, two] = twice.map(({ choices }) => choices.map(({ message }) => message.content))
  t.deepEqual(one, two)
  t.is(new Set(one).size, 3)
})

test('several answers are those that each seed gives alone, streamed as well', async t => {
  const asked = { temperature: 1, max_tokens: 10, messages: [{ role: 'user', content: 'x'.repeat(100) }] }
  const alone: string[] = []
  for (const seed of [7, 8, 9]) alone.push(first(await server.asked({ ...asked, seed })).message.content)
  const { choices } = await server.asked({ ...asked, seed: 7, n: 3 }, { key: 'another' })
  t.deepEqual(
    choices.map(({ message }) => message.content),
    alone,
  )
  const parts = (await server.streamed({ ...asked, seed: 7, n: 3 })).flatMap(part => part.choices)
  t.deepEqual(
    [0, 1, 2].map(at =>
      parts
        .filter(({ index }) => index === at)
        .map(({ delta }) => delta.content ?? '')
        .join(''),
    ),
    alone,
  )
})

test.serial('the prompt of several answers is computed once', async t => {
  const prompt = [{ role: 'user', content: 'y'.repeat(200) }]
  const tokens = bytes.encodeChat(prompt).length
  for (const n of [1, 4]) {
    const computed = server.computed()
    const { usage } = await server.asked({ messages: prompt, n, max_tokens: 3 }, { key: `answers-${n}` })
    t.is(usage.prompt_tokens_details.cached_tokens, 0)
    // The prompt without its last token, then the tokens of each answer without its last one.
    t.is(computed(), tokens - 1 + 3 * n)
  }
  // If everything except the last token was cached, nothing is computed before the fork.
  const whole = [{ role: 'user', content: 'y'.repeat(200 - ((tokens - 1) % 16)) }]
  await server.asked({ messages: whole, max_tokens: 1 }, { key: 'whole' })
  const computed = server.computed()
  const { usage } = await server.asked({ messages: whole, n: 3, max_tokens: 2 }, { key: 'whole' })
  t.is(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens - 1)
  t.is(computed(), 6)
})

test('log-probabilities come with each token', async t => {
  const { logprobs } = first(await server.asked({ max_tokens: 4, logprobs: true, top_logprobs: 3 }))
  t.is(logprobs?.content.length, 4)
  t.true(logprobs?.content.every(({ logprob, top_logprobs }) => logprob <= 0 && top_logprobs.length === 3))
})

test('the bytes of log-probabilities make the text, in parts of characters as well', async t => {
  const { message, logprobs } = first(await server.asked({ max_tokens: 40, logprobs: true }))
  t.is(
    new TextDecoder().decode(Uint8Array.from((logprobs?.content ?? []).flatMap(({ bytes: own }) => own ?? []))),
    message.content,
  )
})

test('a stop text ends an answer, and is not part of it', async t => {
  const text = first(await server.asked({ max_tokens: 14 })).message.content
  const stop = [...text].slice(3, 5).join('')
  const stopped = first(await server.asked({ max_tokens: 14, stop }))
  t.is(stopped.message.content, text.slice(0, text.indexOf(stop)))
  t.is(stopped.finish_reason, 'stop')
})

test('twenty clients at once get what each gets alone', async t => {
  const prompts = Array.from({ length: 20 }, (_, client) => [{ role: 'user', content: `client ${client}` }])
  const alone: string[] = []
  for (const prompt of prompts)
    alone.push(first(await server.asked({ messages: prompt, max_tokens: 8 }, { key: 'alone' })).message.content)
  const together = await Promise.all(
    prompts.map(
      async prompt =>
        first(await server.asked({ messages: prompt, max_tokens: 8 }, { key: 'together' })).message.content,
    ),
  )
  t.deepEqual(together, alone)
})

test.serial('a client that hangs up ends its generation', async t => {
  const gone = new AbortController()
  const own = await ChatServer.of(t)
  // Its sequence ends, and nothing is computed any more.
  const left = new Promise<void>(resolve => {
    const { generate } = own.model
    own.model.generate = (sequence, options) => {
      const { dispose } = sequence
      sequence.dispose = () => {
        dispose.call(sequence)
        resolve()
      }
      return generate.call(own.model, sequence, options)
    }
  })
  const response = await own.post({ messages, temperature: 0, max_tokens: 4000, stream: true }, { signal: gone.signal })
  const reader = response.body?.getReader()
  await reader?.read()
  gone.abort()
  await t.throwsAsync(
    async () => {
      for (;;) if ((await reader?.read())?.done !== false) return
    },
    { any: true },
  )
  await left
  t.is(own.model.cache.stats().activeBlocks, 0)
  t.is((await own.asked({ max_tokens: 2 })).usage.completion_tokens, 2)
})
