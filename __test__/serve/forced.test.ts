// Answers whose form is forced by a grammar: JSON schemas and calls of tools, by OpenAI's own client, with the tiny model.
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

const chat = {
  model: 'tiny',
  messages: [{ role: 'user' as const, content: 'How warm is it?' }],
  temperature: 0,
  max_tokens: 300,
}

const schema = {
  type: 'object',
  properties: { unit: { enum: ['C', 'F'] }, degrees: { type: 'integer', minimum: 0, maximum: 99 } },
  required: ['unit', 'degrees'],
  additionalProperties: false,
} as const

const tools = [
  { type: 'function' as const, function: { name: 'look_up', description: 'Looks up', parameters: schema } },
]

test('json_schema: an answer matches the schema', async t => {
  const response_format = { type: 'json_schema' as const, json_schema: { name: 'weather', schema, strict: true } }
  for (const temperature of [0, 1]) {
    const { choices } = await openai.chat.completions.create({ ...chat, temperature, seed: 5, response_format })
    const { unit, degrees } = JSON.parse(choices[0]?.message.content ?? '') as { unit: string; degrees: number }
    t.is(choices[0]?.finish_reason, 'stop')
    t.true(['C', 'F'].includes(unit) && degrees >= 0 && degrees < 100)
  }
})

test('a schema that is not supported is refused with its place', async t => {
  for (const stream of [false, true]) {
    const wrong = { type: 'json_schema' as const, json_schema: { name: 'x', schema: { type: 'nothing' } } }
    const error = await t.throwsAsync(openai.chat.completions.create({ ...chat, stream, response_format: wrong }))
    t.like(error, { status: 400, param: 'response_format' })
  }
})

test("vLLM's forms: a choice and a regular expression", async t => {
  for (const [more, expected] of [
    [{ structured_outputs: { choice: ['yes', 'no'] } }, /^(yes|no)$/],
    [{ guided_regex: '[ab]{3}' }, /^[ab]{3}$/],
  ] as const) {
    const { choices } = await openai.chat.completions.create({ ...chat, ...more })
    t.regex(choices[0]?.message.content ?? '', expected)
  }
})

test('a required call is made, whole and streamed', async t => {
  for (const tool_choice of ['required' as const, { type: 'function' as const, function: { name: 'look_up' } }]) {
    const asked = { ...chat, tools, tool_choice, parallel_tool_calls: false }
    const { choices } = await openai.chat.completions.create(asked)
    const [call] = choices[0]?.message.tool_calls ?? []
    if (call?.type !== 'function') return t.fail('no call was made')
    t.deepEqual([choices[0]?.finish_reason, call.function.name], ['tool_calls', 'look_up'])
    t.true(['C', 'F'].includes((JSON.parse(call.function.arguments) as { unit: string }).unit))
    const collected = await openai.chat.completions.stream(asked).finalChatCompletion()
    const [streamed] = collected.choices[0]?.message.tool_calls ?? []
    t.is(streamed?.type === 'function' ? streamed.function.arguments : undefined, call.function.arguments)
  }
})
