// No error shows a secret: each option of each call is tested with a canary value, under its own name and under misspelt ones.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { inspect as show } from 'node:util'

import test from 'ava'

import { DynamoRouter, isKvTideError, KvTideError, ObjectStore, PagedKvCache, RedisStore } from '../../index.js'
import { inspect } from '../../inspector.js'
import { invalid } from '../../lib/errors/errors.js'
import { canaryCalls, shows } from '../support/arguments/canary.js'
import { inOwnFolder } from '../support/arguments/files.js'
import { optional, options, text } from '../support/arguments/kinds.js'
import { free, param, type Row } from '../support/arguments/row.js'
import { attendRows } from '../support/arguments/rows-attend.js'
import { contiguousRows } from '../support/arguments/rows-contiguous.js'
import { modelRows } from '../support/arguments/rows-model.js'
import { loadRows, onnxRows } from '../support/arguments/rows-onnx.js'
import { otherRows } from '../support/arguments/rows-others.js'
import { pagedRows } from '../support/arguments/rows-paged.js'
import { routerRows } from '../support/arguments/rows-router.js'
import { storeRows } from '../support/arguments/rows-stores.js'

inOwnFolder()

const sizes = { capacity: 2, numLayers: 1, numKvHeads: 1, headDim: 1 }
const cache = (more: object = {}): PagedKvCache => new PagedKvCache({ ...sizes, ...more } as never)

/** Rows of options that are nested deeper than the table goes. */
const deeper: readonly Row[] = [
  free(
    'new PagedKvCache',
    param(
      'options',
      options(() => sizes, {
        tiers: optional(
          options(() => ({}), {
            memory: optional(options(() => ({ limitBytes: 9 }), { limitBytes: text, policy: text })),
            disk: optional(options(() => ({ path: 'tier' }), { path: text, limitBytes: text, policy: text })),
            store: optional(
              options(() => ({ store: new RedisStore({ url: 'redis://127.0.0.1:1' }) }), {
                store: text,
                policy: text,
                secret: text,
                compress: text,
                onChange: text,
              }),
            ),
          }),
        ),
      }),
      () => sizes,
    ),
  ),
  free(
    'new ObjectStore',
    param(
      'options',
      options(() => ({ url: 's3://bucket/x' }), {
        url: text,
        options: optional(
          options(
            () => ({ region: 'x' }),
            Object.fromEntries(
              ['region', 'secret_access_key', 'access_key_id', 'endpoint', 'allow_http', 'sas_token', 'anything'].map(
                name => [name, text],
              ),
            ),
          ),
        ),
        roots: optional(text),
      }),
      () => ({ url: 's3://bucket/x' }),
    ),
  ),
]

test.serial('no error of any call shows what was in its options', async t => {
  const { count, wrong } = await canaryCalls([
    ...contiguousRows,
    ...attendRows,
    ...pagedRows,
    ...modelRows,
    ...storeRows,
    ...routerRows,
    ...otherRows,
    ...onnxRows,
    ...loadRows,
    ...deeper,
  ])
  t.log(`${count} calls`)
  t.deepEqual(wrong, [])
  t.true(count > 10_000)
})

test('the inspector shows no token', async t => {
  using shownCache = cache()
  for (const given of [
    { token: 'hunter2q' },
    { token: ['hunter2q'] },
    { token: 27_182_818_284 },
    { tokn: 'hunter2q' },
    { Token: 'hunter2q' },
    'hunter2q',
    ['hunter2q'],
  ]) {
    t.false(shows(t.throws(() => inspect(shownCache, given as never))), show(given))
  }
  await using inspector = inspect(shownCache, { token: `hunter2q${'x'.repeat(32)}` })
  t.notRegex(show(inspector, { depth: 10, showHidden: true }), /hunter2q/)
  const url = new URL(await inspector.listen())
  for (const path of ['', 'nothing', 'explain']) {
    const answer = await fetch(`${url.origin}/hunter2q/${path}`, { headers: { authorization: 'Basic hunter2q' } })
    t.notRegex(await answer.text(), /hunter2q/)
  }
})

