// Tiers of a cache: a block that was computed once is found again in memory, a folder or a store; if anything is wrong with an entry, it is a miss.
import { readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import test from 'ava'

import {
  attendAsync,
  type BlockStore,
  PagedKvCache,
  RedisStore,
  type StoreEvent,
  type TierName,
  type TierOptions,
  type UniformCacheOptions,
} from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { inFolder } from '../support/folder.js'
import { HandClock } from '../support/hand-clock.js'
import { layered, LAYERED } from '../support/layered.js'
import { Redis, withRedis } from '../support/redis.js'
import { rejected, throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'
import { until } from '../support/until.js'

/** A deadline that no match reaches, unless a test wants it to. */
const LATE = 60_000
const cacheOf = (tiers: TierOptions, options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ ...LAYERED, ...options, tiers: { deadline: LATE, ...tiers } })

/** Computes the rest of a prompt after its cached prefix. Returns the length of that prefix, and the content of the sequence. */
function compute(cache: PagedKvCache, tokens: readonly number[]): { length: number; shown: number[][] } {
  const seq = cache.openSequence({ prefix: cache.match(tokens) })
  const { length } = seq
  const [k, v] = layered(tokens.slice(length))
  seq.append({ k, v, tokens: tokens.slice(length) })
  const shown = [0, 1].flatMap(layer => {
    const kv = cache.gather(seq, layer)
    return [[...(kv.k.toArray() as Float32Array)], [...(kv.v.toArray() as Float32Array)]]
  })
  cache.dropSequence(seq)
  return { length, shown }
}

/** A store of the caller's, in a map, that can be made to misbehave. */
class Shelf implements BlockStore {
  readonly values = new Map<string, Uint8Array>()
  calls = 0
  misbehave: ((name: string) => unknown) | undefined

  async #called<T>(name: string, answer: () => T): Promise<T> {
    this.calls += 1
    const odd = await this.misbehave?.(name)
    return odd === undefined ? answer() : (odd as T)
  }

  getMany(keys: readonly string[]) {
    return this.#called('getMany', () => keys.map(key => this.values.get(key)))
  }

  putMany(entries: readonly { readonly key: string; readonly value: Uint8Array }[]) {
    return this.#called('putMany', () => entries.forEach(({ key, value }) => this.values.set(key, value.slice())))
  }

  hasMany(keys: readonly string[]) {
    return this.#called('hasMany', () => keys.map(key => this.values.has(key)))
  }
}

test('what made room is found in memory again', async t => {
  using cache = cacheOf({ memory: { limitBytes: 1e6 } }, { capacity: 6 })
  using large = new PagedKvCache(LAYERED)
  const prompts = [span(0, 21), span(100, 121), span(0, 13).concat(span(200, 208))]
  for (const prompt of [...prompts, ...prompts]) {
    using match = await cache.match(prompt, { tiers: 'all' })
    t.is(match.length, large.match(prompt).length)
    match.dispose()
    t.deepEqual(compute(cache, prompt).shown, compute(large, prompt).shown)
    cache.checkInvariants()
  }
  const { memory } = cache.stats().tiers ?? {}
  t.true(memory !== undefined && memory.found > 0 && memory.blocks > 0 && memory.bytes > 0)
})

test('the next process finds what is in the folder', async t =>
  inFolder(async folder => {
    const tiers = { disk: { path: join(folder, 'kv') } }
    using cache = cacheOf(tiers)
    const { shown } = compute(cache, span(0, 21))
    t.true(await cache.flush(LATE))
    t.is(cache.stats().tiers?.disk?.stored, 5)
    using other = cacheOf(tiers)
    t.is(other.match(span(0, 21)).length, 0)
    using match = await other.match(span(0, 21), { tiers: ['disk'] })
    t.is(match.length, 20)
    t.deepEqual(compute(other, span(0, 21)), { length: 20, shown })
    // A damaged block is a miss, and the blocks before it are found.
    const names = other.keys(span(0, 21))
    const third = names[2] as string
    const file = (await readdir(join(folder, 'kv', third.slice(0, 2)))).find(entry =>
      entry.startsWith(`${third}.0.`),
    ) as string
    await writeFile(join(folder, 'kv', third.slice(0, 2), file), 'nonsense')
    using damaged = cacheOf(tiers)
    const found = await damaged.match(span(0, 21), { tiers: 'all' })
    t.is(found.length, 8)
    t.is(damaged.stats().tiers?.disk?.damaged, 1)
    t.false((await readdir(join(folder, 'kv', third.slice(0, 2)))).includes(file))
  }))

