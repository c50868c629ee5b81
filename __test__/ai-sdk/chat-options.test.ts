// Options of the AI SDK become options of a chat; what has no effect is a warning, what would change the answer an error.
import { InvalidArgumentError, UnsupportedFunctionalityError } from '@ai-sdk/provider'
import test from 'ava'

import { checkedSettings } from '../../packages/ai-sdk/lib/call-settings.js'
import { chatOptionsOf } from '../../packages/ai-sdk/lib/chat-options.js'
import { question, WEATHER } from './demo.js'

test('settings are passed by their own names, and those that are absent are absent', t => {
  t.deepEqual(chatOptionsOf({}, { prompt: [] }), { chat: { messages: [] }, warnings: [] } as never)
  const { signal } = new AbortController()
  const { chat } = chatOptionsOf(
    { salt: 'a', minP: 0.1 },
    question('?', {
      maxOutputTokens: 5,
      topP: 0.9,
      topK: 0,
      presencePenalty: 1,
      frequencyPenalty: 2,
      seed: 3,
      stopSequences: ['x'],
      abortSignal: signal,
      providerOptions: { kvtide: { salt: 'b' }, other: { salt: 'c' } },
    }),
  )
  t.deepEqual(chat as object, {
    messages: [{ role: 'user', content: '?' }],
    maxTokens: 5,
    temperature: 0,
    topP: 0.9,
    presencePenalty: 1,
    frequencyPenalty: 2,
    seed: 3,
    stop: ['x'],
    signal,
    salt: 'b',
    minP: 0.1,
  })
})

test('an undefined setting of a call leaves that of the model', t => {
  const providerOptions = { kvtide: { salt: undefined, minP: 0.2 } } as never
  const { chat } = chatOptionsOf({ salt: 'a', minP: 0.1 }, question('?', { providerOptions }))
  t.like(chat, { salt: 'a', minP: 0.2 })
})

test('JSON becomes a grammar', t => {
  const schema = { type: 'object', properties: {} } as const
  t.deepEqual(chatOptionsOf({}, question('?', { responseFormat: { type: 'json', schema } })).chat.schema, schema)
  t.deepEqual(chatOptionsOf({}, question('?', { responseFormat: { type: 'json' } })).chat.grammar, { json: 'object' })
  t.is(chatOptionsOf({}, question('?', { responseFormat: { type: 'text' } })).chat.grammar, undefined)
  t.throws(() => chatOptionsOf({ grammar: { regex: 'a' } }, question('?', { responseFormat: { type: 'json' } })), {
    instanceOf: UnsupportedFunctionalityError,
  })
})

test('functions become tools, tools of other providers a warning', t => {
  const search = { type: 'provider', id: 'other.search', name: 'search', args: {} } as const
  const { chat, warnings } = chatOptionsOf(
    {},
    question('?', { tools: [{ ...WEATHER, strict: true }, search], toolChoice: { type: 'tool', toolName: 'weather' } }),
  )
  const { name, description, inputSchema: parameters } = WEATHER
  t.deepEqual(chat.tools, [{ type: 'function', function: { name, description, parameters, strict: true } }])
  t.deepEqual(chat.toolChoice, { name: 'weather' })
  t.deepEqual(
    warnings.map(warning => warning.type),
    ['unsupported'],
  )
  for (const type of ['auto', 'none', 'required'] as const)
    t.is(chatOptionsOf({}, question('?', { tools: [WEATHER], toolChoice: { type } })).chat.toolChoice, type)
  t.is(chatOptionsOf({}, question('?', { tools: [search] })).chat.tools, undefined)
  t.throws(() => chatOptionsOf({}, question('?', { tools: [search], toolChoice: { type: 'required' } })), {
    instanceOf: UnsupportedFunctionalityError,
  })
})

const features = (settings: Parameters<typeof chatOptionsOf>[0], type?: 'auto' | 'none'): unknown[] => {
  const more = type === undefined ? {} : { toolChoice: { type } }
  const { warnings } = chatOptionsOf(settings, question('?', { tools: [WEATHER], ...more }))
  return warnings.map(warning => 'feature' in warning && warning.feature)
}

test('a grammar that allows no call is a warning beside tools', t => {
  t.deepEqual(features({ grammar: { regex: 'a' } }), ['tools and grammar'])
  t.deepEqual(features({ grammar: { lark: 'start: "a"' } }, 'auto'), ['tools and grammar'])
  t.deepEqual(features({ grammar: { regex: 'a' } }, 'none'), [])
  t.deepEqual(features({ grammar: { json: 'object' } }), [])
  t.deepEqual(chatOptionsOf({ grammar: { regex: 'a' } }, question('?')).warnings, [])
})

const variables = (reasoning: 'none' | 'minimal' | 'max' | 'provider-default', settings = {}): unknown =>
  chatOptionsOf(settings, question('?', { reasoning })).chat.templateOptions

test('reasoning becomes variables of the template, which settings override', t => {
  t.is(variables('provider-default'), undefined)
  t.deepEqual(variables('none'), { enable_thinking: false })
  t.deepEqual(variables('minimal'), { enable_thinking: true, reasoning_effort: 'low' })
  t.deepEqual(variables('max'), { enable_thinking: true, reasoning_effort: 'high' })
  t.deepEqual(variables('none', { templateOptions: { enable_thinking: true } }), { enable_thinking: true })
})

test('an unknown setting is refused by its name', t => {
  const wrong = [
    () => checkedSettings('settings', { slat: 'a' }),
    () => chatOptionsOf({}, question('?', { providerOptions: { kvtide: { slat: 'a' } } })),
  ]
  for (const call of wrong) {
    const error = t.throws(call, { instanceOf: InvalidArgumentError })
    t.regex(error.message, /'slat'.*salt/)
  }
})
