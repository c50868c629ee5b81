// Bodies of requests that were changed at random: each is read, or refused as the client's mistake.
import test, { type ExecutionContext } from 'ava'

import { Refusal } from '../../packages/serve/lib/refusal.js'
import { readChat } from '../../packages/serve/lib/requests/chat.js'
import { readCompletion } from '../../packages/serve/lib/requests/completion.js'
import type { Fields } from '../../packages/serve/lib/requests/fields.js'
import { mutated } from '../support/mutated.js'
import { check } from '../support/seeded.js'

const facts = { names: ['model'], vocabulary: 300, contextLength: 4096 }
const shared = {
  model: 'model',
  stream: true,
  stream_options: { include_usage: true },
  n: 2,
  temperature: 0.5,
  top_p: 0.9,
  stop: ['a', 'b'],
  seed: 7,
  logit_bias: { 5: 10, 7: -100 },
  cache_salt: 'mine',
}
const tool = { type: 'function', function: { name: 'look', parameters: { type: 'object', properties: { at: {} } } } }
const called = [{ id: 'x', type: 'function', function: { name: 'look', arguments: '{"at":1}' } }]
const chat = {
  ...shared,
  max_completion_tokens: 5,
  logprobs: true,
  top_logprobs: 3,
  tools: [tool],
  tool_choice: { type: 'function', function: { name: 'look' } },
  response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'object' } } },
  chat_template_kwargs: { enable_thinking: true },
  messages: [
    { role: 'system', content: 'Answer.' },
    { role: 'user', content: [{ type: 'text', text: 'Hello' }] },
    { role: 'assistant', content: null, tool_calls: called },
    { role: 'tool', tool_call_id: 'x', content: 'seen' },
  ],
}
const plain = { messages: [{ role: 'user', content: 'Hello' }] }
const texts = { ...shared, prompt: ['Once', 'Twice'], max_tokens: 5, echo: false, suffix: null }
const ids = { prompt: [[1, 2], [3]], logprobs: 1, guided_regex: 'a+' }

function isReadOrRefused(t: ExecutionContext, read: (fields: Fields) => unknown, bodies: readonly object[]): void {
  let [answered, refused] = [0, 0]
  check(t, mutated(...bodies), body => {
    if (typeof body !== 'object' || body === null || Array.isArray(body)) return
    try {
      read(body as Fields)
      answered += 1
    } catch (error) {
      if (!(error instanceof Refusal) || error.status < 400 || error.status >= 500) throw error
      refused += 1
    }
  })
  t.true(answered > 0 && refused > 0, `${answered} read, ${refused} refused`)
}

test('of chats', t => isReadOrRefused(t, fields => readChat(fields, facts), [chat, plain]))
test('of completions', t => isReadOrRefused(t, fields => readCompletion(fields, facts), [texts, ids]))
