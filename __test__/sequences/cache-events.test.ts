// Events of a paged cache: for routers that follow what can be found.
import { setImmediate } from 'node:timers/promises'

import test from 'ava'

import { PagedKvCache, PrefixRouter, type CacheEvent, type CacheEvents, type UniformCacheOptions } from '../../index.js'
import { layered } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 4, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, events: 100, ...options })

function feed(cache: PagedKvCache, tokens: readonly number[]): number {
  const seq = cache.openSequence()
  const [k, v] = layered(tokens)
  seq.append({ k, v, tokens })
  return seq.id
}

async function take(events: CacheEvents, count: number): Promise<CacheEvent[]> {
  const taken: CacheEvent[] = []
  while (taken.length < count) {
    const { done, value } = await events.next()
    if (done === true) break
    taken.push(value)
  }
  return taken
}

test('what keeps no events has none to read, and a wrong start is refused', t => {
  using silent = cacheOf({ events: 0 })
  throwsCode(t, 'INVALID_ARGUMENT', () => silent.events())
  using cache = cacheOf()
  for (const options of [null, 3, { from: -1 }, { from: 0.5 }, { from: '0' }])
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.events(options as never))
  for (const events of [-1, 0.5, null]) throwsCode(t, 'INVALID_ARGUMENT', () => cacheOf({ events: events as never }))
  cache.dispose()
  throwsCode(t, 'DISPOSED', () => cache.events())
})

test('what is stored, removed and cleared comes in order, by name', async t => {
  using cache = cacheOf()
  using events = cache.events()
  const seq = feed(cache, span(0, 8))
  const [first, second] = await take(events, 2)
  t.deepEqual(first, {
    number: 0,
    type: 'stored',
    isFirst: true,
    key: first?.type === 'stored' ? first.key : '',
    parent: first?.type === 'stored' ? first.parent : '',
    tokens: Uint32Array.from(span(0, 4)),
  })
  t.like(second, {
    number: 1,
    type: 'stored',
    isFirst: false,
    parent: first?.type === 'stored' ? first.key : '',
    tokens: Uint32Array.from(span(4, 8)),
  })
  cache.dropSequence(seq)
  cache.ensureCapacity(cache.createSequence(), 16)
  const removed = await take(events, 2)
  t.deepEqual(removed, [
    { number: 2, type: 'removed', key: second?.type === 'stored' ? second.key : '' },
    { number: 3, type: 'removed', key: first?.type === 'stored' ? first.key : '' },
  ])
  cache.forgetPrefixes()
  t.deepEqual(await take(events, 1), [{ number: 4, type: 'cleared' }])
  t.is(events.missed, 0)
})

test('a router that follows from a list on knows what can be found', async t => {
  using cache = cacheOf({ capacity: 8, events: 3 })
  const salt = 'a'
  const key = (end: number, options = {}): string | undefined => cache.keys(span(0, end), options).at(-1)
  t.deepEqual([cache.keys([]), cache.keys(span(0, 3)), cache.keys(span(0, 11)).length], [[], [], 2])
  t.is(new Set([...cache.keys(span(0, 8)), ...cache.keys(span(0, 8), { salt })]).size, 4)
  t.deepEqual(cache.indexedKeys(), { keys: [], next: 0 })
  cache.dropSequence(feed(cache, span(0, 17)))
  const { keys, next } = cache.indexedKeys()
  t.deepEqual([new Set(keys), next], [new Set(cache.keys(span(0, 16))), 4])
  const known = new Set(keys)
  using events = cache.events({ from: next })
  const other = cache.openSequence({ salt })
  const [k, v] = layered(span(0, 20))
  other.append({ k, v, tokens: span(0, 20) })
  for (const event of await take(events, 3)) {
    if (event.type === 'stored') known.add(event.key)
    else if (event.type === 'removed') known.delete(event.key)
  }
  t.true(events.missed > 0, 'too many for a log of three')
  t.deepEqual([cache.match(span(0, 17)).length, cache.match(span(0, 21), { salt }).length], [12, 20])
  const again = cache.indexedKeys().keys
  t.deepEqual(
    [12, 16].map(end => again.includes(key(end) as string)),
    [true, false],
  )
  t.true(again.includes(key(20, { salt }) as string) && again.length === 8)
  cache.forgetPrefixes()
  t.deepEqual(cache.indexedKeys().keys, [])
})

test('who waits is woken by what changes the index, and by nothing else', async t => {
  using cache = cacheOf()
  using events = cache.events()
  let seen: CacheEvent | undefined
  const waiting = events.next().then(({ value }) => (seen = value))
  const [seq] = [cache.openSequence()]
  const [k, v] = layered(span(0, 3))
  seq.append({ k, v, tokens: span(0, 3) })
  await setImmediate()
  t.is(seen, undefined)
  using draft = seq.begin()
  const [drafted, values] = layered([3])
  draft.append({ k: drafted, v: values, tokens: [3] })
  await setImmediate()
  t.is(seen, undefined, 'it is not committed')
  draft.commit()
  await waiting
  t.like(seen, { number: 0, type: 'stored' })
})

