// What the inspector serves, and whom it refuses.
import { createServer } from 'node:http'
import { request } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo } from 'node:net'

import test from 'ava'

import { PagedKvCache } from '../../index.js'
import { inspect, Inspector } from '../../inspector.js'
import { blockMap, prefixTree } from '../../lib/inspector/blocks.js'
import type { Message } from '../../lib/inspector/messages.js'
import { nativeArgument } from '../../lib/border/owner.js'
import type { SharedCache } from '../../lib/sequences/shared-cache.js'
import { layered } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (): PagedKvCache =>
  new PagedKvCache({ capacity: 32, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1 })

function fed(cache: PagedKvCache, tokens: readonly number[]): ReturnType<PagedKvCache['openSequence']> {
  using prefix = cache.match([...tokens, 0])
  const { length } = prefix
  const seq = cache.openSequence({ prefix })
  const [k, v] = layered(tokens.slice(length))
  seq.append({ k, v, tokens: tokens.slice(length) })
  return seq
}

/** A request with headers that fetch would not send. */
function asked(url: string, headers: Record<string, string>): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    request(url, { headers }, response => resolve(response.resume().statusCode))
      .once('error', reject)
      .end()
  })
}

test('the page, its numbers and its answers are behind the token', async t => {
  using cache = cacheOf()
  await using inspector = inspect(cache, { name: 'chats "1"' })
  const url = await inspector.listen()
  t.regex(url, /^http:\/\/127\.0\.0\.1:\d+\/[\w-]{32,}\/$/)
  const page = await fetch(url)
  t.is(page.status, 200)
  const html = await page.text()
  t.true(html.includes('Leon Sorokin'), 'the licence of the charts')
  t.regex(page.headers.get('content-security-policy') ?? '', /default-src 'none'; script-src 'sha256-/)
  t.deepEqual(
    [...html.matchAll(/(?:src|href)="(?!data:)([^"]*)"/g)].map(([, to]) => to),
    [],
    'nothing from elsewhere',
  )

  const elsewhere = url.replace(/\/[\w-]{32,}\/$/, `/${'x'.repeat(32)}/`)
  for (const wrong of [
    elsewhere,
    `${elsewhere}metrics`,
    new URL('/', url).href,
    new URL('/metrics', url).href,
    url.slice(0, -1).slice(0, -1),
  ]) {
    const refused = await fetch(wrong)
    t.is(refused.status, 403, wrong)
    t.deepEqual(await refused.json(), {
      error: {
        code: 'INVALID_ARGUMENT',
        message: 'wrong token, expected the one in the address that listen() returned',
      },
    })
  }
  t.is((await fetch(`${url}nothing`)).status, 404)
  t.is((await fetch(`${url}explain`)).status, 404, 'it is posted')
  t.is(await asked(url, { host: 'example.org' }), 403, 'a name that was made to lead here')
  t.is(await asked(url, { host: `localhost:${new URL(url).port}` }), 200)
})

test('metrics are what stats says, as Prometheus reads it', async t => {
  using cache = cacheOf()
  await using inspector = inspect(cache, { name: 'chats "1"' })
  const seq = fed(cache, span(0, 10))
  fed(cache, span(0, 10)).dispose()
  const url = await inspector.listen()
  const text = await (await fetch(`${url}metrics`)).text()
  t.is(text, inspector.metrics())
  const values = Object.fromEntries(
    text
      .split('\n')
      .filter(line => line !== '' && !line.startsWith('#'))
      .map(line => line.split(/ (?=[^ ]*$)/)),
  )
  const stats = cache.stats()
  const cacheLabel = 'cache="chats \\"1\\""'
  for (const [name, value] of Object.entries({
    used_bytes: stats.usedBytes,
    prompt_tokens_total: stats.promptTokens,
    hit_tokens_total: 8,
    evictions_total: 0,
    sequences: 1,
    limit_bytes: '+Inf',
  })) {
    t.is(values[`kvtide_${name}{${cacheLabel}}`], String(value), name)
  }
  for (const [state, count] of [
    ['free', stats.freeBlocks],
    ['cached', stats.cachedBlocks],
    ['active', stats.activeBlocks],
  ]) {
    t.is(values[`kvtide_blocks{${cacheLabel},group="0",state="${state}"}`], String(count))
  }
  // With the token in a header, as Prometheus sends it.
  const status = async (authorization: string): Promise<number> =>
    (await fetch(new URL('/metrics', url), { headers: { authorization } })).status
  const token = new URL(url).pathname.slice(1, -1)
  t.deepEqual(
    [await status(`Bearer ${token}`), await status(`Bearer ${token}x`), await status(`Basic ${token}`)],
    [200, 403, 403],
  )
  for (const line of text.trimEnd().split('\n'))
    t.regex(line, /^(# (HELP|TYPE) kvtide_\w+ .+|kvtide_\w+\{.*\} (\d+(\.\d+)?|\+Inf))$/)
  t.is(seq.length, 10)
})

test('explain answers what the cache says, and refuses what it refuses', async t => {
  using cache = cacheOf()
  await using inspector = inspect(cache)
  fed(cache, span(0, 10))
  const url = await inspector.listen()
  const explain = async (body: string): Promise<[number, unknown]> => {
    const response = await fetch(`${url}explain`, { method: 'POST', body })
    return [response.status, await response.json()]
  }
  for (const [tokens, prompt] of [
    [span(0, 12), {}],
    [span(0, 12), { salt: 'one' }],
    [[1, 2], {}],
    [[], {}],
  ] as const) {
    t.deepEqual(await explain(JSON.stringify({ tokens, ...prompt })), [200, cache.explain(tokens, prompt)])
  }
  for (const body of [
    '',
    '{',
    'null',
    '5',
    '{}',
    '{"tokens": 5}',
    '{"tokens": [-1]}',
    '{"tokens": [1.5]}',
    '{"tokens": [1], "salt": 5}',
    '{"tokens": [1], "sugar": 5}',
  ]) {
    const [status, answer] = await explain(body)
    t.is(status, 400, body)
    t.is((answer as { error: { code: string } }).error.code, 'INVALID_ARGUMENT')
  }
})

test('what is wrong is refused, and a port that is taken', async t => {
  using cache = cacheOf()
  for (const wrong of [5, null, { freeCount: 1 }, cache.openSequence()])
    throwsCode(t, 'INVALID_ARGUMENT', () => inspect(wrong as never))
  for (const options of [{ name: 5 }, { token: 'short' }, { token: 'x'.repeat(32) + '/' }, { port: 1 }, null])
    throwsCode(t, 'INVALID_ARGUMENT', () => inspect(cache, options as never))
  throwsCode(t, 'INVALID_ARGUMENT', () => Reflect.construct(Inspector, [{}, cache]))
  const taken = createServer()
  await new Promise<void>(resolve => taken.listen({ port: 0, host: '127.0.0.1' }, resolve))
  const { port } = taken.address() as AddressInfo
  await using inspector = inspect(cache, { token: 'a'.repeat(40) })
  const error = await t.throwsAsync(inspector.listen(port), { code: 'INVALID_ARGUMENT' })
  t.regex(error.message, /^port is \d+, expected a free port \(listen EADDRINUSE/)
  for (const wrong of [-1, 65_536, 1.5, '80'])
    await t.throwsAsync(inspector.listen(wrong as never), { code: 'INVALID_ARGUMENT' })
  t.true((await inspector.listen()).endsWith(`/${'a'.repeat(40)}/`))
  await t.throwsAsync(inspector.listen(), { code: 'INVALID_ARGUMENT' })
  await inspector.close()
  await inspector.close()
  await inspector.listen()
  await new Promise(resolve => taken.close(resolve))
})

test('events tell all blocks once, then what changes, and the end', async t => {
  const cache = cacheOf()
  const inspector = inspect(cache)
  const url = await inspector.listen()
  const response = await fetch(`${url}events`)
  const reader = (response.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream()).getReader()
  const messages: Message[] = []
  let text = ''
  /** Reads on until one message is as it should be. */
  const until = async (fits: (message: Message) => boolean): Promise<Message> => {
    for (;;) {
      const found = messages.findIndex(fits)
      if (found >= 0) return messages.splice(0, found + 1).at(-1) as Message
      const { value, done } = await reader.read()
      if (done) throw new Error('the stream has ended')
      const parts = (text + value).split('\n\n')
      text = parts.pop() as string
      messages.push(...parts.map(part => JSON.parse(part.slice('data: '.length)) as Message))
    }
  }
  const hello = await until(({ kind }) => kind === 'hello')
  t.like(hello, { blockSize: 4, groups: [{ kind: 'full', layers: 2, blocks: 32 }] })
  const all = (await until(({ kind }) => kind === 'blocks')) as Extract<Message, { kind: 'blocks' }>
  t.deepEqual(new Uint16Array(Buffer.from(all.codes, 'base64').buffer.slice(0, 0)).length, 0)
  t.is(Buffer.from(all.codes, 'base64').length, 64)
  const seq = fed(cache, span(0, 6))
  const { pairs } = (await until(({ kind }) => kind === 'changes')) as Extract<Message, { kind: 'changes' }>
  t.is(Buffer.from(pairs, 'base64').length, 2 * 8)
  t.deepEqual(
    ((await until(message => message.kind === 'tree' && message.tree.length > 0)) as Extract<Message, { kind: 'tree' }>)
      .lengths,
    { [seq.id]: 6 },
  )
  cache.dispose()
  await until(({ kind }) => kind === 'ended')
  t.is((await fetch(`${url}metrics`)).status, 410)
  await inspector.close()
})

test('the tree of sequences is that of their blocks, and the map counts as stats does', t => {
  using cache = cacheOf()
  const shared = nativeArgument<SharedCache>('cache', cache, PagedKvCache)
  const system = span(0, 8)
  const [one, two, three] = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [9]].map(own => fed(cache, [...system, ...own]))
  const fork = two?.fork()
  const empty = cache.openSequence()
  const snapshot = one?.snapshot()
  const { codes, tables } = blockMap(shared, 0)
  t.deepEqual(prefixTree(tables), [
    {
      from: 0,
      to: 2,
      sequences: [],
      children: [
        {
          from: 2,
          to: 3,
          sequences: [],
          children: [
            { from: 3, to: 4, sequences: [one?.id], children: [] },
            { from: 3, to: 4, sequences: [two?.id, fork?.id], children: [] },
          ],
        },
        { from: 2, to: 3, sequences: [three?.id], children: [] },
      ],
    },
    { from: 0, to: 0, sequences: [empty.id], children: [] },
  ] as never)
  const stats = cache.stats()
  const count = (fits: (code: number) => boolean): number => codes.filter(fits).length
  t.deepEqual(
    [count(code => code === 0), count(code => code === 1), count(code => code > 1)],
    [stats.freeBlocks, stats.cachedBlocks, stats.activeBlocks],
  )
  t.is(
    count(code => code === 3),
    4,
    'the system prompt, the block after it, the last one of the fork',
  )
  one?.drop()
  t.is([...blockMap(shared, 0).codes].filter(code => code === 2).length, 1, 'held by the snapshot alone')
  snapshot?.dispose()
})

/** A piece of a body whose length is not said before. */
const chunk = (bytes: number): Buffer =>
  Buffer.concat([Buffer.from(`${bytes.toString(16)}\r\n`), Buffer.alloc(bytes, 0x20), Buffer.from('\r\n')])

/** All that a server sends over one connection, which it ends. */
function spoken(port: number, ...sent: readonly (string | Buffer)[]): Promise<string> {
  return new Promise((resolve, reject) => {
    let said = ''
    const socket = connect(port, '127.0.0.1')
    socket.setEncoding('utf8')
    socket.on('data', (part: string) => (said += part))
    socket.once('error', reject)
    socket.once('close', () => resolve(said))
    for (const part of sent) socket.write(part)
  })
}

test('a body that is too large is refused, and ends its connection', async t => {
  using cache = cacheOf()
  await using inspector = inspect(cache)
  const { port, pathname } = new URL(await inspector.listen())
  const large = 2 ** 24 + 1
  const head = (...more: string[]): string =>
    [`POST ${pathname}explain HTTP/1.1`, `host: 127.0.0.1:${port}`, ...more, '', ''].join('\r\n')
  const next = `GET ${pathname}metrics HTTP/1.1\r\nhost: 127.0.0.1:${port}\r\n\r\n`
  for (const sent of [
    [head(`content-length: ${large}`), Buffer.alloc(large, 0x20), next],
    [head('transfer-encoding: chunked'), chunk(2 ** 24), chunk(5), '0\r\n\r\n', next],
    // The sender waits for the answer, and only then for the end.
    [head(`content-length: ${2 ** 52}`)],
  ]) {
    const said = await spoken(Number(port), ...sent)
    t.regex(said, /^HTTP\/1\.1 413 [^]*\r\nconnection: close\r\n/i)
    t.true(
      said.endsWith(
        '{"error":{"code":"INVALID_ARGUMENT","message":"the body is too long, expected at most 16777216 bytes"}}\n',
      ),
      said.slice(-200),
    )
    t.is(said.match(/HTTP\/1\.1/g)?.length, 1, 'what follows is not answered')
  }
  const response = await fetch(new URL(`http://127.0.0.1:${port}${pathname}explain`), {
    method: 'POST',
    body: Buffer.alloc(large, 0x20),
  })
  t.is(response.status, 413)
  t.is((await fetch(`http://127.0.0.1:${port}${pathname}metrics`)).status, 200)
})

test('whatever comes over a socket is answered or ends, and the page stays', async t => {
  using cache = cacheOf()
  await using inspector = inspect(cache)
  const url = await inspector.listen()
  const { port, pathname } = new URL(url)
  const of = (line: string, ...more: string[]): string =>
    [line, `host: 127.0.0.1:${port}`, 'connection: close', ...more, '', ''].join('\r\n')
  for (const [sent, status] of [
    [of('GET // HTTP/1.1'), 403],
    [of('GET //example.org/ HTTP/1.1'), 403],
    [of('GET http://example.org/ HTTP/1.1'), 403],
    [of('GET http:// HTTP/1.1'), 403],
    [of('OPTIONS * HTTP/1.1'), 403],
    [of(`GET ${pathname}%ff HTTP/1.1`), 404],
    [of(`GET ${pathname}events/../..// HTTP/1.1`), 403],
    [of(`HEAD ${pathname} HTTP/1.1`), 404],
    [of(`POST ${pathname}explain HTTP/1.1`, 'content-length: 0'), 400],
    [of(`POST ${pathname}explain HTTP/1.1`, 'content-length: -1'), 400],
    [of(`POST ${pathname}explain HTTP/1.1`, 'content-length: 3', 'transfer-encoding: chunked'), 400],
    [`${of(`POST ${pathname}explain HTTP/1.1`, 'transfer-encoding: chunked')}xyz\r\n`, 400],
    [of('GET / HTTP/9.9'), 400],
    [`GET ${pathname} HTTP/1.1\r\nconnection: close\r\n\r\n`, 400],
    [of(`GET ${pathname} HTTP/1.1`, `x: ${'y'.repeat(2 ** 16)}`), 431],
    ['\u0000\u0001\u0002\r\n\r\n', 400],
  ] as const)
    t.regex(await spoken(Number(port), sent), new RegExp(`^HTTP/1\\.1 ${status} `), sent.slice(0, 80))
  // One that leaves in the middle of a body.
  await new Promise<void>(resolve => {
    const socket = connect(Number(port), '127.0.0.1', () =>
      socket.end(`${of(`POST ${pathname}explain HTTP/1.1`, 'content-length: 9')}abc`),
    )
    socket
      .once('close', () => resolve())
      .on('error', () => undefined)
      .resume()
  })
  t.is((await fetch(`${url}metrics`)).status, 200)
})

test('the scheme of a token is case-insensitive', async t => {
  using cache = cacheOf()
  await using inspector = inspect(cache)
  const url = new URL(await inspector.listen())
  const token = url.pathname.slice(1, -1)
  for (const scheme of ['Bearer', 'bearer', 'BEARER', 'bEaReR '])
    t.is(
      (await fetch(new URL('/metrics', url), { headers: { authorization: `${scheme} ${token}` } })).status,
      200,
      scheme,
    )
})

test('nothing of a body is in a refusal', async t => {
  using cache = cacheOf()
  await using inspector = inspect(cache)
  const url = await inspector.listen()
  for (const body of [
    '{"salt": "canary", ',
    '{"tokens": [1], "salt": ["canary"]}',
    '{"tokens": [1], "sald": "canary"}',
    '"canary"',
  ]) {
    const response = await fetch(`${url}explain`, { method: 'POST', body })
    t.is(response.status, 400)
    t.notRegex(await response.text(), /canary/, body)
  }
})
