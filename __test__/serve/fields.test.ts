// Every field of a request: its wrong values are refused with its name, right values reach the model, and the documentation lists what is done with it.
import { readFileSync } from 'node:fs'

import test, { type ExecutionContext } from 'ava'

import { OTHER_FIELDS } from '../../packages/serve/lib/requests/known.js'
import { type Answer, Client, MESSAGES } from '../support/serve/client.js'

let client: Client

test.before(async () => {
  client = await Client.start()
})

test.after.always(() => client.server.close())

type Endpoint = 'chat' | 'completions'

const REQUIRED: Readonly<Record<Endpoint, object>> = { chat: { messages: MESSAGES }, completions: { prompt: 'Once' } }
const PATHS: Readonly<Record<Endpoint, string>> = { chat: '/v1/chat/completions', completions: '/v1/completions' }

const tool = { type: 'function', function: { name: 'look', parameters: { type: 'object' } } }
const schema = { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'object' } } }

interface Field {
  readonly wrong: readonly unknown[]
  /** A right value, and the options that the model gets for it. */
  readonly right?: readonly (readonly [value: unknown, options: object])[]
  /** Further fields of each request. */
  readonly beside?: object
  /** The parameter that errors name, if it isn't the field itself but a part of it. */
  readonly parts?: boolean
}

const SHARED: Readonly<Record<string, Field>> = {
  model: { wrong: [5, {}, null, []] },
  stream: { wrong: ['yes', 1, {}, []] },
  stream_options: {
    wrong: [5, 'x', [], { include_usage: 'yes' }, { include_usage: 1 }],
    beside: { stream: true },
    parts: true,
  },
  n: { wrong: [0, 17, 1.5, true, '2', -1] },
  max_tokens: { wrong: [0, 0.5, 2 ** 31, '5', [], -1], right: [[7, { maxTokens: 7 }]] },
  temperature: {
    wrong: [3, -1, '1', [[]], {}],
    right: [
      [0, { temperature: 0 }],
      [1.5, { temperature: 1.5 }],
    ],
  },
  top_p: { wrong: [-1, 0, 1.5, '1', {}], right: [[0.5, { topP: 0.5 }]] },
  top_k: {
    wrong: [-2, 1.5, '1'],
    right: [
      [5, { topK: 5 }],
      [-1, { topK: undefined }],
      [0, { topK: undefined }],
    ],
  },
  min_p: { wrong: [-1, 2, 'x'], right: [[0.1, { minP: 0.1 }]] },
  repetition_penalty: { wrong: [0, -1, 'x', 11], right: [[1.2, { repetitionPenalty: 1.2 }]] },
  presence_penalty: { wrong: [3, 'x', -2.1], right: [[1, { presencePenalty: 1 }]] },
  frequency_penalty: { wrong: [-3, [], 'x'], right: [[-1, { frequencyPenalty: -1 }]] },
  logit_bias: {
    wrong: [{ a: 1 }, [1], 'x', { 1: 101 }, { 1: null }, { '01': 1 }, { 2: '5' }, { 320: 1 }, { [2 ** 32]: 1 }],
    right: [[{ 5: -100, 6: 3 }, { bias: { 5: -100, 6: 3 } }]],
  },
  seed: {
    wrong: [0.5, 2 ** 53, 'x', {}],
    right: [
      [7, { seed: 7 }],
      [-1, { seed: 2 ** 53 - 1 }],
    ],
  },
  stop: {
    wrong: [[''], ['a', 'b', 'c', 'd', 'e'], 5, [null], {}, ''],
    right: [
      ['a', { stop: ['a'] }],
      [['a', 'b'], { stop: ['a', 'b'] }],
    ],
  },
  stop_token_ids: { wrong: [5, [320], [-1], [1.5], ['1']], right: [[[5], { stopTokens: [5] }]] },
  ignore_eos: {
    wrong: ['yes', 1],
    right: [
      [true, { ignoreEndOfSequence: true }],
      [false, { ignoreEndOfSequence: undefined }],
    ],
  },
  cache_salt: { wrong: [5, '', {}, '\uD800'] },
  response_format: {
    wrong: [
      5,
      'text',
      [],
      {},
      { type: 'xml' },
      { type: 'json_schema' },
      { type: 'json_schema', json_schema: { name: 'x' } },
      { type: 'json_schema', json_schema: { name: 'x', schema: 5 } },
    ],
    right: [
      [{ type: 'text' }, { grammar: undefined }],
      [{ type: 'json_object' }, { grammar: { json: 'object' } }],
      [schema, { grammar: { json: { type: 'object' } } }],
    ],
    parts: true,
  },
  structured_outputs: {
    wrong: [5, [], { json: 5 }, { regex: 1 }, { choice: [] }, { choice: [''] }, { grammar: 5 }],
    right: [
      [{ choice: ['a.b', 'c'] }, { grammar: { regex: String.raw`a\.b|c` } }],
      [{ grammar: 'start: "a"' }, { grammar: { lark: 'start: "a"' } }],
    ],
    parts: true,
  },
  guided_json: { wrong: [5, 'no json', []], right: [[{ type: 'object' }, { grammar: { json: { type: 'object' } } }]] },
  guided_regex: { wrong: [5, ''], right: [['a+', { grammar: { regex: 'a+' } }]] },
  guided_choice: { wrong: [5, [], [1]], right: [[['x'], { grammar: { regex: 'x' } }]] },
}

