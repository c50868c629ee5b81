// Tiers below a cache: what was computed once is found again from memory, a folder, or a store; whatever is wrong with one is a miss.
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'

import test from 'ava'

import { attendAsync, type BlockStore, PagedKvCache, RedisStore, type StoreEvent, type TierName, type TierOptions, type UniformCacheOptions } from '../../index.js'
import { layered } from '../support/layered.js'
import { Redis, withRedis } from '../support/redis.js'
import { rejected, throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const OPTIONS: UniformCacheOptions = { capacity: 64, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, namespace: 'a model', prefixKey: new Uint8Array(32).fill(3) }
const cacheOf = (tiers: TierOptions, options: Partial<UniformCacheOptions> = {}): PagedKvCache => new PagedKvCache({ ...OPTIONS, ...options, tiers })

/** Computes a prompt from what is there on, and answers how much that was, and what the sequence shows. */
function compute(cache: PagedKvCache, tokens: readonly number[]): { length: number; shown: number[][] } {
  const seq = cache.openSequence({ prefix: cache.match(tokens) })
  const { length } = seq
  const [k, v] = layered(tokens.slice(length))
  seq.append({ k, v, tokens: tokens.slice(length) })
  const shown = [0, 1].flatMap(layer => {
    const kv = cache.gather(seq, layer)
    return [[...kv.k.toArray() as Float32Array], [...kv.v.toArray() as Float32Array]]
  })
  cache.dropSequence(seq)
  return { length, shown }
}

async function inFolder(work: (folder: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'kvtide-'))
  try {
    await work(folder)
  } finally {
    await rm(folder, { recursive: true })
  }
}

/** A store of one's own, in a map, that can be made to misbehave. */
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
  using large = new PagedKvCache(OPTIONS)
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

test('the next process finds what is in the folder', async t => inFolder(async folder => {
  const tiers = { disk: { path: join(folder, 'kv') } }
  using cache = cacheOf(tiers)
  const { shown } = compute(cache, span(0, 21))
  t.true(await cache.flush())
  t.is(cache.stats().tiers?.disk?.stored, 5)
  using other = cacheOf(tiers)
  t.is(other.match(span(0, 21)).length, 0)
  using match = await other.match(span(0, 21), { tiers: ['disk'] })
  t.is(match.length, 20)
  t.deepEqual(compute(other, span(0, 21)), { length: 20, shown })
  // What is damaged is a miss, and what comes before it is there.
  const names = other.keys(span(0, 21))
  const third = names[2] as string
  await writeFile(join(folder, 'kv', third.slice(0, 2), `${third}.0`), 'nonsense')
  using damaged = cacheOf(tiers)
  const found = await damaged.match(span(0, 21), { tiers: 'all' })
  t.is(found.length, 8)
  t.is(damaged.stats().tiers?.disk?.damaged, 1)
  t.false((await readdir(join(folder, 'kv', third.slice(0, 2)))).includes(`${third}.0`))
}))

