// Paths, methods, keys and bodies: what the server refuses before it reads a request.
import { type IncomingMessage, Server, type ServerResponse } from 'node:http'
import { connect } from 'node:net'

import test from 'ava'
import fc from 'fast-check'

import { keysOf } from '../../packages/serve/index.js'
import { checkAsync } from '../support/seeded.js'
import { type Answer, Client, MESSAGES } from '../support/serve/client.js'
import { until } from '../support/until.js'

let client: Client

test.before(async () => {
  client = await Client.start()
})

test.after.always(() => client.server.close())

const json = { 'content-type': 'application/json' }

test('paths and methods that are not there', async t => {
  for (const path of [
    '/',
    '/v1',
    '/v1/',
    '/v1/nothing',
    '/v1/chat/completions/',
    '//v1/models',
    '/constructor',
    '/__proto__',
    '/%00',
    `/${'x'.repeat(8000)}`,
  ]) {
    for (const method of ['GET', 'POST', 'DELETE']) {
      const { status, body } = await client.raw(method, path)
      t.is(status, 404, `${method} ${path}: ${body}`)
      const { error } = JSON.parse(body) as Answer
      t.true(error.message.length < 300)
      t.is(error.type, 'invalid_request_error')
    }
  }
  for (const [method, path, allowed] of [
    ['POST', '/health', 'GET'],
    ['DELETE', '/v1/models', 'GET'],
    ['GET', '/v1/chat/completions', 'POST'],
  ] as const) {
    const { status, headers } = await client.raw(method, path)
    t.deepEqual([status, headers['allow']], [405, allowed], path)
  }
  const bad = await client.raw('GET', '/v1/models/%')
  t.is(bad.status, 400)
  t.is((JSON.parse(bad.body) as Answer).error.type, 'invalid_request_error')
})

test('a model is found by its name, with any spelling of the path', async t => {
  const own = await Client.of(t, { name: 'org/name' })
  const { data } = JSON.parse(await own.text('/v1/models')) as { data: { id: string }[] }
  t.deepEqual(
    data.map(({ id }) => id),
    ['org/name'],
  )
  for (const path of ['org/name', 'org%2Fname'])
    t.is((JSON.parse(await own.text(`/v1/models/${path}`)) as { id: string }).id, 'org/name')
  const { error } = JSON.parse(await own.text('/v1/models/other')) as Answer
  t.is(error.code, 'model_not_found')
  const response = await own.post({ messages: MESSAGES, model: 'other' })
  t.deepEqual([response.status, ((await response.json()) as Answer).error.code], [404, 'model_not_found'])
})

test('bodies that are no JSON object', async t => {
  for (const body of ['no json', '', '{', '{"messages": [}', '\u0000']) {
    const response = await client.post(body)
    t.deepEqual([response.status, ((await response.json()) as Answer).error.code], [400, 'invalid_json'], body)
  }
  for (const body of ['[]', 'null', '5', '"x"']) t.is((await client.post(body)).status, 400, body)
  const { status, body } = await client.raw('POST', '/v1/chat/completions')
  t.is(status, 400, body)
})

const post = (...parts: readonly Uint8Array[]): Promise<Response> =>
  fetch(`${client.at}/v1/chat/completions`, { method: 'POST', headers: json, body: Buffer.concat(parts) })

test('a body that is no UTF-8 is refused with the offset of its first wrong byte', async t => {
  const [head, tail] = [Buffer.from('{"messages":[{"role":"user","content":"é€😀'), Buffer.from('"}]}')]
  for (const [bytes, first] of [
    [[0xff], '0xff'],
    [[0xc3, 0x28], '0xc3'],
    [[0xef, 0x28], '0xef'],
    [[0xef, 0xbf, 0x28], '0xef'],
    [[0xed, 0xa0, 0x80], '0xed'],
    [[0xf0, 0x9f, 0x98], '0xf0'],
    [[0xef, 0xbf, 0xbd, 0x80], '0x80'],
  ] as const) {
    const offset = head.length + (first === '0x80' ? 3 : 0)
    const response = await post(head, Buffer.from(bytes), tail)
    const { error } = (await response.json()) as Answer
    t.deepEqual(
      [response.status, error.code, error.message],
      [400, 'invalid_json', `the body must be UTF-8, got the byte ${first} at offset ${offset}`],
    )
  }
  t.is((await post(head, Buffer.from('\uFFFD'), tail)).status, 200)
})