const FIELDS: Readonly<Record<Endpoint, Readonly<Record<string, Field>>>> = {
  chat: {
    ...SHARED,
    messages: { wrong: [5, [], 'x', {}, null], parts: true },
    max_completion_tokens: { wrong: [0, -1, '5'], right: [[9, { maxTokens: 9 }]] },
    logprobs: {
      wrong: ['yes', 5],
      right: [
        [true, { logprobs: 0 }],
        [false, { logprobs: undefined }],
      ],
    },
    top_logprobs: { wrong: [-1, 21, 'x', 1.5], right: [[3, { logprobs: 3 }]], beside: { logprobs: true } },
    tools: {
      wrong: [
        5,
        {},
        [5],
        [{ type: 'other' }],
        [{ type: 'function' }],
        [{ type: 'function', function: { name: 'a b' } }],
        [{ type: 'function', function: { name: 'a', parameters: 5 } }],
        [{ type: 'function', function: { name: 'a', description: 5 } }],
      ],
      right: [
        [[tool], { tools: [tool] }],
        [[], { tools: undefined }],
      ],
      parts: true,
    },
    tool_choice: {
      wrong: [5, 'all', {}, { type: 'function' }, { type: 'function', function: { name: 'other' } }],
      right: [
        ['required', { toolChoice: 'required' }],
        [{ type: 'function', function: { name: 'look' } }, { toolChoice: { name: 'look' } }],
      ],
      beside: { tools: [tool] },
      parts: true,
    },
    parallel_tool_calls: { wrong: ['yes', 1] },
    reasoning_effort: {
      wrong: [5, 'most'],
      right: [['low', { templateOptions: { reasoning_effort: 'low', enable_thinking: true } }]],
    },
    chat_template_kwargs: {
      wrong: [5, [], { messages: [] }, { chat_template: 'x' }],
      right: [[{ enable_thinking: false }, { templateOptions: { enable_thinking: false } }]],
      parts: true,
    },
  },
  completions: {
    ...SHARED,
    prompt: {
      wrong: [5, '', [], {}, null, [['']], [''], [1.5], [-1], [320], [[320]], ['a', 5]],
      right: [[[4, 5], { prompt: [4, 5] }]],
    },
    echo: { wrong: ['yes', 1] },
    logprobs: { wrong: [true, -1, 21], right: [[2, { logprobs: 2 }]] },
  },
}

