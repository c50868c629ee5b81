// Faults of stores under a whole cache: whatever a store does, a prompt gets the right rows, no call is rejected, and the store is used again when it is back.
//
// `KVTIDE_ROUNDS` sets how often all prompts are asked for during a fault, and `KVTIDE_PROMPTS` their number: a cache keeps the blocks of about six of them.
import test, { type ExecutionContext } from 'ava'

import { ObjectStore, RedisStore, type StoreTier } from '../../index.js'
import { BrokenProxy } from '../support/broken-proxy.js'
import { type ObjectFault, ObjectServer } from '../support/object-server.js'
import { Prompting } from '../support/prompting.js'
import { Chance } from '../support/racing/rows.js'
import { Redis, withRedis } from '../support/redis.js'
import { redisCommand } from '../support/redis-command.js'
import { until } from '../support/until.js'

const SECRET = new Uint8Array(32).fill(6)
const LATE = 60_000
/** The deadline of a match while its store may not answer. */
const SOON = 250
const PROMPTS = Number(process.env['KVTIDE_PROMPTS'] ?? 6)
const ROUNDS = Number(process.env['KVTIDE_ROUNDS'] ?? 2)

/** A fault of a store: how it begins, and how it ends. */
interface Fault {
  readonly begin: () => unknown
  readonly end: () => unknown
  /** The tokens that may be found meanwhile: nothing, some of what was written, or all of it. */
  readonly finds: 'nothing' | 'some' | 'all'
  /** Called before each prompt. */
  readonly each?: () => unknown
  /** A store that is made after the fault. One that was refused is not asked for 30 seconds. */
  readonly another?: () => StoreTier['store']
}

/** Writes prompts, asks for them while the fault lasts and behind it, and checks what is found. */
async function survives(t: ExecutionContext, store: Omit<StoreTier, 'onChange'>, fault: Fault): Promise<void> {
  const first = new Prompting(store)
  for (let number = 0; number < PROMPTS; number++) await first.ask(number)
  t.true(await first.cache.flush(LATE))
  const before = new Prompting(store)
  t.is(await before.ask(0), 20, 'it is found before the fault')

  await fault.begin()
  const during = new Prompting(store, fault.finds === 'all' ? LATE : SOON)
  for (let round = 0; round < ROUNDS; round++)
    for (let number = 0; number < PROMPTS; number++) {
      await fault.each?.()
      await during.ask(number)
    }
  // Of six prompts, the cache itself has those that a round computed.
  const brought = during.cache.stats().tiers?.store?.found ?? 0
  if (fault.finds === 'nothing') t.is(brought, 0)
  if (fault.finds === 'all') t.true(brought > 0)
  await during.cache.flush(20)
  t.deepEqual(
    during.events.map(({ type }) => type).filter((type, at, all) => type === all[at - 1]),
    [],
    'events alternate',
  )

  await fault.end()
  const mended = fault.another === undefined ? store : { ...store, store: fault.another() }
  t.true(
    await until(async () => {
      const after = new Prompting(mended, SOON)
      for (let number = 0; number < PROMPTS; number++) await after.ask(number)
      await after.cache.flush(LATE)
      after.cache.dispose()
      const later = new Prompting(mended, SOON)
      const found = await later.ask(1)
      later.cache.dispose()
      return found === 20
    }, 20),
    'it is found behind the fault',
  )
  for (const { cache } of [first, before, during]) cache.dispose()
}

interface Subject {
  readonly redis: Redis
  /** The kind of fault of each piece that the proxy passes; 59 for none. */
  readonly kind: (kind: number) => void
  readonly store: RedisStore
  /** Sends a command to the server itself. */
  readonly command: (...words: string[]) => ReturnType<typeof redisCommand>
}

async function subject(t: ExecutionContext): Promise<Subject> {
  const redis = await Redis.start()
  t.teardown(() => redis.stop())
  const chance = new Chance(Number(process.env['KVTIDE_SEED'] ?? 5))
  let kind = 59
  const proxy = await BrokenProxy.start(Number(new URL(redis.url).port), limit =>
    limit === 60 ? kind : chance.below(limit),
  )
  t.teardown(() => proxy.stop())
  const store = new RedisStore({ url: `redis://127.0.0.1:${proxy.port}` })
  t.teardown(() => store.dispose())
  return { redis, store, kind: of => void (kind = of), command: (...words) => redisCommand(redis.url, ...words) }
}

const keysOf = async ({ command }: Subject): Promise<string[]> => (await command('KEYS', '*')) as string[]