test('several who wait are answered in order, and several readers see the same', async t => {
  using cache = cacheOf()
  using one = cache.events()
  using two = cache.events()
  const asked = Promise.all([one.next(), one.next(), two.next(), two.next()])
  feed(cache, span(0, 4))
  feed(cache, span(10, 14))
  t.deepEqual(
    (await asked).map(({ value }) => value?.number),
    [0, 1, 0, 1],
  )
})

test('a reader that is too slow is told what it missed', async t => {
  using cache = cacheOf({ events: 2 })
  using late = cache.events()
  using later = cache.events({ from: 1 })
  for (const start of [0, 10, 20]) feed(cache, span(start, start + 4))
  t.deepEqual(
    (await take(late, 2)).map(({ number }) => number),
    [1, 2],
  )
  t.is(late.missed, 1)
  t.deepEqual(
    (await take(later, 2)).map(({ number }) => number),
    [1, 2],
  )
  t.is(later.missed, 0)
  using ahead = cache.events({ from: 4 })
  const next = ahead.next()
  feed(cache, span(30, 34))
  cache.forgetPrefixes()
  t.is((await next).value?.number, 4)
})

test('it ends with return, with the loop, and with the cache, also for who waits', async t => {
  const cache = cacheOf()
  const [one, two, three] = [cache.events(), cache.events(), cache.events()]
  const waiting = [one.next(), one.next()]
  t.deepEqual(await one.return(), { done: true, value: undefined })
  t.deepEqual(
    (await Promise.all(waiting)).map(({ done }) => done),
    [true, true],
  )
  t.true((await one.next()).done)
  feed(cache, span(0, 8))
  for await (const { number } of two) if (number === 1) break
  t.true((await two.next()).done)
  t.is((await three.next()).value?.number, 0)
  const last = (async () => {
    const numbers = []
    for await (const { number } of three) numbers.push(number)
    return numbers
  })()
  await setImmediate()
  cache.dispose()
  t.deepEqual(await last, [1])
  t.true((await three.next()).done)
  t.notThrows(() => three.dispose())
})

test('a call on something else is refused', async t => {
  using cache = cacheOf()
  using events = cache.events()
  const prototype = Object.getPrototypeOf(events) as CacheEvents
  for (const self of [undefined, null, {}, Object.create(prototype), cache]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => prototype.next.call(self as never))
    throwsCode(t, 'INVALID_ARGUMENT', () => prototype.return.call(self as never))
  }
  t.is(events[Symbol.asyncIterator](), events)
})

test('a replay tells what prompts of many tenants find', t => {
  using cache = new PagedKvCache({ capacity: 300, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, events: 1000 })
  const tenants = Array.from({ length: 100 }, (_, tenant) => `tenant ${tenant}`)
  const tokens = [1, 2, 3, 4, 5]
  const rows = { data: new Float32Array(5), shape: [1, 1, 5, 1] }
  for (const salt of tenants) cache.openSequence({ salt }).append({ tokens, k: rows, v: rows })
  using router = new PrefixRouter()
  router.addWorker('one')
  router.apply('one', cache.replay().events)
  for (const salt of tenants) t.is(router.route(cache.keys(tokens, { salt }))?.blocks, 2, salt)
})

test('a replay tells what prompts find, also after evictions, and where events go on', async t => {
  using cache = new PagedKvCache({ capacity: 5, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, events: 100 })
  using router = new PrefixRouter()
  router.addWorker('one')
  const prompts = [
    [1, 2, 3, 4, 5, 6, 7],
    [1, 2, 8, 9, 10],
    [11, 12, 13, 14, 15],
    [1, 2, 3, 4, 16, 17, 18],
  ]
  for (const tokens of prompts) {
    const seq = cache.openSequence({ prefix: cache.match(tokens) })
    const rest = tokens.slice(seq.length)
    const rows = { data: new Float32Array(rest.length), shape: [1, 1, rest.length, 1] }
    seq.append({ tokens: rest, k: rows, v: rows })
    cache.dropSequence(seq)
    router.apply('one', cache.replay().events)
    for (const asked of prompts) {
      using match = cache.match(asked)
      t.is(router.route(cache.keys(asked))?.blocks, match.length / 2, `${tokens}: ${asked}`)
    }
  }
  t.true(cache.stats().evictions > 0)
  const { next } = cache.replay()
  using after = cache.events({ from: next })
  cache.forgetPrefixes()
  t.is((await after.next()).value?.number, next)
})