const refused = async (
  t: ExecutionContext,
  path: string,
  body: object,
  param: string,
  hasParts = false,
): Promise<void> => {
  for (const more of [{}, { stream: true }]) {
    const response = await client.post({ ...more, ...body }, { path })
    const { error } = (await response.json()) as Answer
    t.is(response.status, 400, `${param}: ${JSON.stringify(body)}: ${JSON.stringify(error)}`)
    const named = hasParts ? error.param?.split(/[.[]/)[0] : error.param
    t.deepEqual([named, error.type], [param, 'invalid_request_error'], error.message)
  }
}

for (const endpoint of ['chat', 'completions'] as const) {
  test(`${endpoint}: wrong values are refused with the field's name, and nothing is computed`, async t => {
    const own = await Client.of(t)
    for (const [name, { wrong, beside, parts }] of Object.entries(FIELDS[endpoint]))
      for (const value of wrong)
        await refused(t, PATHS[endpoint], { ...REQUIRED[endpoint], ...beside, [name]: value }, name, parts)
    t.is(own.model.asked.length, 0)
  })

  test.serial(`${endpoint}: right values reach the model`, async t => {
    for (const [name, { right = [], beside }] of Object.entries(FIELDS[endpoint]))
      for (const [value, options] of right) {
        const response = await client.post(
          { ...REQUIRED[endpoint], ...beside, [name]: value },
          { path: PATHS[endpoint] },
        )
        t.is(response.status, 200, `${name}: ${await response.text()}`)
        const asked = client.model.asked.at(-1) as Record<string, unknown>
        for (const [option, expected] of Object.entries(options))
          t.deepEqual(asked[option], expected, `${name} -> ${option}`)
      }
  })

  test(`${endpoint}: fields that would change the answer are refused, and others are ignored`, async t => {
    for (const { name, of, use } of OTHER_FIELDS) {
      if (of !== 'both' && of !== endpoint) continue
      const value = { canary: 'x' }
      if (use === 'refused') await refused(t, PATHS[endpoint], { ...REQUIRED[endpoint], [name]: value }, name)
      for (const each of use === 'refused' ? [null] : [value, null, 'x'])
        t.is((await client.post({ ...REQUIRED[endpoint], [name]: each }, { path: PATHS[endpoint] })).status, 200, name)
    }
    const unknown = { ...REQUIRED[endpoint], never_heard_of: { x: 1 }, __proto__x: 1, constructor: 'x' }
    t.is((await client.post(unknown, { path: PATHS[endpoint] })).status, 200)
  })
}

test('values that ask for nothing are accepted', async t => {
  const nothing = {
    modalities: ['text'],
    functions: [],
    function_call: 'none',
    min_tokens: 0,
    use_beam_search: false,
    verbosity: 'medium',
    tools: [],
    tool_choice: 'auto',
    response_format: null,
    stop: null,
    seed: null,
    n: null,
    stream_options: null,
  }
  t.is((await client.post({ messages: MESSAGES, ...nothing })).status, 200)
})

test('an error about the length of a list says how long it is', async t => {
  const own = await Client.of(t, { maxBodyBytes: 2 ** 20 })
  for (const [body, expected] of [
    [{ messages: [] }, 'messages must be a list of 1 to 4096 messages, got a list of 0'],
    [
      { stop: ['a', 'b', 'c', 'd', 'e'] },
      'stop must be a text or up to four of them, none of them empty, got a list of 5',
    ],
    [
      { messages: [{ role: 'user', content: [] }] },
      'messages[0].content must be a text, or a list of 1 to 4096 parts, got a list of 0',
    ],
    [
      { tools: Array.from({ length: 4097 }, () => tool) },
      'tools must be a list of at most 4096 tools, got a list of 4097',
    ],
  ] as const)
    t.is((await own.asked(body)).error.message, expected)
})

test('combinations that contradict each other are refused', async t => {
  const path = PATHS.chat
  for (const [body, param] of [
    [{ top_logprobs: 3 }, 'top_logprobs'],
    [{ stream: false, stream_options: {} }, 'stream_options'],
    [{ tool_choice: 'required' }, 'tool_choice'],
    [{ response_format: schema, guided_regex: 'a' }, 'response_format'],
  ] as const) {
    const response = await client.post({ messages: MESSAGES, ...body }, { path })
    t.deepEqual([response.status, ((await response.json()) as Answer).error.param], [400, param])
  }
  const echo = await client.post({ prompt: 'x', echo: true, logprobs: 1 }, { path: PATHS.completions })
  t.deepEqual([echo.status, ((await echo.json()) as Answer).error.param], [400, 'logprobs'])
})

test('messages are refused with the place of what is wrong', async t => {
  const call = { id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } }
  const wrong: readonly (readonly [unknown, string])[] = [
    [5, 'messages[1]'],
    [{ role: 'robot', content: 'x' }, 'messages[1].role'],
    [{ role: 'user' }, 'messages[1].content'],
    [{ role: 'user', content: null }, 'messages[1].content'],
    [{ role: 'user', content: 5 }, 'messages[1].content'],
    [{ role: 'user', content: [] }, 'messages[1].content'],
    [{ role: 'user', content: [{ type: 'image_url' }] }, 'messages[1].content[0].type'],
    [{ role: 'user', content: [{ type: 'text' }] }, 'messages[1].content[0].text'],
    [{ role: 'user', content: 'half \uD800' }, 'messages[1].content'],
    [{ role: 'tool', content: 'x' }, 'messages[1].tool_call_id'],
    [{ role: 'assistant', tool_calls: 5 }, 'messages[1].tool_calls'],
    [{ role: 'assistant', tool_calls: [{ ...call, type: 'x' }] }, 'messages[1].tool_calls[0].type'],
    [{ role: 'assistant', tool_calls: [{ ...call, function: {} }] }, 'messages[1].tool_calls[0].function'],
    [{ role: 'assistant', content: 'x', audio: { id: 'x' } }, 'messages[1].audio'],
    [{ role: 'user', content: 'x', name: 5 }, 'messages[1].name'],
  ]
  for (const [message, param] of wrong) {
    const response = await client.post({ messages: [...MESSAGES, message] })
    const { error } = (await response.json()) as Answer
    t.deepEqual([response.status, error.param], [400, param], error.message)
  }
  const whole = [
    {
      role: 'system',
      content: [
        { type: 'text', text: 'Be ' },
        { type: 'text', text: 'brief' },
      ],
    },
    ...MESSAGES,
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: 'a', content: '5' },
  ]
  t.is((await client.post({ messages: whole })).status, 200)
})

