// Requests that the chat server of examples/ refuses: wrong keys, paths and bodies.
import { connect } from 'node:net'

import test, { type ExecutionContext } from 'ava'
import fc from 'fast-check'

import { bytes } from '../../examples/server/text.js'
import { type Answer, ChatServer, messages } from '../support/server/chat-server.js'
import { checkAsync } from '../support/seeded.js'

let server: ChatServer

test.before(async () => {
  server = await ChatServer.start()
})

test.after.always(() => server.stop())

const refused = async (
  t: ExecutionContext,
  body: object | string,
  status: number,
  param: string | null,
  code?: string,
): Promise<void> => {
  for (const more of typeof body === 'string' ? [{}] : [{}, { stream: true }]) {
    const response = await server.post(typeof body === 'string' ? body : { ...more, ...body })
    const { error } = (await response.json()) as Answer
    t.deepEqual([response.status, error.param, error.type], [status, param, 'invalid_request_error'], error.message)
    if (code !== undefined) t.is(error.code, code)
  }
}

test('what is wrong is refused with its name, before a stream begins', async t => {
  await refused(t, 'no json', 400, null)
  await refused(t, '[]', 400, null)
  await refused(t, 'null', 400, null)
  await refused(t, {}, 400, 'messages')
  await refused(t, { messages, model: 'other' }, 404, 'model', 'model_not_found')
  const wrong = {
    temperature: [3, -1, '1', [[]]],
    top_p: [-1, 0, 1.5, '1', {}],
    n: [0, 17, 1.5, true],
    max_tokens: [0.5, 0, 2 ** 31, '5'],
    max_completion_tokens: [0, -1],
    stop: [[''], ['a', 'b', 'c', 'd', 'e'], 5, [null], {}],
    stream: ['yes', 1, {}],
    presence_penalty: [3, 'x'],
    frequency_penalty: [-3, []],
    logit_bias: [
      { a: 1 },
      [1],
      'x',
      { 1: 101 },
      { 1: null },
      { '01': 1 },
      { [bytes.stop[0] as number]: '5' },
      { 320: 1 },
      { [2 ** 32]: 1 },
    ],
    seed: [-1, 0.5, 2 ** 53, 'x'],
    logprobs: ['yes', 5],
    top_logprobs: [5, -1, 'x'],
    tools: [[{}], 'x'],
    response_format: [{ type: 'json_object' }, {}, 'text', []],
    model: [5, null, {}],
  }
  for (const [param, values] of Object.entries(wrong))
    for (const value of values) await refused(t, { messages, [param]: value }, 400, param)
  await refused(t, { messages, logprobs: true, top_logprobs: 21 }, 400, 'top_logprobs')
  await refused(t, { messages, stream: false, stream_options: {} }, 400, 'stream_options')
  await refused(t, { messages, stream: true, stream_options: 5 }, 400, 'stream_options')
  await refused(
    t,
    { messages, stream: true, stream_options: { include_usage: 'yes' } },
    400,
    'stream_options.include_usage',
  )
  await refused(t, { messages: [{ role: 'user', content: 'x'.repeat(5000) }] }, 413, null)
})

test('messages that are none are refused with the place', async t => {
  for (const value of [5, 'text', {}, []]) await refused(t, { messages: value }, 400, 'messages')
  for (const value of [null, 5, 'text', []]) await refused(t, { messages: [...messages, value] }, 400, 'messages[1]')
  for (const role of [null, 5, {}, 'tool', 'nobody', undefined])
    await refused(t, { messages: [{ role, content: 'x' }] }, 400, 'messages[0].role')
  for (const content of [null, 4, {}, true, [], undefined])
    await refused(t, { messages: [{ role: 'user', content }] }, 400, 'messages[0].content')
  const part = async (given: unknown, param: string): Promise<void> =>
    refused(
      t,
      { messages: [{ role: 'user', content: [{ type: 'text', text: 'a' }, given] }] },
      400,
      `messages[0].content[1]${param}`,
    )
  for (const given of [null, 5, 'text', []]) await part(given, '')
  for (const type of [null, 'image_url', {}]) await part({ type, text: 'x' }, '.type')
  for (const text of [null, 5, [], undefined]) await part({ type: 'text', text }, '.text')
})

test('a value that is deep or long is refused as any other', async t => {
  const deep = `${'['.repeat(1900)}${']'.repeat(1900)}`
  for (const param of [
    'temperature',
    'stop',
    'logit_bias',
    'model',
    'n',
    'response_format',
    'stream_options',
    'stream',
  ])
    await refused(t, `{"messages":[{"role":"user","content":"x"}],"${param}":${deep}}`, 400, param)
  const response = await server.post({ messages, temperature: 'x'.repeat(3000) })
  t.true(((await response.json()) as Answer).error.message.length < 200)
})

