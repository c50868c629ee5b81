// What a cache publishes, followed over the loopback: after whatever happened, the router answers what the cache itself finds.
import { setTimeout } from 'node:timers/promises'

import test from 'ava'

import {
  attendAsync,
  type EventPublisher,
  type Following,
  PagedKvCache,
  PrefixRouter,
  publishEvents,
  type PublishOptions,
  type RoutedEvent,
  Tensor,
} from '../../index.js'
import { collected } from '../support/garbage.js'
import { drawn } from '../support/numbers.js'
import { CLEARED, published, stored } from '../support/raw-publisher.js'
import { agreesBy, branching, followed, LOOPBACK } from '../support/routing.js'
import { rejected, throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'
import { until } from '../support/until.js'

const BLOCK = 2
const SIZES = { capacity: 24, blockSize: BLOCK, numLayers: 1, numKvHeads: 1, headDim: 1, events: 100_000 }

const prompt = (random: () => number): number[] => branching(random, BLOCK)

function compute(cache: PagedKvCache, tokens: readonly number[]): void {
  const seq = cache.openSequence({ prefix: cache.match(tokens) })
  const { length } = seq
  const data = { data: Float32Array.from(tokens.slice(length)), shape: [1, 1, tokens.length - length, 1] }
  seq.append({ tokens: tokens.slice(length), k: data, v: data })
  cache.dropSequence(seq)
}

/** The number of tokens that a cache finds of a prompt. */
function found(cache: PagedKvCache, tokens: readonly number[]): number {
  using match = cache.match(tokens)
  return match.length
}
// The last token is never found, so that prompts that end with a block have one more.
const agrees = agreesBy(found)

test('what is there is published first, then what comes, what makes room and what is forgotten', async t => {
  const random = drawn(t)
  using cache = new PagedKvCache(SIZES)
  using router = new PrefixRouter()
  router.addWorker('one')
  router.addWorker('idle')
  const prompts = Array.from({ length: 60 }, () => prompt(random))
  for (const tokens of prompts.slice(0, 5)) compute(cache, tokens)
  using publisher = await publishEvents(cache, LOOPBACK)
  t.regex(publisher.endpoint, /^tcp:\/\/127\.0\.0\.1:\d+$/)
  using following = router.follow('one', followed(publisher))
  await agrees(t, router, 'one', cache, prompts, 'what was there')
  t.true(prompts.some(tokens => found(cache, tokens) > 0))
  for (let round = 0; round < 10; round++) {
    for (let turn = 0; turn < 12; turn++) compute(cache, prompts[Math.floor(random() * prompts.length)] as number[])
    await agrees(t, router, 'one', cache, prompts, `round ${round}`)
  }
  t.true(cache.stats().evictions > 0)
  cache.forgetPrefixes()
  await agrees(t, router, 'one', cache, prompts, 'forgotten')
  t.true(prompts.every(tokens => router.lengths(cache.keys(tokens)).length === 0))
  compute(cache, prompts[0] as number[])
  await agrees(t, router, 'one', cache, prompts, 'afterwards')
  t.deepEqual([following.stats().losses, following.stats().batches], [0, publisher.next])
  t.is(router.route(cache.keys(prompts[0] as number[]))?.worker, 'one')
})

test('who comes late gets everything by a replay, and who has no replay what comes', async t => {
  const random = drawn(t)
  using cache = new PagedKvCache(SIZES)
  using router = new PrefixRouter()
  for (const worker of ['early', 'late', 'deaf']) router.addWorker(worker)
  const prompts = Array.from({ length: 40 }, () => prompt(random))
  using publisher = await publishEvents(cache, LOOPBACK)
  router.follow('early', followed(publisher))
  for (const tokens of prompts) {
    compute(cache, tokens)
    await Promise.resolve()
  }
  await agrees(t, router, 'early', cache, prompts, 'early')
  router.follow('late', followed(publisher))
  await agrees(t, router, 'late', cache, prompts, 'late')
  using deaf = router.follow('deaf', { endpoint: publisher.endpoint })
  t.true(
    await until(() => {
      cache.forgetPrefixes()
      compute(cache, prompts[1] as number[])
      return deaf.stats().batches > 0
    }),
  )
  await agrees(t, router, 'deaf', cache, prompts, 'without a replay')
})

test('a log that is too short begins anew', async t => {
  const random = drawn(t)
  using cache = new PagedKvCache({ ...SIZES, events: 4 })
  using router = new PrefixRouter()
  router.addWorker('one')
  const prompts = Array.from({ length: 40 }, () => prompt(random))
  using publisher = await publishEvents(cache, LOOPBACK)
  using following = router.follow('one', followed(publisher))
  for (let round = 0; round < 10; round++) {
    // All in one turn, so that more happens than the log keeps.
    for (let turn = 0; turn < 20; turn++) compute(cache, prompts[Math.floor(random() * prompts.length)] as number[])
    await agrees(t, router, 'one', cache, prompts, `round ${round}`)
  }
  t.is(following.stats().losses, 0)
})

test('a publisher that comes again on the same endpoint, with nothing of what it said before', async t => {
  const random = drawn(t)
  using router = new PrefixRouter()
  router.addWorker('one')
  const prompts = Array.from({ length: 40 }, () => prompt(random))
  let cache = new PagedKvCache(SIZES)
  let publisher = await publishEvents(cache, LOOPBACK)
  const where = followed(publisher)
  router.follow('one', where)
  for (let life = 0; life < 4; life++) {
    for (const tokens of prompts.slice(life * 10, life * 10 + 10)) compute(cache, tokens)
    await agrees(t, router, 'one', cache, prompts, `life ${life}`)
    const { next } = publisher
    publisher.dispose()
    throwsCode(t, 'DISPOSED', () => publisher.next)
    cache.dispose()
    cache = new PagedKvCache(SIZES)
    // In every other life there is something before a follower connects, or nothing is said of its last one.
    if (life % 2 === 0) compute(cache, prompts[39] as number[])
    publisher = await bound(cache, { ...where, first: life === 2 ? 0 : next })
  }
  await agrees(t, router, 'one', cache, prompts, 'at the end')
  publisher.dispose()
  cache.dispose()
})

/** Binds again what may not be free yet. */
async function bound(cache: PagedKvCache, options: PublishOptions): Promise<EventPublisher> {
  let publisher: EventPublisher | undefined
  await until(async () => {
    publisher = await publishEvents(cache, options).catch((error: unknown) => {
      if ((error as { code?: string }).code !== 'IO_ERROR') throw error
      return undefined
    })
    return publisher !== undefined
  }, 25)
  if (publisher === undefined) throw new Error('the endpoints are never free again')
  return publisher
}

test('a worker that is removed and added again has what comes then, and nothing of the one before', async t => {
  const random = drawn(t)
  using router = new PrefixRouter()
  using cache = new PagedKvCache(SIZES)
  using other = new PagedKvCache(SIZES)
  const prompts = Array.from({ length: 20 }, () => prompt(random))
  for (const tokens of prompts.slice(0, 10)) compute(cache, tokens)
  using publisher = await publishEvents(cache, LOOPBACK)
  using second = await publishEvents(other, LOOPBACK)
  router.addWorker('one')
  using old = router.follow('one', followed(publisher))
  await agrees(t, router, 'one', cache, prompts, 'the first')
  router.removeWorker('one')
  router.addWorker('one')
  using following = router.follow('one', followed(second))
  const { batches } = old.stats()
  for (const tokens of prompts) {
    compute(cache, tokens)
    compute(other, tokens.slice(0, 4))
    await setTimeout(1)
  }
  await agrees(t, router, 'one', other, prompts, 'the second')
  t.deepEqual([old.stats().batches, following.stats().losses], [batches, 0])
  // What is disposed of is not followed, and what was known stays.
  following.dispose()
  const known = router.lengths(other.keys(prompts[0] as number[]))
  other.forgetPrefixes()
  t.true(await until(() => second.next > 0))
  t.deepEqual(router.lengths(other.keys(prompts[0] as number[])), known)
})

test('following goes on when its object is not held', async t => {
  using cache = new PagedKvCache(SIZES)
  using router = new PrefixRouter()
  router.addWorker('one')
  using publisher = await publishEvents(cache, LOOPBACK)
  let gone = 0
  const registry = new FinalizationRegistry(() => (gone += 1))
  ;(() => registry.register(router.follow('one', followed(publisher)), undefined))()
  t.true(await collected(() => gone === 1))
  compute(cache, span(0, 9))
  await agrees(t, router, 'one', cache, [span(0, 9)], 'after a collection')
})

const one = (tokens: readonly number[]): { data: Float32Array; shape: number[] } => ({
  data: Float32Array.from(tokens),
  shape: [1, 1, tokens.length, 1],
})

test('what is published while the cache is at work elsewhere comes afterwards', async t => {
  using cache = new PagedKvCache({ ...SIZES, capacity: 600 })
  using router = new PrefixRouter()
  router.addWorker('one')
  using publisher = await publishEvents(cache, LOOPBACK)
  router.follow('one', followed(publisher))
  const kept = cache.openSequence()
  const prompts = span(0, 8).map(round => span(round * 1000, round * 1000 + 101))
  kept.append({ k: one(span(0, 1000)), v: one(span(0, 1000)) })
  for (const tokens of prompts) {
    const seq = cache.openSequence()
    seq.append({ tokens, k: one(tokens), v: one(tokens) })
    seq.drop()
    // Before the turn ends in which something changed, the pages are lent: the cache cannot be changed.
    const reading = attendAsync(Tensor.from(new Float32Array(300), [300, 1, 1]), {
      cache,
      layer: 0,
      sequences: span(0, 300).map(() => kept),
    })
    throwsCode(t, 'BUSY', () => cache.createSequence())
    await reading
  }
  await agrees(t, router, 'one', cache, prompts, 'after the work')
})

test('members on what is none of theirs, and what is given wrongly', async t => {
  using cache = new PagedKvCache(SIZES)
  using router = new PrefixRouter()
  router.addWorker('one')
  const publisher = await publishEvents(cache, LOOPBACK)
  const following = router.follow('one', followed(publisher))
  const next = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(publisher), 'next')?.get as () => number
  const stats = following.stats
  for (const stranger of [
    undefined,
    null,
    5,
    {},
    router,
    cache,
    Object.create(publisher) as object,
    new Proxy(publisher, {}),
    new Proxy(following, {}),
    Object.setPrototypeOf(new PrefixRouter(), Object.getPrototypeOf(publisher) as object),
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => Reflect.apply(next, stranger, []))
    throwsCode(t, 'INVALID_ARGUMENT', () => Reflect.apply(stats, stranger, []))
  }
  throwsCode(t, 'INVALID_ARGUMENT', () => Reflect.apply(next, following, []))
  throwsCode(t, 'INVALID_ARGUMENT', () => Reflect.apply(stats, publisher, []))
  for (const made of [publisher, following])
    throwsCode(
      t,
      'INVALID_ARGUMENT',
      () => Reflect.construct(made.constructor as new () => EventPublisher | Following, [undefined, {}]) as object,
    )
  using silent = new PagedKvCache({ ...SIZES, events: 0 })
  t.is((await rejected(publishEvents(silent, LOOPBACK), 'INVALID_ARGUMENT')).details.argument, 'cache')
  t.is(
    (await rejected(publishEvents(cache, { endpoint: publisher.endpoint }), 'IO_ERROR')).details.path,
    publisher.endpoint,
  )
  for (const endpoint of ['', 'tcp://', 'tcp://127.0.0.1', 'ipc:///tmp/x', 'http://127.0.0.1:1', '127.0.0.1:1']) {
    await rejected(publishEvents(cache, { endpoint }), 'INVALID_ARGUMENT')
    throwsCode(t, 'INVALID_ARGUMENT', () => router.follow('one', { endpoint }))
  }
  const topic = 't'.repeat(4097)
  await rejected(publishEvents(cache, { ...LOOPBACK, topic }), 'INVALID_ARGUMENT')
  throwsCode(t, 'INVALID_ARGUMENT', () => router.follow('one', { endpoint: publisher.endpoint, topic }))
  await rejected(publishEvents(cache, { endpoint: 'tcp://127.0.0.1:65536' }), 'IO_ERROR')
  throwsCode(t, 'IO_ERROR', () => router.follow('one', { endpoint: 'tcp://*:5557' }))
  using wide = new PagedKvCache({ ...SIZES, capacity: 1, blockSize: 2 ** 20 + 1 })
  await rejected(publishEvents(wide, LOOPBACK), 'INVALID_ARGUMENT')
  following.dispose()
  following.dispose()
  throwsCode(t, 'DISPOSED', () => following.stats())
  publisher.dispose()
  publisher.dispose()
  throwsCode(t, 'DISPOSED', () => publisher.next)
  const late = new PagedKvCache(SIZES)
  const publishing = publishEvents(late, LOOPBACK)
  late.dispose()
  await rejected(publishing, 'DISPOSED')
})