test('a body of another type is refused: a form of another site cannot post one', async t => {
  for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=x']) {
    const { status, body } = await client.raw(
      'POST',
      '/v1/chat/completions',
      { headers: { 'content-type': type } },
      JSON.stringify({ messages: MESSAGES }),
    )
    t.is(status, 415, type)
    t.is((JSON.parse(body) as Answer).error.code, 'unsupported_media_type')
  }
  const charset = await client.raw(
    'POST',
    '/v1/chat/completions',
    { headers: { 'content-type': 'application/json; charset=utf-8' } },
    JSON.stringify({ messages: MESSAGES }),
  )
  t.is(charset.status, 200)
})

test('any JSON is answered with a status below 500', async t => {
  await checkAsync(t, fc.jsonValue({ maxDepth: 4 }), async value => {
    for (const path of ['/v1/chat/completions', '/v1/completions']) {
      const { status } = await client.post(
        JSON.stringify({ messages: value, prompt: value, tools: value, stop: value, response_format: value }),
        { path },
      )
      t.true(status >= 400 && status < 500, `${status}: ${JSON.stringify(value)}`)
    }
  })
})

test('a body that is too large is answered, and its connection goes on', async t => {
  const own = await Client.of(t, { maxBodyBytes: 4096 })
  const socket = connect(own.port, '127.0.0.1')
  t.teardown(() => socket.destroy())
  let read = ''
  const received = (end: string): Promise<void> =>
    new Promise((resolve, reject) => {
      const look = (): void => void (read.includes(end) && resolve())
      socket.on('data', part => {
        read += String(part)
        look()
      })
      socket.on('close', () => reject(new Error(read)))
      look()
    })
  socket.write(
    'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n',
  )
  for (let part = 0; part < 100; part++) socket.write('x'.repeat(10_000))
  await received('4096 bytes')
  t.regex(read, /^HTTP\/1\.1 413 /)
  socket.write('GET /health HTTP/1.1\r\nHost: x\r\n\r\n')
  await received('"ok"')
  t.pass()
})

test('a body of a gigabyte is refused before it was sent, or while it is read', async t => {
  const answerTo = (head: string, send: boolean): Promise<{ readonly read: string; readonly sent: number }> =>
    new Promise(resolve => {
      const socket = connect(client.port, '127.0.0.1')
      let [read, sent] = ['', 0]
      const most = send ? 2 ** 30 : 0
      const part = send ? `100000\r\n${'x'.repeat(2 ** 20)}\r\n` : ''
      const write = (): void => {
        while (!socket.destroyed && sent < most) {
          sent += 2 ** 20
          if (!socket.write(part)) return void socket.once('drain', write)
        }
      }
      socket.on('data', text => {
        read += String(text)
        if (!send) socket.end()
      })
      socket.on('error', () => {})
      socket.on('close', () => resolve({ read, sent }))
      socket.write(
        `POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n${head}\r\n\r\n`,
        write,
      )
    })
  const declared = await answerTo('Content-Length: 1073741824', false)
  t.regex(declared.read, /^HTTP\/1\.1 413 [\s\S]*connection: close/i)
  const before = process.memoryUsage().rss
  const chunked = await answerTo('Transfer-Encoding: chunked', true)
  t.true(chunked.sent < 2 ** 28, `${chunked.sent} bytes were sent`)
  t.true(process.memoryUsage().rss - before < 2 ** 28)
  t.is((await client.asked({})).object, 'chat.completion')
})

test('a request that does not arrive is ended', async t => {
  const own = await Client.of(t, { times: { body: 0.5 } })
  const socket = connect(own.port, '127.0.0.1')
  let read = ''
  socket.on('data', part => (read += String(part)))
  socket.write(
    'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{',
  )
  await new Promise(resolve => socket.on('close', resolve))
  t.regex(read, /^(HTTP\/1\.1 408 [\s\S]*"error"|$)/)
})