test('a body of any shape is answered or refused, and never fails', async t => {
  const known = fc.constantFrom(
    'messages',
    'temperature',
    'top_p',
    'n',
    'stop',
    'stream',
    'stream_options',
    'logprobs',
    'top_logprobs',
    'logit_bias',
    'seed',
    'response_format',
    'model',
    'tools',
    'presence_penalty',
    '__proto__',
  )
  const number = fc.oneof(
    fc.integer({ min: -3, max: 25 }),
    fc.double({ noNaN: true }),
    fc.constantFrom(0, 1, 0.5, 2 ** 53, 1e308),
  )
  const leaf = fc.oneof(
    number,
    fc.boolean(),
    fc.constant(null),
    fc.string(),
    fc.constantFrom('text', 'user', 'tiny', 'constructor'),
  )
  const { value } = fc.letrec(tie => ({
    value: fc.oneof(
      { depthSize: 'small' },
      leaf,
      fc.array(tie('value'), { maxLength: 3 }),
      fc.dictionary(fc.constantFrom('type', 'text', 'role', 'content', 'include_usage', '1', 'x'), tie('value'), {
        maxKeys: 3,
      }),
    ),
  }))
  const content = fc.oneof(
    fc.string({ unit: 'binary' }),
    fc.array(fc.oneof(value, fc.record({ type: fc.constant('text'), text: fc.oneof(fc.string(), value) })), {
      maxLength: 3,
    }),
    value,
  )
  const message = fc.oneof(
    {
      weight: 4,
      arbitrary: fc.record(
        { role: fc.constantFrom('user', 'system', 'assistant', 'developer'), content },
        { requiredKeys: [] },
      ),
    },
    { weight: 1, arbitrary: value },
  )
  const body = fc.oneof(
    { weight: 1, arbitrary: value },
    {
      weight: 4,
      arbitrary: fc
        .tuple(
          fc.oneof(fc.constant(messages), fc.array(message, { maxLength: 3 })),
          fc.array(fc.tuple(known, value), { maxLength: 3 }),
        )
        .map(([given, more]) => ({ max_tokens: 2, messages: given, ...Object.fromEntries(more) })),
    },
  )
  let answered = 0
  await checkAsync(t, body, async given => {
    const response = await server.post(JSON.stringify(given) ?? 'null')
    const text = await response.text()
    if (response.status === 200) {
      answered += 1
      if (text.startsWith('data: ')) t.true(text.endsWith('data: [DONE]\n\n'), text)
      else t.is((JSON.parse(text) as Answer).object, 'chat.completion')
      return
    }
    const { error } = JSON.parse(text) as Answer
    t.true([400, 404, 413].includes(response.status), `${response.status}: ${text}`)
    t.true(error.message.length < 300 && error.type === 'invalid_request_error', text)
    t.true(
      error.param !== null ||
        typeof given !== 'object' ||
        given === null ||
        Array.isArray(given) ||
        response.status === 413,
      text,
    )
  })
  t.log(`${answered} were answered`)
  t.true(answered > 5)
})

test('a path that is none is not found, another method is refused', async t => {
  for (const path of [
    '//',
    '/',
    '/v1',
    '/v1/',
    '/v1/nothing',
    '/v1/chat/completions/',
    '//v1/models',
    '/v1//models',
    '/%',
    '/%00',
    '/\\',
    '/v1/models/..',
    '/constructor',
    '/__proto__',
    '*',
    'http://x',
    '/?//',
    '/?',
    '/#',
    `/${'x'.repeat(8000)}`,
  ]) {
    for (const method of ['GET', 'POST', 'OPTIONS', 'DELETE']) {
      const { status, body } = await server.raw(method, path)
      t.is(status, 404, path)
      t.true((JSON.parse(body) as Answer).error.message.length < 300)
    }
  }
  // The HTTP parser refuses a path that is none at all.
  for (const path of ['x', '?', 'http://', 'ftp://x/health'])
    t.true([400, 404].includes((await server.raw('GET', path)).status), path)
  for (const [method, path] of [
    ['POST', '/health'],
    ['DELETE', '/v1/models'],
    ['GET', '/v1/chat/completions'],
  ] as const) {
    const { status, headers } = await server.raw(method, path)
    t.is(status, 405, path)
    t.is((headers as { allow: string }).allow, path === '/v1/chat/completions' ? 'POST' : 'GET')
  }
  for (const path of [
    '/health',
    '/health?',
    '/health?x=//',
    'http://anything:80/health',
    'HTTP://x/health?y',
    '/v1/models?limit=5',
    '/v1/stats',
  ]) {
    t.is((await server.raw('GET', path)).status, 200, path)
    t.deepEqual(await server.raw('HEAD', path).then(({ status, body }) => [status, body]), [200, ''])
  }
})