test('blocks that make room for a transaction come back from the tiers', async t => {
  using cache = cacheOf({ memory: { limitBytes: 1e6 } }, { capacity: 6 })
  const { shown } = compute(cache, span(0, 21))
  const other = cache.openSequence()
  const draft = other.begin({ maxTokens: 24 })
  t.is(cache.match(span(0, 21)).length, 0)
  draft.dispose()
  other.drop()
  using found = await cache.match(span(0, 21), { tiers: 'all' })
  t.is(found.length, 20)
  t.deepEqual(compute(cache, span(0, 21)).shown, shown)
})

test("a store of one's own keeps blocks, sealed and compressed", async t => {
  const shelf = new Shelf()
  const store = { store: shelf, secret: new Uint8Array(32).fill(1), compress: true }
  using cache = cacheOf({ store })
  const { shown } = compute(cache, span(0, 21))
  t.true(await cache.flush(LATE))
  t.is(shelf.values.size, 5)
  using other = cacheOf({ store })
  t.is((await other.match(span(0, 21), { tiers: ['store'] })).length, 20)
  t.deepEqual(compute(other, span(0, 21)).shown, shown)
  const { store: stats } = other.stats().tiers ?? {}
  t.is(stats?.found, 5)
  t.is(stats?.health.state, 'available')
  // Without the secret, with another secret, or for another model, nothing is found.
  for (const [what, tiers, options] of [
    ['no secret', { store: { store: shelf } }, {}],
    ['another secret', { store: { ...store, secret: new Uint8Array(32) } }, {}],
    ['another model', { store }, { namespace: 'another' }],
    ['another key', { store }, { prefixKey: new Uint8Array(32) }],
  ] as const) {
    using stranger = cacheOf(tiers, options)
    t.is((await stranger.match(span(0, 21), { tiers: 'all' })).length, 0, what)
  }
})

test("whatever a store of one's own does is a miss in time, and one event", async t => {
  const shelf = new Shelf()
  using cache = cacheOf({ store: { store: shelf } })
  compute(cache, span(0, 21))
  t.true(await cache.flush(LATE))
  for (const [what, misbehave] of [
    [
      'throws',
      () => {
        throw new Error('out of order')
      },
    ],
    ['rejects with nothing', () => Promise.reject(undefined)],
    ['answers nonsense', () => 'nonsense'],
    ['answers too few', () => []],
    ['answers values of another kind', (name: string) => (name === 'hasMany' ? undefined : [1, 2, 3, 4, 5])],
    [
      'answers other bytes',
      (name: string) => (name === 'hasMany' ? undefined : Array.from({ length: 5 }, () => new Uint8Array(100))),
    ],
    [
      'answers values that are too long',
      (name: string) => (name === 'hasMany' ? undefined : Array.from({ length: 5 }, () => new Uint8Array(1e6))),
    ],
    ['never answers', () => new Promise(() => {})],
  ] as const) {
    const events: StoreEvent[] = []
    using other = cacheOf({ store: { store: shelf, onChange: event => events.push(event) } })
    shelf.misbehave = misbehave
    for (let turn = 0; turn < 4; turn++)
      t.is(
        (await other.match(span(0, 21), { tiers: 'all', ...(what === 'never answers' ? { deadline: 100 } : {}) }))
          .length,
        0,
        what,
      )
    shelf.misbehave = undefined
    // Each change is one event. A store that answers correctly which keys it has counts as reachable until it is asked for values.
    t.true(
      events.every(({ type }, at) => type === (at % 2 === 0 ? 'unavailable' : 'available')),
      what,
    )
    if (!/values|bytes/.test(what)) t.true(events.length <= 1, what)
    if (what === 'throws') {
      t.deepEqual(events, [{ type: 'unavailable', reason: 'unreachable', about: 'out of order' }])
      shelf.misbehave = misbehave
      // Only probes remain, and they become ever rarer.
      t.true(
        await until(async () => {
          const { calls } = shelf
          t.is((await other.match(span(0, 21), { tiers: 'all' })).length, 0)
          return shelf.calls === calls
        }),
        'a store that is not there is not asked',
      )
      t.is(other.stats().tiers?.store?.health.state, 'unavailable')
      shelf.misbehave = undefined
    }
    t.is(compute(other, span(0, 21)).length, 0)
    other.checkInvariants()
  }
})

test('await using writes what waits, once', async t =>
  inFolder(async folder => {
    const cache = cacheOf({ disk: { path: folder } })
    {
      await using held = cache
      compute(held, span(0, 21))
    }
    throwsCode(t, 'DISPOSED', () => cache.stats())
    await cache[Symbol.asyncDispose]()
    await rejected(PagedKvCache.prototype[Symbol.asyncDispose].call({} as PagedKvCache), 'INVALID_ARGUMENT')
    {
      await using later = cacheOf({ disk: { path: folder } })
      t.is((await later.match(span(0, 21), { tiers: 'all' })).length, 20)
    }
    await using plain = new PagedKvCache(LAYERED)
    t.is(plain.capacity, 64)
  }))

