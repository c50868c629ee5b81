// Caches whose layers keep states: routers learn where a prompt can be continued, and answer what the cache itself finds.
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'

import test from 'ava'

import {
  type CacheEvent,
  DynamoRouter,
  type ModelCacheOptions,
  type PagedKvCache,
  PrefixRouter,
  publishEvents,
  type RoutedEvent,
} from '../../index.js'
import { Indexer, withDynamo } from '../support/dynamo.js'
import { folderOf } from '../support/folder.js'
import { BLOCK, compute, hybridCache, MAMBA } from '../support/hybrid.js'
import { drawn } from '../support/numbers.js'
import { agreesBy, branching, differingBy, followed, LOOPBACK } from '../support/routing.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'
import { until } from '../support/until.js'

const EVENTS = 100_000
/** So few that blocks and states are evicted all the time. */
const FEW: Partial<ModelCacheOptions> = { capacity: [40, 14], events: EVENTS }

type Random = () => number

const prompt = (random: Random): number[] => branching(random, BLOCK)

/** Computes a prompt in steps of random lengths, most of which end at the end of a block. */
function turn(cache: PagedKvCache, random: Random, prompts: readonly number[][]): void {
  const tokens = prompts[Math.floor(random() * prompts.length)] as number[]
  const end = (): number => Math.floor(random() * (tokens.length / BLOCK)) * BLOCK + (random() < 0.2 ? 1 : 0)
  compute(cache, tokens, [end(), end()]).dispose()
  if (random() < 0.02) cache.forgetPrefixes()
}

const matched = (cache: PagedKvCache, tokens: readonly number[]): number => cache.explain(tokens).matched
const [differing, agrees] = [differingBy(matched), agreesBy(matched)]

/** The prompts of which attention has more than there is a state for. */
const lost = (cache: PagedKvCache, prompts: readonly number[][]): number =>
  prompts.filter(tokens => cache.explain(tokens).missing?.reason === 'no-state-here').length

test('a router that follows a hybrid cache promises what the cache can continue', async t => {
  const random = drawn(t)
  using cache = hybridCache(FEW)
  using router = new PrefixRouter()
  for (const worker of ['one', 'late', 'idle']) router.addWorker(worker)
  const prompts = Array.from({ length: 50 }, () => prompt(random))
  for (let at = 0; at < 5; at++) turn(cache, random, prompts)
  using publisher = await publishEvents(cache, LOOPBACK)
  using following = router.follow('one', followed(publisher))
  let hidden = 0
  let found = 0
  for (let round = 0; round < 12; round++) {
    await agrees(t, router, 'one', cache, prompts, `round ${round}`)
    hidden += lost(cache, prompts)
    found += prompts.filter(tokens => cache.explain(tokens).matched > 0).length
    for (let at = 0; at < 12; at++) turn(cache, random, prompts)
  }
  t.true(hidden > 0 && found > 0 && cache.stats().evictions > 0, `${hidden} ${found}`)
  const last = prompts[0] as number[]
  compute(cache, last, [BLOCK]).dispose()
  router.follow('late', followed(publisher))
  for (const worker of ['late', 'one']) await agrees(t, router, worker, cache, prompts, `${worker}, at the end`)
  t.is(following.stats().losses, 0)
  using match = cache.match(last)
  t.true(match.length > 0)
  t.is(router.route(cache.keys(last))?.blocks, match.length / BLOCK)
})

test('without attention, states alone decide', async t => {
  const random = drawn(t)
  using cache = hybridCache({ model: MAMBA, capacity: 14, events: EVENTS })
  using router = new PrefixRouter()
  router.addWorker('one')
  const prompts = Array.from({ length: 50 }, () => prompt(random))
  using publisher = await publishEvents(cache, LOOPBACK)
  router.follow('one', followed(publisher))
  let found = 0
  for (let round = 0; round < 8; round++) {
    for (let at = 0; at < 12; at++) turn(cache, random, prompts)
    await agrees(t, router, 'one', cache, prompts, `round ${round}`)
    found += prompts.filter(tokens => cache.explain(tokens).matched > 0).length
  }
  t.true(found > 0)
})