test('objects that hold secrets do not show them', t => {
  using redis = new RedisStore({ url: 'redis://me:hunter2q@127.0.0.1:1', prefix: 'x' })
  using other = new RedisStore({ url: 'redis://127.0.0.1:1', username: 'me', password: 'hunter2q' })
  using objects = new ObjectStore({
    url: 's3://bucket/x',
    options: { region: 'x', access_key_id: 'hunter2q', secret_access_key: 'hunter2q' },
  })
  using made = cache({
    prefixKey: Buffer.from('hunter2q'.padEnd(32)),
    tiers: { store: { store: redis, secret: Uint8Array.from(Buffer.from('hunter2q'.padEnd(32))) } },
  })
  for (const object of [redis, other, objects, made, made.stats()]) {
    const all = show(object, { depth: 10, showHidden: true }) + JSON.stringify(object)
    t.notRegex(all, /hunter2q|104, 117, 110|"0":104,"1":117/)
  }
})

test('a store that refuses a password does not show it', async t => {
  const events: unknown[] = []
  // A server whose answers echo the headers of the request.
  const server = createServer((request, response) => response.writeHead(403).end(JSON.stringify(request.headers)))
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const given = {
    region: 'x',
    access_key_id: 'hunter2q',
    secret_access_key: 'hunter2q',
    endpoint: `http://127.0.0.1:${port}`,
    allow_http: 'true',
  }
  for (const store of [
    new RedisStore({ url: `redis://me:hunter2q@127.0.0.1:${port}` }),
    new ObjectStore({ url: 's3://bucket/x', options: given }),
  ]) {
    const made = cache({
      prefixKey: new Uint8Array(32),
      tiers: { store: { store, onChange: (event: unknown) => events.push(event) } },
    })
    using match = await made.match(
      Array.from({ length: 40 }, (_, id) => id),
      { tiers: 'all', deadline: 10_000 },
    )
    t.is(match.length, 0)
    t.notRegex(show([made.stats(), events], { depth: 10 }), /hunter2q/)
    await made[Symbol.asyncDispose]()
    store.dispose()
  }
  await new Promise(resolve => server.close(resolve))
})

test('what a router is told of an indexer has no credentials', async t => {
  for (const url of [
    'http://me:hunter2q@127.0.0.1:1',
    'http://127.0.0.1:1/?key=hunter2q',
    'hunter2q',
    'http://hunter2q@h',
    'ftp://me:hunter2q@h/',
  ]) {
    t.false(shows(t.throws(() => new DynamoRouter({ url, blockSize: 1 }))), url)
  }
  using router = new DynamoRouter({ url: 'http://127.0.0.1:1', blockSize: 1 })
  t.false(shows(await t.throwsAsync(router.addWorker('one', { endpoint: 'tcp://me:hunter2q@h:1' }))))
})

test('the value of a detail is never more than a line', t => {
  const { proxy, revoke } = Proxy.revocable({}, {})
  revoke()
  const throwing = Object.defineProperty({}, 'x', {
    get: () => {
      throw new Error('mine')
    },
    enumerable: true,
  })
  const values = [
    proxy,
    throwing,
    () => 1,
    class Mine extends Map {},
    Array.from({ length: 1e5 }, () => throwing),
    new Float32Array(1e6),
    'x'.repeat(1e7),
    '\n'.repeat(99),
    '\u2028\u0085',
    Symbol('a\nb'.repeat(1e4)),
    2n ** 100_000n,
    process,
    globalThis,
    new Proxy([], {
      get: () => {
        throw new Error('mine')
      },
    }),
    Object.create(null),
    new Proxy(() => 1, {}),
    new Date(NaN),
    Promise.resolve(1),
  ]
  for (const value of values) {
    const { details, message } = invalid('it', value, 'another')
    t.true(show(details.value, { breakLength: Infinity }).length < 600, message)
    for (const line of [show(details.value, { breakLength: Infinity }), String(details.value), message])
      t.notRegex(line, /[\n\r\u2028\u2029\u0085]/)
  }
  const mine = new KvTideError('INTERNAL', 'mine', { reason: 'a\nb' })
  t.true(isKvTideError(mine) && mine.details['reason' as never] === 'a\nb', 'one of the caller’s own is as it was made')
})