test.serial('how long a look in the tiers takes at most is said with the tiers, or by the call', async t => {
  const clock = HandClock.inPlace(t)
  const shelf = new Shelf()
  shelf.misbehave = () => new Promise(() => {})
  using short = cacheOf({ store: { store: shelf }, deadline: 20 })
  using usual = new PagedKvCache({ ...LAYERED, tiers: { store: { store: shelf } } })
  using long = cacheOf({ store: { store: shelf }, deadline: 5000 })
  const looks = [
    short.match(span(0, 21), { tiers: 'all' }),
    long.match(span(0, 21), { tiers: 'all', deadline: 200 }),
    usual.match(span(0, 21), { tiers: 'all' }),
  ] as const
  // Each match sleeps until its deadline, and so does its call to the store, which counts as a failure after two seconds.
  await clock.asleep(20, 200, 1000, 2000, 2000, 2000)
  for (const [at, looking] of [
    [20, looks[0]],
    [200, looks[1]],
    [1000, looks[2]],
  ] as const) {
    t.is(clock.advance(at - 1 - clock.now()), 0)
    t.is(clock.advance(1), 1)
    t.is((await looking).length, 0)
  }
  throwsCode(t, 'INVALID_ARGUMENT', () => cacheOf({ store: { store: shelf }, deadline: -1 }))
})

test("nothing is copied for a store of one's own that is not there, until it is there again", async t => {
  const shelf = new Shelf()
  const events: string[] = []
  using cache = cacheOf({ store: { store: shelf, onChange: ({ type }) => events.push(type) } })
  shelf.misbehave = () => {
    throw new Error('out of order')
  }
  for (let turn = 0; turn < 4; turn++) await cache.match(span(0, 21), { tiers: 'all' })
  let turn = 0
  const computed = (): void => {
    turn += 1
    compute(cache, span(1000 * turn, 1000 * turn + 21))
  }
  // Only writes when the store may be asked again remain, and they become ever rarer.
  t.true(
    await until(async () => {
      const dropped = cache.stats().tiers?.store?.dropped
      computed()
      t.true(await cache.flush(LATE))
      return cache.stats().tiers?.store?.dropped === dropped
    }),
  )
  t.is(cache.stats().tiers?.store?.stored, 0)
  t.is(shelf.values.size, 0)
  shelf.misbehave = undefined
  t.true(
    await until(() => {
      computed()
      return shelf.values.size > 0 && events.at(-1) === 'available'
    }, 10),
  )
  t.deepEqual(events, ['unavailable', 'available'])
})

test.serial("a flush ends in time, whatever a store of one's own does", async t => {
  const clock = HandClock.inPlace(t)
  const shelf = new Shelf()
  using cache = cacheOf({ store: { store: shelf } })
  shelf.misbehave = () => new Promise(() => {})
  compute(cache, span(0, 21))
  const flushed = cache.flush(50)
  // The timeout of the call to the store is longer than that.
  await clock.asleep(50, 2000, 10_000)
  t.is(clock.advance(49), 0)
  t.is(clock.advance(1), 1)
  t.false(await flushed)
})

test('a flush ends in time also while pages are lent', async t => {
  using other = cacheOf({ memory: { limitBytes: 1e6 }, store: { store: new Shelf() } })
  const kept = other.openSequence()
  const [k, v] = layered(span(0, 20))
  kept.append({ k, v, tokens: span(0, 20) })
  const q = { data: new Float32Array(800), shape: [400, 2, 1] }
  const reading = attendAsync(q, { cache: other, layer: 0, sequences: span(0, 400).map(() => kept) })
  throwsCode(t, 'BUSY', () => other.createSequence())
  t.true(await other.flush(LATE))
  await reading
  t.is(other.stats().tiers?.store?.stored, 5)
})

test('a deadline, a signal, and a change of what was given', async t => {
  const shelf = new Shelf()
  using cache = cacheOf({ store: { store: shelf } })
  compute(cache, span(0, 21))
  t.true(await cache.flush(LATE))
  using other = cacheOf({ store: { store: shelf } })
  const aborting = new AbortController()
  shelf.misbehave = () => aborting.abort(new Error('enough'))
  const { cause } = await rejected(other.match(span(0, 21), { tiers: 'all', signal: aborting.signal }), 'ABORTED')
  shelf.misbehave = undefined
  t.is((cause as Error).message, 'enough')
  const tokens = Uint32Array.from(span(0, 21))
  const matching = other.match(tokens, { tiers: 'all' })
  tokens.fill(7)
  t.is((await matching).length, 20)
})