test('a log that is too short, and a worker that restarts', async t => {
  const random = drawn(t)
  using router = new PrefixRouter()
  router.addWorker('one')
  const prompts = Array.from({ length: 30 }, () => prompt(random))
  let cache = hybridCache({ ...FEW, events: 6 })
  let publisher = await publishEvents(cache, LOOPBACK)
  const where = followed(publisher)
  router.follow('one', where)
  for (let life = 0; life < 4; life++) {
    for (let round = 0; round < 3; round++) {
      // All in one turn, so that more happens than the log keeps.
      for (let at = 0; at < 15; at++) turn(cache, random, prompts)
      await agrees(t, router, 'one', cache, prompts, `life ${life}, round ${round}`)
    }
    const { next } = publisher
    publisher.dispose()
    cache.dispose()
    cache = hybridCache({ ...FEW, events: life === 1 ? EVENTS : 6 })
    if (life % 2 === 0) turn(cache, random, prompts)
    const again = async (): Promise<boolean> => {
      const made = await publishEvents(cache, { ...where, first: life === 2 ? 0 : next }).catch(() => undefined)
      if (made !== undefined) publisher = made
      return made !== undefined
    }
    t.true(await until(again))
  }
  await agrees(t, router, 'one', cache, prompts, 'at the end')
  publisher.dispose()
  cache.dispose()
})

test('messages of its own: a replay, then events', async t => {
  const random = drawn(t)
  for (const options of [FEW, { model: MAMBA, capacity: 14, events: EVENTS }]) {
    using cache = hybridCache(options)
    using router = new PrefixRouter()
    router.addWorker('one')
    const prompts = Array.from({ length: 30 }, () => prompt(random))
    for (let at = 0; at < 20; at++) turn(cache, random, prompts)
    const { events, next } = cache.replay()
    router.apply('one', events)
    t.deepEqual(differing(router, 'one', cache, prompts), [], 'the replay')
    using reader = cache.events({ from: next })
    let from = next
    for (let round = 0; round < 6; round++) {
      for (let at = 0; at < 8; at++) turn(cache, random, prompts)
      const seen = await unread(cache, reader, from)
      from += seen.length
      router.apply('one', seen)
      t.deepEqual(differing(router, 'one', cache, prompts), [], `round ${round}`)
    }
    t.is(reader.missed, 0)
  }
})

/** The events from a number on that are there, without waiting for more. They have no gaps. */
async function unread(
  cache: PagedKvCache,
  reader: AsyncIterator<CacheEvent, undefined>,
  from: number,
): Promise<CacheEvent[]> {
  const events: CacheEvent[] = []
  for (const { next } = cache.indexedKeys(); from + events.length < next;) {
    const { value } = await reader.next()
    if (value?.number !== from + events.length) throw new Error(`${value?.number} instead of ${from + events.length}`)
    events.push(value)
  }
  return events
}

test('the events of a hybrid cache, one by one', async t => {
  using cache = hybridCache({ capacity: [8, 4], events: 100 })
  using reader = cache.events()
  const keys = cache.keys(span(0, 8))
  compute(cache, span(0, 8), [4]).dispose()
  const taken = await unread(cache, reader, 0)
  t.deepEqual(
    taken.map(event => [event.number, event.type, event.type === 'cleared' ? '' : keys.indexOf(event.key)]),
    [
      [0, 'stored', 0],
      [1, 'state-stored', 0],
      [2, 'stored', 1],
      [3, 'state-stored', 1],
    ],
  )
  const { keys: blocks, states = [] } = cache.indexedKeys()
  t.deepEqual([new Set(blocks), new Set(states)], [new Set(keys), new Set(keys)])
  cache.forgetPrefixes()
  const forgotten = await unread(cache, reader, 4)
  t.deepEqual(
    forgotten.map(({ type }) => type),
    ['removed', 'removed', 'cleared', 'state-removed', 'state-removed'],
  )
  t.deepEqual(forgotten[2], { number: 6, type: 'cleared', keeps: ['tokens', 'states'] })
  compute(cache, span(0, 8)).dispose()
  const { events, next } = cache.replay()
  t.deepEqual(
    events.map(event => [event.number, event.type]),
    [
      [next, 'cleared'],
      [next, 'stored'],
      [next, 'stored'],
      [next, 'state-stored'],
    ],
  )
  t.deepEqual(events[0], { number: next, type: 'cleared', keeps: ['tokens', 'states'] })
  t.deepEqual(Object.keys(events[3] as CacheEvent).toSorted(), ['key', 'number', 'type'])
  using lone = hybridCache({ model: MAMBA, capacity: 4, events: 100 })
  compute(lone, span(0, 8), [4]).dispose()
  const replay = lone.replay().events
  t.deepEqual(replay[0], { number: 2, type: 'cleared', keeps: ['states'] })
  t.deepEqual([lone.indexedKeys().keys, lone.indexedKeys().states?.length, replay.length], [[], 2, 3])
})