test('what is no HTTP gets an error in the same form', async t => {
  const socket = connect(client.port, '127.0.0.1')
  let read = ''
  socket.on('data', part => (read += String(part)))
  socket.write('HELLO\r\n\r\n')
  await new Promise(resolve => socket.on('close', resolve))
  t.regex(read, /^HTTP\/1\.1 400 Bad Request\r\n[\s\S]*"invalid_request_error"/)
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
const PATHS = [
  ['POST', '/v1/chat/completions'],
  ['POST', '/v1/completions'],
  ['POST', '/worker/keys'],
  ['GET', '/v1/models'],
  ['GET', '/v1/models/scripted'],
] as const

test('with keys, nothing is served without one', async t => {
  const own = await Client.of(t, { keys: [{ key: 'secret' }, { name: 'named', key: 'other' }] })
  for (const [method, path] of PATHS) {
    const body = method === 'POST' ? JSON.stringify({ messages: MESSAGES, prompt: 'x' }) : ''
    const wrong: Record<string, string | string[]>[] = [
      {},
      { 'x-api-key': 'wrong' },
      ...['Bearer unknown', 'Bearer secre', 'Bearer secret2', 'Bearer SECRET', ...MALFORMED].map(authorization => ({
        authorization,
      })),
      { authorization: ['Bearer secret', 'Bearer secret'] },
    ]
    for (const headers of wrong) {
      const answer = await own.raw(method, path, { headers: { ...json, ...headers } }, body)
      t.deepEqual(
        [answer.status, answer.headers['www-authenticate'], (JSON.parse(answer.body) as Answer).error.code],
        [401, 'Bearer', 'invalid_api_key'],
        JSON.stringify(headers),
      )
    }
    for (const headers of [
      { authorization: 'Bearer secret' },
      { authorization: 'bearer other' },
      { authorization: 'BEARER \t secret ' },
      { 'api-key': 'secret' },
      { 'x-api-key': 'other' },
    ] as Record<string, string>[])
      t.is((await own.raw(method, path, { headers: { ...json, ...headers } }, body)).status, 200, path)
  }
  for (const path of ['/health', '/ready', '/metrics', '/worker']) t.is((await own.raw('GET', path)).status, 200, path)
  const none = await Client.of(t, { keys: [] })
  t.is((await none.post({ messages: MESSAGES }, { key: 'any' })).status, 401)
})

test('without keys, any key and none are the same tenant', async t => {
  const own = await Client.of(t)
  for (const key of [undefined, 'one', 'two']) await own.asked({}, { key })
  t.deepEqual(
    own.model.asked.map(({ salt }) => salt),
    [undefined, undefined, undefined],
  )
})

test('a file of keys', t => {
  t.deepEqual(keysOf('# comment\n\n one \nteam\ttwo\r\nteam three\n'), [
    { key: 'one' },
    { name: 'team', key: 'two' },
    { name: 'team', key: 'three' },
  ])
  for (const text of ['a b c', 'name séc', 'a,b', 'same\nsame']) {
    const { message } = t.throws(() => keysOf(text)) ?? { message: '' }
    t.false(message.includes('séc') || message.includes('same'))
  }
})

const basic = (key: string): Record<string, string> => ({
  authorization: `Basic ${Buffer.from(`any:${key}`).toString('base64')}`,
})

test('the inspector needs the key of an admin, and without keys a local name', async t => {
  const own = await Client.of(t, { keys: [{ key: 'secret' }, { name: 'admin', key: 'root' }] })
  for (const [headers, status] of [
    [{}, 401],
    [basic('wrong'), 401],
    [basic('secret'), 403],
    [{ authorization: 'Bearer secret' }, 403],
    [basic('root'), 200],
    [{ authorization: 'Bearer root' }, 200],
  ] as [Record<string, string>, number][])
    t.is((await own.raw('GET', '/inspector/', { headers })).status, status, JSON.stringify(headers))
  t.regex((await own.raw('GET', '/inspector/')).headers['www-authenticate'] ?? '', /^Basic /)
  t.regex((await own.raw('GET', '/inspector/', { headers: basic('root') })).body, /<!doctype html>/)
  const explained = await own.raw(
    'POST',
    '/inspector/explain',
    { headers: basic('root') },
    JSON.stringify({ tokens: [1, 2, 3, 4, 5] }),
  )
  t.deepEqual([explained.status, (JSON.parse(explained.body) as { matched: number }).matched], [200, 0])
  t.is((await client.raw('GET', '/inspector')).status, 302)
  t.is((await client.raw('GET', '/inspector/')).status, 200)
  t.is((await client.raw('GET', '/inspector/', { headers: { host: 'evil.example' } })).status, 403)
  const without = await Client.of(t, { hasInspector: false })
  t.is((await without.raw('GET', '/inspector/')).status, 404)
})

test('without keys, the inspector is closed to other machines and proxies, whatever name they send', async t => {
  const { app } = client.server
  const host = 'localhost:8080'
  for (const remoteAddress of ['192.0.2.1', '10.0.0.2', '::ffff:192.0.2.1', '2001:db8::1', '::127.0.0.1', '127.evil'])
    for (const url of ['/inspector/', '/inspector/metrics']) {
      const { statusCode, body } = await app.inject({ url, remoteAddress, headers: { host } })
      t.deepEqual([statusCode, (JSON.parse(body) as Answer).error.code], [403, 'forbidden'], `${url} ${remoteAddress}`)
    }
  for (const name of ['Forwarded', 'X-Forwarded-For', 'x-forwarded-host', 'X-Forwarded-Proto', 'X-Real-IP', 'Via']) {
    const headers = { host, [name]: '192.0.2.1' }
    for (const [method, path] of [
      ['GET', '/inspector/'],
      ['POST', '/inspector/explain'],
    ] as const)
      t.is((await client.raw(method, path, { headers })).status, 403, `${name} ${path}`)
  }
  t.is((await client.raw('GET', '/inspector/', { headers: { host } })).status, 200)
  const own = await Client.of(t, { keys: [{ name: 'admin', key: 'root' }] })
  const passed = { ...basic('root'), 'x-forwarded-for': '192.0.2.1', host: 'models.example' }
  t.is((await own.raw('GET', '/inspector/', { headers: passed })).status, 200)
})

/** Changes the next HTTP server of this process before it listens. It listens unless `change` returns an error. */
function changeNext(change: (server: Server) => Error | undefined): void {
  const { listen } = Server.prototype
  const once = function (this: Server, ...given: unknown[]): Server {
    delete (Server.prototype as Partial<Server>).listen
    const error = change(this)
    if (error === undefined) return Reflect.apply(listen, this, given) as Server
    queueMicrotask(() => this.emit('error', error))
    return this
  }
  Object.defineProperty(Server.prototype, 'listen', { value: once, configurable: true, writable: true })
}

test.serial('an inspector that cannot listen is a 502, and the next request tries again', async t => {
  const own = await Client.of(t)
  changeNext(() => new Error('no port'))
  const { status, body } = await own.raw('GET', '/inspector/')
  const { error } = JSON.parse(body) as Answer
  t.deepEqual([status, error.code, error.type], [502, 'inspector_unavailable', 'server_error'])
  t.false(body.includes('no port'))
  t.is((await own.raw('GET', '/inspector/')).status, 200)
})

test.serial('an inspector that does not answer is a 502, and one that breaks off ends the connection', async t => {
  const own = await Client.of(t)
  changeNext(server => {
    server.removeAllListeners('request')
    server.on('request', (request: IncomingMessage, response: ServerResponse) => {
      if (request.url?.endsWith('events') === true) response.write('data: 1\n\n', () => request.socket.destroy())
      else request.socket.destroy()
    })
    return undefined
  })
  t.is((await own.raw('GET', '/inspector/')).status, 502)
  for (const body of ['{}', 'x'.repeat(2 ** 15)]) {
    const response = await own.post(body, { path: '/inspector/explain' })
    t.deepEqual([response.status, ((await response.json()) as Answer).error.code], [502, 'inspector_unavailable'])
  }
  const begun = await fetch(`${own.at}/inspector/events`)
  t.is(begun.status, 200)
  await t.throwsAsync(begun.text())
  t.is(await own.text('/health'), '{"status":"ok"}')
})

test.serial('a client that leaves before the inspector answers ends its request to it', async t => {
  const own = await Client.of(t)
  let [asked, ended] = [0, 0]
  changeNext(server => {
    server.removeAllListeners('request')
    server.on('request', (_: IncomingMessage, response: ServerResponse) => {
      asked += 1
      response.on('close', () => (ended += 1))
    })
    return undefined
  })
  const leave = new AbortController()
  const left = fetch(`${own.at}/inspector/`, { signal: leave.signal })
  t.true(await until(() => asked === 1))
  leave.abort(new Error('left'))
  await t.throwsAsync(left)
  t.true(await until(() => ended === 1))
})