test.serial("a match waits for background work that uses the cache when a tier's work has ended", async t =>
  inFolder(async folder => {
    const tiers = { disk: { path: folder } }
    {
      await using cache = cacheOf(tiers)
      compute(cache, span(0, 21))
    }
    using cache = cacheOf(tiers)
    const kept = cache.openSequence()
    const [k, v] = layered(span(100, 104))
    kept.append({ k, v, tokens: span(100, 104) })
    const reading: Promise<unknown>[] = []
    const { prototype } = binding.NativeDriver
    const { work } = prototype
    t.teardown(() => Object.assign(prototype, { work }))
    prototype.work = async function () {
      await work.call(this)
      reading.push(attendAsync({ data: new Float32Array(2), shape: [1, 2, 1] }, { cache, layer: 0, sequences: [kept] }))
      throwsCode(t, 'BUSY', () => cache.createSequence())
    }
    t.is((await cache.match(span(0, 21), { tiers: 'all' })).length, 20)
    t.is(reading.length, 2)
    await Promise.all(reading)
  }),
)

test('what is wrong with tiers is said, and nothing is made', async t =>
  inFolder(async folder => {
    const wrong = (tiers: unknown, argument: string): void => {
      const error = throwsCode(t, 'INVALID_ARGUMENT', () => cacheOf(tiers as TierOptions))
      t.is(error.details.argument, argument)
    }
    wrong({ memory: { limitBytes: 0 } }, 'tiers.memory.limitBytes')
    wrong({ memory: { limitBytes: 1, policy: 'never' } }, 'tiers.memory.policy')
    wrong({ disk: { path: '' } }, 'tiers.disk.path')
    wrong({ disc: { path: folder } }, 'tiers.disc')
    wrong({ store: { store: { getMany() {} } } }, 'tiers.store.store.putMany')
    wrong({ store: { store: new Shelf(), secret: new Uint8Array(31) } }, 'tiers.store.secret')
    wrong({ store: { store: new Shelf(), onChange: 1 } }, 'tiers.store.onChange')
    throwsCode(
      t,
      'INVALID_ARGUMENT',
      () => new PagedKvCache({ ...LAYERED, prefixKey: undefined as never, tiers: { disk: { path: folder } } }),
      {
        argument: 'prefixKey',
        value: 'none',
        expected: '32 bytes, the same in all processes that share blocks: block keys depend on it',
      },
    )
    await writeFile(join(folder, 'file'), '')
    throwsCode(t, 'IO_ERROR', () => cacheOf({ disk: { path: join(folder, 'file') } }))
    using plain = new PagedKvCache(LAYERED)
    await rejected(plain.match([1], { tiers: 'all' }) as Promise<unknown>, 'INVALID_ARGUMENT')
    await rejected(plain.flush(), 'INVALID_ARGUMENT')
    throwsCode(t, 'INVALID_ARGUMENT', () => plain.match([1], { deadline: 5 } as never))
    using cache = cacheOf({ memory: { limitBytes: 1e6 } })
    await rejected(cache.match([1], { tiers: ['disk' as TierName] }), 'INVALID_ARGUMENT')
    await rejected(cache.match([1], { tiers: 'all', deadline: -1 }), 'INVALID_ARGUMENT')
  }))

withRedis('machines share what is in Redis; while it is stopped or dead, prompts are computed', async t => {
  const redis = await Redis.start()
  t.teardown(() => redis.stop())
  using store = new RedisStore({ url: redis.url })
  using cache = cacheOf({ store: { store } })
  const { shown } = compute(cache, span(0, 21))
  t.true(await cache.flush(LATE))
  t.is(cache.stats().tiers?.store?.stored, 5)
  const events: StoreEvent[] = []
  using machine = new RedisStore({ url: redis.url })
  const other = (): PagedKvCache => cacheOf({ store: { store: machine, onChange: event => events.push(event) } })
  {
    using there = other()
    t.is((await there.match(span(0, 21), { tiers: 'all' })).length, 20)
    t.deepEqual(compute(there, span(0, 21)).shown, shown)
  }
  await redis.signal('SIGSTOP')
  using stopped = other()
  const misses = async (deadline: number): Promise<void> => {
    for (let turn = 0; turn < 5; turn++) t.is((await stopped.match(span(0, 21), { tiers: 'all', deadline })).length, 0)
  }
  await misses(50)
  await redis.signal('SIGCONT')
  await redis.kill()
  t.true(
    await until(async () => {
      await misses(1000)
      return events.length > 0
    }),
  )
  t.deepEqual(
    events.map(({ type }) => type),
    ['unavailable'],
  )
  await redis.run()
  compute(cache, span(0, 21))
  await until(async () => {
    await stopped.match(span(0, 21), { tiers: 'all', deadline: 1000 })
    return events.at(-1)?.type === 'available'
  }, 25)
  t.deepEqual(
    events.map(({ type }) => type),
    ['unavailable', 'available'],
  )
})
