// States in stores: a checkpoint is offloaded and restored like a block, whole and verified, and without it the prefix is shorter.
import { connect } from 'node:net'

import test, { type ExecutionContext } from 'ava'

import { type ModelCacheOptions, type PagedKvCache, RedisStore, type StoreTier } from '../../index.js'
import { BLOCK, compute, hybridCache, MAMBA, statesOf } from '../support/hybrid.js'
import { Redis, withRedis } from '../support/redis.js'
import { Shelf } from '../support/shelf.js'
import { span } from '../support/tokens.js'

const LATE = 60_000
const PROMPT = span(0, 22)
/** The lengths at which the prompt has a checkpoint. */
const ENDS = [8, 12, 20]

function cacheOf(store: StoreTier, options: Partial<ModelCacheOptions> = {}): PagedKvCache {
  return hybridCache({ ...options, tiers: { deadline: LATE, store } })
}

/** Computes the prompt and offloads all of it. */
async function fill(t: ExecutionContext, store: StoreTier, options?: Partial<ModelCacheOptions>): Promise<void> {
  using cache = cacheOf(store, options)
  compute(cache, PROMPT, ENDS).dispose()
  t.true(await cache.flush(LATE))
}

/** The length of the prompt that is restored, with the right states, into an empty cache. */
async function restored(t: ExecutionContext, store: StoreTier, options?: Partial<ModelCacheOptions>): Promise<number> {
  using cache = cacheOf(store, options)
  const sequence = cache.openSequence({ prefix: await cache.match(PROMPT, { tiers: 'all' }) })
  const { length } = sequence
  t.deepEqual(sequence.states(), statesOf(cache, PROMPT.slice(0, length)))
  const rest = compute(cache, PROMPT)
  t.deepEqual(rest.states(), statesOf(cache, PROMPT))
  for (const { kind, layers } of cache.groups)
    if (kind !== 'state' && length > 0)
      for (const layer of layers) t.deepEqual(rowsOf(cache, rest, layer), doubled(PROMPT))
  cache.checkInvariants()
  return length
}

const doubled = (tokens: readonly number[]): number[] => tokens.flatMap(token => [token, token])

function rowsOf(cache: PagedKvCache, sequence: ReturnType<typeof compute>, layer: number): number[] {
  return [...(cache.gather(sequence, layer).k.toArray() as Float32Array)]
}

/** The key of a block's entry in a store: of the group, `0` for attention and the last one for states. */
function entryOf(shelf: Shelf, key: string | undefined, group: number): string {
  const found = [...shelf.values.keys()].filter(name => name.startsWith(`${key}.${group}.`))
  if (found.length !== 1) throw new Error(`${found.length} entries of group ${group}`)
  return found[0] as string
}

for (const [name, of] of [
  ['as they are', {}],
  ['sealed', { secret: new Uint8Array(32).fill(1) }],
  ['compressed', { compress: true }],
  ['sealed and compressed', { secret: new Uint8Array(32).fill(1), compress: true }],
] as const) {
  test(`a store of one's own has states, ${name}`, async t => {
    for (const [model, groups] of [
      [undefined, 2],
      [MAMBA, 1],
    ] as const) {
      const options = model === undefined ? {} : { model }
      const shelf = new Shelf()
      const store = { store: shelf, ...of }
      await fill(t, store, options)
      using cache = hybridCache(options)
      const keys = cache.keys(PROMPT)
      t.is(shelf.values.size, (groups === 2 ? keys.length : 0) + ENDS.length)
      t.is(await restored(t, store, options), 20)
      // Without the deepest state, the prompt ends at the one before it.
      shelf.values.delete(entryOf(shelf, keys[4], groups - 1))
      t.is(await restored(t, store, options), 12)
      const state = entryOf(shelf, keys[2], groups - 1)
      const damaged = (shelf.values.get(state) as Uint8Array).slice()
      damaged[damaged.length >> 1] = (damaged[damaged.length >> 1] as number) ^ 1
      shelf.values.set(state, damaged)
      // A damaged entry is a miss, and is removed: the next prompt ends at the state before it.
      t.is(await restored(t, store, options), 0)
      t.deepEqual(shelf.removed, [state])
      t.is(await restored(t, store, options), 8)
      if (groups === 2) {
        // States behind a lost block cannot be used.
        shelf.values.delete(entryOf(shelf, keys[1], 0))
        t.is(await restored(t, store, options), 0)
      }
    }
  })
}

test('a state of one block is none of another', async t => {
  const shelf = new Shelf()
  await fill(t, { store: shelf })
  using cache = hybridCache()
  const keys = cache.keys(PROMPT)
  const [early, late] = [entryOf(shelf, keys[1], 1), entryOf(shelf, keys[4], 1)]
  shelf.values.set(late, shelf.values.get(early) as Uint8Array)
  t.is(await restored(t, { store: shelf }), 0)
  t.deepEqual(shelf.removed, [late])
  t.is(await restored(t, { store: shelf }), 12)
})

/** Sends a command to Redis, and returns its answer. */
function command(url: string, ...words: readonly string[]): Promise<string> {
  const { hostname, port } = new URL(url)
  const text = `*${words.length}\r\n${words.map(word => `$${Buffer.byteLength(word)}\r\n${word}\r\n`).join('')}`
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), hostname, () => socket.write(text))
    socket.once('data', answer => {
      socket.destroy()
      resolve(answer.toString('latin1'))
    })
    socket.once('error', reject)
  })
}

withRedis('machines share states in Redis; lost states make a prefix shorter', async t => {
  const redis = await Redis.start()
  t.teardown(() => redis.stop())
  using store = new RedisStore({ url: redis.url })
  using machine = new RedisStore({ url: redis.url })
  await fill(t, { store })
  t.is(await restored(t, { store: machine }), 20)
  using cache = hybridCache()
  const keys = cache.keys(PROMPT)
  const all = (await command(redis.url, 'KEYS', '*')).split('\r\n').filter(line => line.startsWith('kvtide:'))
  t.is(all.length, keys.length + ENDS.length)
  const stateAt = (length: number): string =>
    all.find(name => name.startsWith(`kvtide:${keys[length / BLOCK - 1]}.1.`)) as string
  t.is(await command(redis.url, 'DEL', stateAt(20)), ':1\r\n')
  t.is(await restored(t, { store: machine }), 12)
  t.is(await command(redis.url, 'SETRANGE', stateAt(12), '200', 'x'.repeat(20)), `:${await lengthOf(stateAt(12))}\r\n`)
  t.is(await restored(t, { store: machine }), 0, 'it is damaged')
  t.is(await restored(t, { store: machine }), 8, 'it was removed')
  t.is(await restored(t, { store: machine, secret: new Uint8Array(32) }), 0, 'it was not sealed')
  await redis.kill()
  t.is(await restored(t, { store: machine }), 0)

  async function lengthOf(name: string): Promise<number> {
    return Number((await command(redis.url, 'STRLEN', name)).slice(1))
  }
})