/** The members of an interface in the declarations of OpenAI's client. */
function membersOf(file: string, name: string): string[] {
  const text = readFileSync(`node_modules/openai/resources/${file}`, 'utf8')
  const start = text.indexOf(`export interface ${name} {`)
  const body = text.slice(start, text.indexOf('\n}', start))
  return [...body.matchAll(/^ {4}(\w+)\??:/gm)].map(([, member = '']) => member)
}

test("the documentation lists every field of OpenAI's API, and what is done with it", t => {
  const page = readFileSync('docs/serve.md', 'utf8')
  const rows = new Map<string, string>()
  for (const [, names = '', use = '', of = ''] of page.matchAll(
    /^\| ((?:`[\w.]+`(?:, )?)+) \| (honoured|ignored|refused) \| (\w+) \|/gm,
  ))
    for (const [, name = ''] of names.matchAll(/`([\w.]+)`/g))
      for (const endpoint of of === 'both' ? ['chat', 'completions'] : [of]) rows.set(`${endpoint} ${name}`, use)
  const openai = {
    chat: membersOf('chat/completions/completions.d.ts', 'ChatCompletionCreateParamsBase'),
    completions: membersOf('completions.d.ts', 'CompletionCreateParamsBase'),
  }
  t.true(openai.chat.length > 25 && openai.completions.length > 10)
  for (const endpoint of ['chat', 'completions'] as const) {
    for (const name of openai[endpoint])
      t.true(rows.has(`${endpoint} ${name}`), `${endpoint}: ${name} has no row in docs/serve.md`)
    for (const name of Object.keys(FIELDS[endpoint]))
      t.is(rows.get(`${endpoint} ${name}`), 'honoured', `${endpoint} ${name}`)
  }
  for (const { name, use, of } of OTHER_FIELDS)
    for (const endpoint of of === 'both' ? ['chat', 'completions'] : [of])
      t.is(rows.get(`${endpoint} ${name}`), use, `${endpoint} ${name}`)
})