test('a body that is too large is answered, and its connection goes on', async t => {
  const { port } = new URL(server.at)
  const socket = connect(Number(port), '127.0.0.1')
  t.teardown(() => socket.destroy())
  let read = ''
  const until = (end: string): Promise<void> =>
    new Promise((resolve, reject) => {
      const look = (): void => void (read.includes(end) && resolve())
      socket.on('data', part => {
        read += String(part)
        look()
      })
      socket.on('close', () => reject(new Error(read)))
      look()
    })
  socket.write('POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n')
  for (let part = 0; part < 100; part++) socket.write('x'.repeat(10_000))
  await until('4096 bytes')
  t.regex(read, /^HTTP\/1\.1 413 /)
  socket.write('GET /health HTTP/1.1\r\nHost: x\r\n\r\n')
  await until('"ok"')
  t.pass()
})

test('the scheme of a key is read in any case, with any space', async t => {
  const long = [{ role: 'user', content: 'k'.repeat(100) }]
  const ask = async (authorization: string): Promise<number> => {
    const { status, body } = await server.raw(
      'POST',
      '/v1/chat/completions',
      { headers: { authorization } },
      JSON.stringify({ messages: long, max_tokens: 1 }),
    )
    t.is(status, 200, body)
    return (JSON.parse(body) as Answer).usage.prompt_tokens_details.cached_tokens
  }
  t.is(await ask('Bearer scheme'), 0)
  for (const same of ['bearer scheme', 'BEARER scheme', 'bEARER   scheme', 'Bearer scheme  ', 'Bearer \t scheme'])
    t.true((await ask(same)) >= 96, same)
  for (const other of ['bearer Scheme', 'bearer scheme2', 'bearer schem', 'bearer bearer'])
    t.is(await ask(other), 0, other)
  const { body } = await server.raw(
    'POST',
    '/v1/chat/completions',
    {},
    JSON.stringify({ messages: long, max_tokens: 1 }),
  )
  t.is(
    (JSON.parse(body) as Answer).usage.prompt_tokens_details.cached_tokens,
    0,
    'those without a key are a tenant of their own',
  )
})

const MALFORMED = [
  '',
  'Bearer',
  'Bearer ',
  'secret',
  'Basic secret',
  'Bearersecret',
  'Bearer: secret',
  'Bearer sec ret',
  'Bearer secret, Bearer secret',
  'Bearer secret,',
  'Bearer séc',
  'Token secret',
]

test('a key that cannot be read is refused, and never shown', async t => {
  const keyed = await ChatServer.of(t, { keys: ['secret', 'other'] })
  const canary = 'canary-key'
  for (const of of [server, keyed]) {
    for (const authorization of [
      ...MALFORMED,
      ['Bearer secret', 'Bearer secret'],
      ['Bearer secret', ''],
      ['Basic x', 'Bearer secret'],
      `Basic ${canary}`,
      `Bearer ${canary} ${canary}`,
    ]) {
      const { status, headers, body } = await of.raw(
        'POST',
        '/v1/chat/completions',
        { headers: { authorization } },
        JSON.stringify({ messages, max_tokens: 1 }),
      )
      t.deepEqual(
        [status, (headers as Record<string, string>)['www-authenticate'], (JSON.parse(body) as Answer).error.code],
        [401, 'Bearer', 'invalid_api_key'],
        String(authorization),
      )
      t.false(body.includes(canary))
    }
  }
})

test('where keys are configured, nothing else is served', async t => {
  const keyed = await ChatServer.of(t, { keys: ['secret', 'other'] })
  const body = JSON.stringify({ messages, max_tokens: 1 })
  for (const [method, path] of [
    ['POST', '/v1/chat/completions'],
    ['GET', '/v1/models'],
    ['GET', '/v1/stats'],
  ] as const) {
    for (const headers of [
      {},
      { authorization: 'Bearer unknown' },
      { authorization: 'Bearer secre' },
      { authorization: 'Bearer secret2' },
      { authorization: 'Bearer SECRET' },
      { 'x-api-key': 'secret' },
    ] as Record<string, string>[]) {
      const { status, body: answer } = await keyed.raw(method, path, { headers }, method === 'POST' ? body : '')
      t.is(status, 401, path)
      t.is((JSON.parse(answer) as Answer).error.code, 'invalid_api_key')
    }
    for (const authorization of ['Bearer secret', 'bearer other'])
      t.is((await keyed.raw(method, path, { headers: { authorization } }, method === 'POST' ? body : '')).status, 200)
  }
  t.is((await keyed.raw('GET', '/health')).status, 200)
  const none = await ChatServer.of(t, { keys: [] })
  t.is((await none.post({ messages })).status, 401)
})
