// Token ids, salts, keys and secrets are in no name, address, statistic, event, metric, printed object or error: a whole run is searched for them.
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { inspect as show } from 'node:util'

import test, { type ExecutionContext } from 'ava'

import { inspect } from '../../inspector.js'
import {
  type BlockStore,
  isKvTideError,
  ObjectStore,
  PagedKvCache,
  PrefixNamer,
  RedisStore,
  type TierOptions,
} from '../../index.js'
import { folderOf } from '../support/folder.js'
import { layered, LAYERED } from '../support/layered.js'
import { ObjectServer } from '../support/object-server.js'
import { Redis, withRedis } from '../support/redis.js'
import { redisCommand } from '../support/redis-command.js'

const LATE = 60_000
/** Token ids that occur nowhere else. */
const FIRST = 48_271_900
const TOKENS = Array.from({ length: 21 }, (_, at) => FIRST + at)
const SALT = 'canary-salt-7f'
const bytesOf = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text.padEnd(32, '~')))
const [PREFIX_KEY, SECRET, EXTRA] = [bytesOf('canary-prefix-key'), bytesOf('canary-secret'), bytesOf('canary-extra')]

/** Values that must not be seen, as text, in hexadecimal, in base64 and as a list of numbers. */
const CANARIES: readonly RegExp[] = [
  /4827_?19\d\d/,
  ...[SALT, 'canary-prefix-key', 'canary-secret', 'canary-extra'].flatMap(text => [
    new RegExp(text),
    new RegExp(Buffer.from(text).toString('hex'), 'i'),
    new RegExp(
      Buffer.from(text)
        .toString('base64')
        .slice(0, -4)
        .replaceAll('+', String.raw`\+`),
    ),
    new RegExp([...Buffer.from(text).subarray(0, 8)].join(',\\s*')),
  ]),
]

/** Fails if a text shows a canary. */
function hides(t: ExecutionContext, what: string, ...texts: readonly unknown[]): void {
  for (const text of texts) {
    const whole =
      typeof text === 'string' ? text : `${show(text, { depth: 9, showHidden: true })} ${JSON.stringify(text)}`
    for (const canary of CANARIES) t.false(canary.test(whole), `${what}: ${canary} in ${whole.slice(0, 300)}`)
  }
}

const prompt = { salt: SALT, extra: [{ start: 1, end: 3, key: EXTRA }] }
const cacheOf = (tiers: TierOptions, more: object = {}): PagedKvCache =>
  new PagedKvCache({
    ...LAYERED,
    prefixKey: PREFIX_KEY,
    events: 64,
    ...more,
    tiers: { deadline: LATE, memory: { limitBytes: 1e6 }, ...tiers },
  })

/** Computes a prompt, writes it to the tiers, and finds it there in another cache. Returns all that the caches say of themselves. */
async function used(t: ExecutionContext, tiers: TierOptions): Promise<void> {
  const events: unknown[] = []
  const store =
    tiers.store === undefined
      ? {}
      : { store: { ...tiers.store, secret: SECRET, onChange: (event: unknown) => events.push(event) } }
  const rows = TOKENS.map((_, at) => at)
  const [k, v] = layered(rows)
  {
    await using cache = cacheOf({ ...tiers, ...store })
    using sequence = cache.openSequence(prompt)
    sequence.append({ k, v, tokens: TOKENS })
    t.true(await cache.flush(LATE))
    hides(
      t,
      'a cache',
      cache,
      cache.stats(),
      cache.form,
      cache.groups,
      sequence,
      cache.keys(TOKENS, prompt),
      cache.indexedKeys(),
    )
    hides(t, 'an explanation', cache.explain(TOKENS, prompt), cache.explain([...TOKENS, 1], {}))
  }
  await using cache = cacheOf({ ...tiers, ...store })
  using match = await cache.match(TOKENS, { ...prompt, tiers: 'all' })
  t.is(match.length, 20)
  hides(t, 'a match', match, cache.stats(), events)
}

test('names and content of files in a folder', async t => {
  const folder = await folderOf(t)
  await used(t, { disk: { path: join(folder, 'tier') } })
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  t.true(entries.length > 5)
  hides(t, 'file names', ...entries.map(({ name }) => name))
  // Entries have the tokens that they are checked against; salts, keys and secrets are in none.
  for (const { parentPath, name } of entries.filter(entry => entry.isFile())) {
    const content = await readFile(join(parentPath, name))
    for (const canary of [SALT, 'canary-prefix-key', 'canary-secret'])
      t.is(content.indexOf(canary), -1, `${canary} in ${name}`)
  }
})

test("keys of a store of the caller's own", async t => {
  const values = new Map<string, Uint8Array>()
  const store: BlockStore = {
    getMany: async keys => keys.map(key => values.get(key)),
    putMany: async entries => {
      for (const { key, value } of entries) values.set(key, value.slice())
    },
    hasMany: async keys => keys.map(key => values.has(key)),
  }
  await used(t, { store: { store } })
  t.true(values.size > 0)
  hides(t, 'keys', ...values.keys())
  for (const value of values.values())
    for (const canary of [SALT, 'canary-prefix-key', 'canary-secret'])
      t.is(Buffer.from(value).indexOf(canary), -1, canary)
})