test('a store of one\'s own keeps blocks, sealed and compressed', async t => {
  const shelf = new Shelf()
  const store = { store: shelf, secret: new Uint8Array(32).fill(1), compress: true }
  using cache = cacheOf({ store })
  const { shown } = compute(cache, span(0, 21))
  t.true(await cache.flush())
  t.is(shelf.values.size, 5)
  using other = cacheOf({ store })
  t.is((await other.match(span(0, 21), { tiers: ['store'] })).length, 20)
  t.deepEqual(compute(other, span(0, 21)).shown, shown)
  const { store: stats } = other.stats().tiers ?? {}
  t.is(stats?.found, 5)
  t.is(stats?.health.state, 'available')
  // Without the secret, with another, or of another model nothing is found.
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

test('whatever a store of one\'s own does is a miss in time, and one event', async t => {
  const shelf = new Shelf()
  using cache = cacheOf({ store: { store: shelf } })
  compute(cache, span(0, 21))
  t.true(await cache.flush())
  for (const [what, misbehave] of [
    ['throws', () => { throw new Error('out of order') }],
    ['rejects with nothing', () => Promise.reject(undefined)],
    ['answers nonsense', () => 'nonsense'],
    ['answers too few', () => []],
    ['answers values of another kind', (name: string) => (name === 'hasMany' ? undefined : [1, 2, 3, 4, 5])],
    ['answers other bytes', (name: string) => (name === 'hasMany' ? undefined : Array.from({ length: 5 }, () => new Uint8Array(100)))],
    ['answers values that are too long', (name: string) => (name === 'hasMany' ? undefined : Array.from({ length: 5 }, () => new Uint8Array(1e6)))],
    ['never answers', () => new Promise(() => {})],
  ] as const) {
    const events: StoreEvent[] = []
    using other = cacheOf({ store: { store: shelf, onChange: event => events.push(event) } })
    shelf.misbehave = misbehave
    for (let turn = 0; turn < 4; turn++) t.is((await other.match(span(0, 21), { tiers: 'all', deadline: 100 })).length, 0, what)
    shelf.misbehave = undefined
    t.true(events.filter(({ type }) => type === 'unavailable').length <= 1, what)
    if (what === 'throws') {
      t.deepEqual(events, [{ type: 'unavailable', reason: 'unreachable', about: 'out of order' }])
      t.is(other.stats().tiers?.store?.health.state, 'unavailable')
      const { calls } = shelf
      t.is((await other.match(span(0, 21), { tiers: 'all' })).length, 0)
      t.is(shelf.calls, calls, 'a store that is not there is not asked')
    }
    t.is(compute(other, span(0, 21)).length, 0)
    other.checkInvariants()
  }
})

test('await using writes what waits, once', async t => inFolder(async folder => {
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
  await using plain = new PagedKvCache(OPTIONS)
  t.is(plain.capacity, 64)
}))

test('how long a look in the tiers takes at most is said with the tiers, or by the call', async t => {
  const shelf = new Shelf()
  shelf.misbehave = () => new Promise(() => {})
  using short = cacheOf({ store: { store: shelf }, deadline: 20 })
  using usual = cacheOf({ store: { store: shelf } })
  using long = cacheOf({ store: { store: shelf }, deadline: 5000 })
  const order: string[] = []
  const look = async (name: string, cache: PagedKvCache, deadline?: number): Promise<unknown> => {
    await cache.match(span(0, 21), { tiers: 'all', ...(deadline === undefined ? {} : { deadline }) })
    return order.push(name)
  }
  await Promise.all([look('usual', usual), look('said by the call', long, 200), look('said with the tiers', short)])
  t.deepEqual(order, ['said with the tiers', 'said by the call', 'usual'])
  throwsCode(t, 'INVALID_ARGUMENT', () => cacheOf({ store: { store: shelf }, deadline: -1 }))
})

test('nothing is copied for a store of one\'s own that is not there, until it is there again', async t => {
  const shelf = new Shelf()
  const events: string[] = []
  using cache = cacheOf({ store: { store: shelf, onChange: ({ type }) => events.push(type) } })
  shelf.misbehave = () => { throw new Error('out of order') }
  for (let turn = 0; turn < 4; turn++) await cache.match(span(0, 21), { tiers: 'all' })
  compute(cache, span(0, 21))
  t.true(await cache.flush())
  t.like(cache.stats().tiers?.store, { stored: 0, dropped: 0 })
  shelf.misbehave = undefined
  for (let turn = 1; turn < 400 && shelf.values.size === 0; turn++) {
    compute(cache, span(1000 * turn, 1000 * turn + 21))
    await setTimeout(10)
  }
  t.true(shelf.values.size > 0)
  t.deepEqual(events, ['unavailable', 'available'])
})

test('a flush ends in time, whatever a store of one\'s own does, and also while pages are lent', async t => {
  const shelf = new Shelf()
  using cache = cacheOf({ store: { store: shelf } })
  shelf.misbehave = () => new Promise(() => {})
  compute(cache, span(0, 21))
  const start = performance.now()
  t.false(await cache.flush(50))
  t.true(performance.now() - start < 1500, 'one call to the store is waited for longer than that')
  using other = cacheOf({ memory: { limitBytes: 1e6 }, store: { store: new Shelf() } })
  const kept = other.openSequence()
  const [k, v] = layered(span(0, 20))
  kept.append({ k, v, tokens: span(0, 20) })
  const q = { data: new Float32Array(800), shape: [400, 2, 1] }
  const reading = attendAsync(q, { cache: other, layer: 0, sequences: span(0, 400).map(() => kept) })
  throwsCode(t, 'BUSY', () => other.createSequence())
  t.true(await other.flush())
  await reading
  t.is(other.stats().tiers?.store?.stored, 5)
})

test('a deadline, a signal, and a change of what was given', async t => {
  const shelf = new Shelf()
  using cache = cacheOf({ store: { store: shelf } })
  compute(cache, span(0, 21))
  t.true(await cache.flush())
  using other = cacheOf({ store: { store: shelf } })
  const aborting = new AbortController()
  shelf.misbehave = () => setTimeout(30)
  const waiting = other.match(span(0, 21), { tiers: 'all', deadline: 5000, signal: aborting.signal })
  aborting.abort(new Error('enough'))
  const { cause } = await rejected(waiting, 'ABORTED')
  t.is((cause as Error).message, 'enough')
  const tokens = Uint32Array.from(span(0, 21))
  const matching = other.match(tokens, { tiers: 'all', deadline: 5000 })
  tokens.fill(7)
  t.is((await matching).length, 20)
})

test('what is wrong with tiers is said, and nothing is made', async t => inFolder(async folder => {
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
  throwsCode(t, 'INVALID_ARGUMENT', () => new PagedKvCache({ ...OPTIONS, prefixKey: undefined as never, tiers: { disk: { path: folder } } }), { argument: 'prefixKey', value: 'none', expected: '32 bytes, the same for all who share blocks: names are made under it' })
  await writeFile(join(folder, 'file'), '')
  throwsCode(t, 'IO_ERROR', () => cacheOf({ disk: { path: join(folder, 'file') } }))
  using plain = new PagedKvCache(OPTIONS)
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
  t.true(await cache.flush())
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
  for (let turn = 0; turn < 5; turn++) t.is((await stopped.match(span(0, 21), { tiers: 'all', deadline: 50 })).length, 0)
  await redis.signal('SIGCONT')
  await redis.kill()
  for (let turn = 0; turn < 5; turn++) t.is((await stopped.match(span(0, 21), { tiers: 'all', deadline: 50 })).length, 0)
  t.is(events.filter(({ type }) => type === 'unavailable').length, 1)
  await redis.run()
  compute(cache, span(0, 21))
  for (let turn = 0; turn < 400 && events.at(-1)?.type !== 'available'; turn++) {
    await stopped.match(span(0, 21), { tiers: 'all', deadline: 100 })
    await setTimeout(25)
  }
  t.deepEqual(events.map(({ type }) => type), ['unavailable', 'available'])
})