test('blocks count up to a state, for workers that say that they keep states', t => {
  using cache = hybridCache()
  using router = new PrefixRouter()
  router.addWorker('one')
  router.addWorker('plain')
  const [first, second, third] = cache.keys(span(0, 12)) as [string, string, string]
  const chain: RoutedEvent[] = [first, second, third].map((key, at, all) => ({
    type: 'stored',
    key,
    parent: all[at - 1] ?? first,
    isFirst: at === 0,
  }))
  router.apply('plain', chain.slice(0, 2))
  router.apply('one', [{ type: 'cleared', keeps: ['tokens', 'states'] }, ...chain])
  const lengths = (): [string, number][] =>
    router.lengths([first, second, third]).map(({ worker, blocks }) => [worker, blocks])
  t.deepEqual(lengths(), [['plain', 2]])
  router.apply('one', [
    { type: 'state-stored', key: third },
    { type: 'state-stored', key: first },
  ])
  t.deepEqual(lengths(), [
    ['one', 3],
    ['plain', 2],
  ])
  router.apply('one', [{ type: 'state-removed', key: third }])
  t.deepEqual(lengths(), [
    ['plain', 2],
    ['one', 1],
  ])
  // Load decides between a short prefix here and a longer one there.
  router.setLoad('plain', 10)
  t.deepEqual(router.route([first, second, third], { loadWeight: 1 }), { worker: 'one', blocks: 1 })
  router.apply('one', [{ type: 'removed', key: first }])
  t.deepEqual(lengths(), [['plain', 2]])
  router.apply('one', [{ type: 'cleared' }, ...chain, { type: 'state-stored', key: second }])
  t.deepEqual(lengths(), [
    ['one', 2],
    ['plain', 2],
  ])
  for (const keeps of ['states', [], ['tokens', 'state'], [1], null, {}])
    throwsCode(t, 'INVALID_ARGUMENT', () => router.apply('one', [{ type: 'cleared', keeps } as never]))
  throwsCode(t, 'INVALID_ARGUMENT', () => router.apply('one', [{ type: 'state-stored', key: 'x' }]))
  throwsCode(t, 'INVALID_ARGUMENT', () => router.apply('one', [{ type: 'state-kept', key: first } as never]))
})

test('states in a tier below count, as long as they are there', async t => {
  const path = await folderOf(t)
  for (const [tiers, expected] of [
    [{ disk: { path: join(path, 'kv') } }, 4],
    [{ memory: { limitBytes: 1e6 } }, 4],
    [{ memory: { limitBytes: 200 } }, 0],
  ] as const) {
    using cache = hybridCache({ capacity: [8, 4], events: EVENTS, tiers })
    using router = new PrefixRouter()
    router.addWorker('one')
    using publisher = await publishEvents(cache, LOOPBACK)
    router.follow('one', followed(publisher))
    const blocks = (tokens: readonly number[]): number | undefined => router.route(cache.keys(tokens))?.blocks
    compute(cache, span(0, 18), [8, 16]).dispose()
    t.true(await until(() => blocks(span(0, 18)) === 4))
    for (const first of [100, 200, 300]) {
      compute(cache, span(first, first + 18), [16]).dispose()
      await setImmediate()
    }
    t.is(cache.match(span(0, 18)).length, 0)
    t.true(await cache.flush(60_000))
    t.true(await until(() => blocks(span(0, 18)) === expected), `${blocks(span(0, 18))} of ${expected}`)
    if (expected > 0) t.is((await cache.match(span(0, 18), { tiers: 'all' })).length, expected * BLOCK)
    cache.forgetPrefixes()
    t.true(await until(() => blocks(span(0, 18)) === 0))
  }
})

// The indexer loses the blocks behind one that is removed and stored again, so only states are evicted here.
withDynamo("Dynamo counts attention's blocks, whatever happens to states", async t => {
  const random = drawn(t)
  const indexer = await Indexer.start()
  t.teardown(() => indexer.stop())
  using cache = hybridCache({ capacity: [4000, 6], events: EVENTS })
  using publisher = await publishEvents(cache, LOOPBACK)
  using dynamo = new DynamoRouter({ url: indexer.url, blockSize: BLOCK, model: 'm', deadline: 10_000 })
  await dynamo.addWorker('one', followed(publisher))
  const prompts = Array.from({ length: 20 }, () => prompt(random))
  let hidden = 0
  let marks = 1_000_000
  for (let round = 0; round < 8; round++) {
    for (let at = 0; at < 20; at++) turn(cache, random, prompts)
    hidden += lost(cache, prompts)
    const differ = async (): Promise<number[][]> => {
      // A subscriber that connects late learns of a gap from the next message.
      compute(cache, span((marks += BLOCK), marks + BLOCK)).dispose()
      const asked = prompts.map(async tokens => {
        const [longest] = await dynamo.lengths(tokens)
        return [tokens.length, longest?.blocks ?? 0, (cache.explain(tokens).cached ?? 0) / BLOCK]
      })
      return (await Promise.all(asked)).filter(([, routed, own]) => routed !== own)
    }
    t.true(await until(async () => (await differ()).length === 0, 50), JSON.stringify(await differ()))
  }
  t.true(hidden > 0 && (cache.stats().pools[1]?.evictions ?? 0) > 0)
})