const REDIS: Readonly<Record<string, (of: Subject) => Fault>> = {
  'is stopped': ({ redis }) => ({
    begin: () => redis.signal('SIGSTOP'),
    end: () => redis.signal('SIGCONT'),
    finds: 'nothing',
  }),
  'is killed and started before each prompt': ({ redis }) => {
    let turn = 0
    return {
      begin: () => {},
      each: () => (turn++ % 2 === 0 ? redis.kill() : redis.run()),
      end: () => redis.kill().then(() => redis.run()),
      finds: 'some',
    }
  },
  'cuts its answers': ({ kind }) => ({ begin: () => kind(0), end: () => kind(59), finds: 'nothing' }),
  'loses halves of its answers': ({ kind }) => ({ begin: () => kind(1), end: () => kind(59), finds: 'some' }),
  'answers with bent bytes': ({ kind }) => ({ begin: () => kind(2), end: () => kind(59), finds: 'some' }),
  'answers late': ({ kind }) => ({ begin: () => kind(6), end: () => kind(59), finds: 'some' }),
  'is full': ({ command }) => ({
    begin: () => command('CONFIG', 'SET', 'maxmemory', '1'),
    end: () => command('CONFIG', 'SET', 'maxmemory', '0'),
    finds: 'all',
  }),
  'has lost half of its entries': of => ({
    begin: async () => {
      for (const key of (await keysOf(of)).sort().filter((_, at) => at % 2 === 0)) await of.command('DEL', key)
    },
    end: () => {},
    finds: 'some',
  }),
  'has a new password': ({ redis, command }) => ({
    begin: async () => {
      await command('CONFIG', 'SET', 'requirepass', 'another')
      await redis.kill()
      await redis.run('--requirepass', 'another')
    },
    end: async () => {
      await redis.kill()
      await redis.run()
    },
    another: () => new RedisStore({ url: redis.url }),
    finds: 'nothing',
  }),
  'may only be read': ({ command }) => ({
    begin: () => command('CONFIG', 'SET', 'min-replicas-to-write', '1'),
    end: () => command('CONFIG', 'SET', 'min-replicas-to-write', '0'),
    finds: 'all',
  }),
  'has other things under the keys': of => ({
    begin: async () => {
      for (const key of await keysOf(of)) {
        await of.command('DEL', key)
        await of.command('RPUSH', key, 'a list')
      }
    },
    end: () => of.command('FLUSHALL'),
    finds: 'nothing',
  }),
  'has entries that were changed': of => ({
    begin: async () => {
      for (const key of await keysOf(of)) {
        const value = (await of.command('GET', key)) as string
        const place = value.length >> 1
        await of.command('SETRANGE', key, String(place), String.fromCharCode(value.charCodeAt(place) ^ 1))
      }
    },
    end: () => of.command('FLUSHALL'),
    finds: 'nothing',
  }),
  'has the entries of other keys': of => ({
    begin: async () => {
      const keys = (await keysOf(of)).sort()
      const values = await Promise.all(keys.map(key => of.command('GET', key)))
      for (const [at, key] of keys.entries()) await of.command('SET', key, values[(at + 1) % keys.length] as string)
    },
    end: () => of.command('FLUSHALL'),
    finds: 'nothing',
  }),
}

for (const [what, fault] of Object.entries(REDIS)) {
  withRedis(`Redis ${what}`, async t => {
    const of = await subject(t)
    const isSealed = /half|changed|other keys/.test(what)
    await survives(t, { store: of.store, ...(isSealed && { secret: SECRET }) }, fault(of))
  })
}

const answered =
  (status: number, body: string, headers: Readonly<Record<string, string>> = {}): ObjectFault =>
  (_, response) => {
    response.writeHead(status, { 'content-type': 'application/xml', ...headers })
    response.end(body)
    return true
  }
const xml = (code: string): string =>
  `<?xml version="1.0" encoding="UTF-8"?><Error><Code>${code}</Code><Message>mine</Message></Error>`

