// Requests without room in the chat server of examples/: refused, cut off, or queued.
import { EventEmitter, once } from 'node:events'

import test from 'ava'

import { type Answer, ChatServer, first, messages } from '../support/server/chat-server.js'

const SMALL = { capacity: 8, blockSize: 16 }
const prompt = (length: number, character = 'x') => [{ role: 'user', content: character.repeat(length) }]

test('what never fits is refused before it is computed, and evicts nothing', async t => {
  const small = await ChatServer.of(t, {}, SMALL)
  await small.asked({ messages: prompt(50), max_tokens: 1 })
  const computed = small.computed()
  for (const [body, param] of [
    [{ messages: prompt(200) }, 'messages'],
    [{ messages: prompt(200), max_tokens: 1 }, 'messages'],
    [{ messages: prompt(50), max_tokens: 100 }, 'max_tokens'],
    [{ messages: prompt(50), max_completion_tokens: 2 ** 31 - 1 }, 'max_completion_tokens'],
    [{ messages: prompt(50), max_tokens: 100, n: 2, stream: true }, 'max_tokens'],
  ] as const) {
    const response = await small.post(body)
    const { error } = (await response.json()) as Answer
    t.deepEqual(
      [response.status, error.code, error.param, error.type],
      [400, 'context_length_exceeded', param, 'invalid_request_error'],
      error.message,
    )
  }
  t.is(computed(), 0)
  t.true((await small.asked({ messages: prompt(50), max_tokens: 1 })).usage.prompt_tokens_details.cached_tokens >= 48)
})

test('a prompt beyond the context of the model is refused; an answer without a limit ends there', async t => {
  const context = 100
  const config = {
    model_type: 'stranger',
    head_dim: 16,
    num_key_value_heads: 2,
    max_position_embeddings: context,
  } as never
  const bounded = await ChatServer.of(t, { maxTokens: 10_000 }, undefined, config)
  const wrapped = (await bounded.asked({ messages: prompt(50), max_tokens: 1 })).usage.prompt_tokens - 50
  for (const [body, param] of [
    [{ messages: prompt(context) }, 'messages'],
    [{ messages: prompt(50), max_tokens: context }, 'max_tokens'],
  ] as const) {
    const response = await bounded.post(body)
    const { error } = (await response.json()) as Answer
    t.deepEqual([response.status, error.code, error.param], [400, 'context_length_exceeded', param], error.message)
  }
  const answer = await bounded.asked({ messages: prompt(context - wrapped - 4) })
  t.deepEqual([first(answer).finish_reason, answer.usage.total_tokens], ['length', context])
})

test('an answer without a limit ends where the room does', async t => {
  const small = await ChatServer.of(t, { maxTokens: 10_000 }, SMALL)
  const answer = await small.asked({ messages: prompt(60) })
  t.is(first(answer).finish_reason, 'length')
  t.true(answer.usage.total_tokens <= 8 * 16 && answer.usage.total_tokens > 8 * 16 - 32, `${answer.usage.total_tokens}`)
})

test('those for whom there is no room yet wait, and get what they get alone', async t => {
  const small = await ChatServer.of(t, {}, SMALL)
  const ask = async (character: string, n: number): Promise<string[]> =>
    (await small.asked({ messages: prompt(40, character), max_tokens: 20, n, temperature: 1, seed: 3 })).choices.map(
      ({ message }) => message.content,
    )
  const alone: string[][] = []
  for (const [at, character] of [...'abcdefgh'].entries()) alone.push(await ask(character, 1 + (at % 3)))
  t.deepEqual(await Promise.all([...'abcdefgh'].map((character, at) => ask(character, 1 + (at % 3)))), alone)
  t.is(small.model.cache.stats().activeBlocks, 0)
})

test('where too many wait, the next is told to come again; who hangs up in the line leaves it', async t => {
  const small = await ChatServer.of(t, { maxWaiting: 2 }, SMALL)
  // The first request keeps generating until the test lets it continue.
  const { generate, admit } = small.model
  const go = new EventEmitter()
  const inside = once(go, 'inside')
  small.model.generate = (sequence, options) => {
    small.model.generate = generate
    const generation = generate.call(small.model, sequence, options)
    const { next } = generation
    const held = once(go, 'on')
    generation.next = async () => {
      go.emit('inside')
      await held
      return next.call(generation)
    }
    return generation
  }
  const all = { max_tokens: 80 }
  const one = small.asked(all)
  await inside
  // The server tries to admit the first waiting request whenever a request arrives or leaves.
  small.model.admit = (...asked) => {
    go.emit('looked')
    return admit.apply(small.model, asked)
  }
  const leaving = new AbortController()
  let looked = once(go, 'looked')
  const gone = t.throwsAsync(small.asked(all, { signal: leaving.signal }), { any: true })
  await looked
  looked = once(go, 'looked')
  const waits = small.asked(all)
  await looked
  const response = await small.post({ messages, ...all })
  const { error } = (await response.json()) as Answer
  t.deepEqual(
    [response.status, response.headers.get('retry-after'), error.type, error.code],
    [503, '1', 'server_error', 'overloaded'],
  )
  looked = once(go, 'looked')
  leaving.abort()
  await Promise.all([gone, looked])
  go.emit('on')
  t.is((await one).usage.completion_tokens, 80)
  t.is((await waits).usage.completion_tokens, 80)
})