test('a router that was disposed of follows no worker, and a cache that was disposed of publishes nothing', async t => {
  const cache = new PagedKvCache(SIZES)
  const router = new PrefixRouter()
  router.addWorker('one')
  using publisher = await publishEvents(cache, LOOPBACK)
  using following = router.follow('one', followed(publisher))
  t.true(await until(() => following.stats().batches > 0))
  router.dispose()
  throwsCode(t, 'DISPOSED', () => router.route([]))
  const { batches } = { batches: publisher.next }
  cache.dispose()
  await setTimeout(10)
  t.is(publisher.next, batches)
})

test('events that cost much leave the index to lookups in between', async t => {
  using router = new PrefixRouter()
  for (const name of ['large', 'costly']) router.addWorker(name)
  // Clearing one worker costs as much as there are blocks of all.
  const keys = span(1, 50_001).map(number => number.toString(16).padStart(16, '0').padEnd(64, '0'))
  const chain = keys.map((key, place): RoutedEvent => ({
    type: 'stored',
    key,
    parent: keys[Math.max(place - 1, 0)] as string,
    isFirst: place === 0,
  }))
  router.apply('large', chain)
  const { blocks } = router.stats()
  t.is(blocks, keys.length)
  const endpoint = await published(t, [...Array.from({ length: 2000 }, () => CLEARED), stored(7)])
  using following = router.follow('costly', { endpoint })
  let wasBetween = false
  const isOver = await until(() => {
    const hasBegun = following.stats().batches > 0
    const isKnown = router.stats().blocks > blocks
    wasBetween ||= hasBegun && !isKnown
    return isKnown
  }, 1)
  t.true(isOver)
  t.deepEqual(following.stats(), { batches: 1, losses: 0 })
  t.true(wasBetween)
})