/** Answers that replace those of a server of objects. */
const ANSWERS: Readonly<Record<string, readonly [finds: Fault['finds'], answer: ObjectFault]>> = {
  'never answers': ['nothing', () => true],
  'hangs up': [
    'nothing',
    (_, __, socket) => {
      socket.destroy()
      return true
    },
  ],
  'asks to slow down': ['nothing', answered(503, xml('SlowDown'))],
  fails: ['nothing', answered(500, xml('InternalError'))],
  'refuses the credentials': ['nothing', answered(403, xml('InvalidAccessKeyId'))],
  'has no such bucket': ['nothing', answered(404, xml('NoSuchBucket'))],
  'answers with garbage': ['nothing', answered(200, 'garbage'.repeat(50))],
  'answers with nothing': ['nothing', answered(200, '')],
  'takes nothing more': [
    'all',
    (request, ...of) => request.method === 'PUT' && answered(507, xml('QuotaExceeded'))(request, ...of),
  ],
  'claims a length of a terabyte': [
    'nothing',
    ({ method }, response, socket) => {
      if (method !== 'GET') return false
      response.writeHead(200, {
        'content-length': '1099511627776',
        etag: '"1"',
        'last-modified': new Date(0).toUTCString(),
      })
      response.write('x')
      setTimeout(() => socket.destroy(), 20)
      return true
    },
  ],
  'cuts its answers': [
    'nothing',
    ({ method, value }, response, socket) => {
      if (method !== 'GET' || value === undefined) return false
      response.writeHead(200, {
        'content-length': String(value.length),
        etag: '"1"',
        'last-modified': new Date(0).toUTCString(),
      })
      response.write(value.subarray(0, value.length >> 1))
      setTimeout(() => socket.destroy(), 5)
      return true
    },
  ],
  'answers with changed values': [
    'nothing',
    ({ method, value }, response) => {
      if (method !== 'GET' || value === undefined) return false
      const changed = Buffer.from(value)
      changed[value.length >> 1] = (changed[value.length >> 1] as number) ^ 1
      response.writeHead(200, {
        'content-length': String(value.length),
        etag: '"1"',
        'last-modified': new Date(0).toUTCString(),
      })
      response.end(changed)
      return true
    },
  ],
}

const storeAt = (port: number): ObjectStore =>
  new ObjectStore({
    url: 's3://bucket/some/prefix',
    options: {
      endpoint: `http://127.0.0.1:${port}`,
      allow_http: 'true',
      region: 'us-east-1',
      access_key_id: 'an-access-key',
      secret_access_key: 'a-very-secret-key',
    },
  })

async function objects(t: ExecutionContext): Promise<readonly [ObjectServer, ObjectStore]> {
  const server = await ObjectServer.start()
  t.teardown(() => server.stop())
  const store = storeAt(server.port)
  t.teardown(() => store.dispose())
  return [server, store]
}

for (const [what, [finds, answer]] of Object.entries(ANSWERS)) {
  test(`an object store ${what}`, async t => {
    const [server, store] = await objects(t)
    await survives(
      t,
      { store },
      {
        begin: () => void (server.fault = answer),
        ...(/credentials|bucket/.test(what) && { another: () => storeAt(server.port) }),
        end: () => {
          server.fault = undefined
          // Entries that were found to be damaged may have been removed, and others are as they were.
          server.values.clear()
        },
        finds,
      },
    )
  })
}

test('an object store goes away and comes back, again and again', async t => {
  const [server, store] = await objects(t)
  let [turn, isUp] = [0, true]
  await survives(
    t,
    { store },
    {
      begin: () => {},
      each: async () => {
        if (turn++ % 2 === 1) return
        await (isUp ? server.stop() : server.run())
        isUp = !isUp
      },
      end: async () => (isUp ? undefined : server.run()),
      finds: 'some',
    },
  )
})

test('an object store has lost half of its entries', async t => {
  const [server, store] = await objects(t)
  await survives(
    t,
    { store },
    {
      begin: () => {
        for (const key of [...server.values.keys()].sort().filter((_, at) => at % 2 === 0)) server.values.delete(key)
      },
      end: () => {},
      finds: 'some',
    },
  )
})

test('an object store that redirects to another host takes no credentials there', async t => {
  const [server, store] = await objects(t)
  const [other] = await objects(t)
  await survives(
    t,
    { store },
    {
      begin: () => void (server.fault = answered(307, '', { location: `http://localhost:${other.port}/bucket/x` })),
      end: () => {
        server.fault = undefined
        server.values.clear()
      },
      another: () => storeAt(server.port),
      finds: 'nothing',
    },
  )
  t.deepEqual(
    other.requests.filter(({ authorization }) => authorization !== '').map(({ path }) => path),
    [],
  )
})

test('caches that share a store are all told when it goes away and when it is back', async t => {
  const [server, store] = await objects(t)
  const caches = [new Prompting({ store }, SOON), new Prompting({ store }, SOON)]
  let number = 0
  const told = (): string[] => caches.map(({ events }) => events.map(({ type }) => type).join())
  const asked = async (expected: readonly string[]): Promise<boolean> =>
    until(async () => {
      // One cache alone asks the store, for a prompt that it has not computed yet.
      await caches[0]?.ask(number++)
      return told().join(' ') === expected.join(' ')
    })
  await server.stop()
  t.true(await asked(['unavailable', 'unavailable']), told().join(' '))
  caches.push(new Prompting({ store }, SOON))
  t.true(await asked(['unavailable', 'unavailable', 'unavailable']), `one that is made meanwhile: ${told().join(' ')}`)
  await server.run()
  const all = Array.from({ length: 3 }, () => 'unavailable,available')
  t.true(await asked(all), told().join(' '))
  for (const { cache } of caches) cache.dispose()
})