test('addresses and headers of requests to an object store', async t => {
  const server = await ObjectServer.start()
  t.teardown(() => server.stop())
  using store = new ObjectStore({
    url: 's3://bucket/prefix',
    options: {
      endpoint: `http://127.0.0.1:${server.port}`,
      allow_http: 'true',
      region: 'us-east-1',
      access_key_id: 'an-access-key',
      secret_access_key: 'canary-secret-access-key',
    },
  })
  await used(t, { store: { store } })
  t.true(server.requests.length > 0)
  hides(t, 'requests', ...server.requests.map(({ method, path, authorization }) => ({ method, path, authorization })))
})

withRedis('keys in Redis', async t => {
  const redis = await Redis.start()
  t.teardown(() => redis.stop())
  using store = new RedisStore({ url: redis.url })
  await used(t, { store: { store } })
  const keys = (await redisCommand(redis.url, 'KEYS', '*')) as string[]
  t.true(keys.length > 0)
  hides(t, 'keys', ...keys)
})

test('metrics, statistics and refusals of the inspector', async t => {
  using cache = cacheOf({})
  const [k, v] = layered(TOKENS.map((_, at) => at))
  using sequence = cache.openSequence(prompt)
  sequence.append({ k, v, tokens: TOKENS })
  await using inspector = inspect(cache)
  const url = new URL(await inspector.listen())
  const headers = { authorization: `Bearer ${url.searchParams.get('token') ?? url.hash.slice(1) ?? ''}` }
  for (const path of ['metrics', 'nothing', 'explain']) {
    const answer = await fetch(new URL(path, url), { headers })
    hides(t, path, await answer.text(), [...answer.headers])
  }
})

test('errors about prompts', async t => {
  using cache = cacheOf({})
  using namer = new PrefixNamer({ ...LAYERED, prefixKey: PREFIX_KEY })
  const [k, v] = layered(TOKENS.map((_, at) => at))
  using sequence = cache.openSequence(prompt)
  sequence.append({ k, v, tokens: TOKENS })
  const bytes = await sequence.saveBytes()
  const wrong: unknown[] = [
    [...TOKENS, -1],
    [...TOKENS, 1.5],
    [...TOKENS, undefined],
    TOKENS.join(),
    Float64Array.from(TOKENS),
    { 0: FIRST, length: 1 },
    new Set(TOKENS),
    BigUint64Array.from(TOKENS.map(BigInt)),
    TOKENS.map(String),
    TOKENS.map(BigInt),
    [TOKENS],
  ]
  const calls: (() => unknown)[] = [
    ...wrong.flatMap(tokens => [
      () => cache.match(tokens as never, prompt),
      () => cache.match(tokens as never, { ...prompt, tiers: 'all' }),
      () => cache.explain(tokens as never, prompt),
      () => cache.keys(tokens as never, prompt),
      () => cache.canAllocate(tokens as never, prompt),
      () => cache.admit(tokens as never, prompt),
      () => namer.keys(tokens as never, prompt),
      () => sequence.resume(tokens as never),
      () => sequence.identify(tokens as never),
      () => sequence.append({ k, v, tokens: tokens as never }),
      () => cache.beginStep({ sequences: [sequence], tokens: tokens as never }),
    ]),
    () => sequence.append({ k, v, tokens: TOKENS.slice(1) }),
    () => sequence.identify(TOKENS),
    () => cache.openSequence({ ...prompt, salt: { text: SALT } as never }),
    () => cache.openSequence({ ...prompt, saltFrom: 99 }),
    () => cache.openSequence({ salt: SALT, extra: [{ start: 9, end: 3, key: EXTRA }] }),
    () => cache.openSequence({ salt: SALT, extra: [{ start: 1, end: 3, key: SALT as never }] }),
    () => cache.loadSequence(bytes, { salt: `${SALT}-other` }),
    () => cache.loadSequence(bytes, {}),
    () => new PagedKvCache({ ...LAYERED, prefixKey: PREFIX_KEY.slice(1) }),
    () => PagedKvCache.load(bytes, { prefixKey: SECRET }),
  ]
  let refused = 0
  for (const call of calls) {
    try {
      const answer = await call()
      if (typeof answer === 'object' && answer !== null && 'dispose' in answer)
        (answer as { dispose(): void }).dispose()
    } catch (error) {
      t.true(isKvTideError(error), String(error))
      refused += 1
      hides(
        t,
        String(call),
        (error as Error).message,
        (error as Error).stack?.split('\n').slice(0, 1).join(),
        isKvTideError(error) ? error.details : '',
      )
    }
  }
  t.true(refused > 80, `${refused} refusals`)
})
