// The router against an oracle that keeps each worker's blocks as a set of names, and against the rules of what it refuses.
import { createHash } from 'node:crypto'

import test from 'ava'
import fc from 'fast-check'

import { type CacheEvent, PagedKvCache, PrefixRouter, type Route } from '../../index.js'
import { collected } from '../support/garbage.js'
import { check } from '../support/properties.js'
import { throwsCode } from '../support/throws.js'

const WORKERS = ['one', 'two', 'three', 'four']
const DEPTH = 5

/** The name of a prefix of a small world: a path of digits. */
const nameOf = (path: string): string => createHash('sha256').update(`prefix ${path}`).digest('hex')
const namesOf = (path: string): string[] => [...path].map((_, at) => nameOf(path.slice(0, at + 1)))

const stored = (path: string): CacheEvent => ({
  number: 0,
  type: 'stored',
  key: nameOf(path),
  parent: nameOf(path.slice(0, -1)),
  isFirst: path.length === 1,
  tokens: Uint32Array.of(1),
})
const removed = (path: string): CacheEvent => ({ number: 0, type: 'removed', key: nameOf(path) })
const cleared: CacheEvent = { number: 0, type: 'cleared' }

/** The names that each worker has, and the answers that follow from them. */
class Oracle {
  readonly workers = new Map<string, { readonly held: Set<string>; load: number }>()

  length(worker: string, path: string): number {
    const { held } = this.workers.get(worker) as { held: Set<string> }
    let length = 0
    while (length < path.length && held.has(path.slice(0, length + 1))) length += 1
    return length
  }

  lengths(path: string): Map<string, number> {
    const all = [...this.workers.keys()].map((worker): [string, number] => [worker, this.length(worker, path)])
    return new Map(all.filter(([, length]) => length > 0))
  }

  /** The workers that are as good as can be. */
  best(path: string, weight: number | undefined): Route[] {
    const cost = (worker: string, blocks: number): number => {
      const { load } = this.workers.get(worker) as { load: number }
      return weight === undefined ? -blocks : weight * load - blocks
    }
    const all = [...this.workers].map(([worker, { load }]) => ({ worker, load, blocks: this.length(worker, path) }))
    const least = Math.min(...all.map(({ worker, blocks }) => cost(worker, blocks)))
    const cheapest = all.filter(({ worker, blocks }) => cost(worker, blocks) === least)
    const idle = Math.min(...cheapest.map(({ load }) => load))
    return cheapest
      .filter(({ load }) => weight !== undefined || load === idle)
      .map(({ worker, blocks }) => ({ worker, blocks }))
  }
}

type Action =
  | { readonly kind: 'add' | 'remove' | 'clear'; readonly worker: string }
  | { readonly kind: 'store' | 'evict' | 'drop'; readonly worker: string; readonly path: string }
  | { readonly kind: 'load'; readonly worker: string; readonly load: number }

const worker = fc.constantFrom(...WORKERS)
const path = fc.stringMatching(new RegExp(`^[01]{1,${DEPTH}}$`))
const action: fc.Arbitrary<Action> = fc.oneof(
  {
    weight: 3,
    arbitrary: fc.record({ kind: fc.constantFrom('add', 'remove', 'clear'), worker }) as fc.Arbitrary<Action>,
  },
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('store'), worker, path }) as fc.Arbitrary<Action> },
  { weight: 4, arbitrary: fc.record({ kind: fc.constantFrom('evict', 'drop'), worker, path }) as fc.Arbitrary<Action> },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('load'),
      worker,
      load: fc.integer({ min: -3, max: 6 }),
    }) as fc.Arbitrary<Action>,
  },
)

/** Makes an action on both; one that is refused by the oracle is refused by the router. */
function act(router: PrefixRouter, oracle: Oracle, given: Action): void {
  const refused = (call: () => void): void => {
    try {
      call()
    } catch {
      return
    }
    throw new Error(`${JSON.stringify(given)} was not refused`)
  }
  const known = oracle.workers.get(given.worker)
  if (given.kind === 'add') {
    if (known !== undefined) return refused(() => router.addWorker(given.worker))
    oracle.workers.set(given.worker, { held: new Set(), load: 0 })
    return router.addWorker(given.worker)
  }
  if (known === undefined)
    return refused(() =>
      given.kind === 'load'
        ? router.setLoad(given.worker, given.load)
        : given.kind === 'remove'
          ? router.removeWorker(given.worker)
          : router.apply(given.worker, [cleared]),
    )
  if (given.kind === 'remove') {
    oracle.workers.delete(given.worker)
    return router.removeWorker(given.worker)
  }
  if (given.kind === 'load') {
    known.load = given.load
    return router.setLoad(given.worker, given.load)
  }
  router.apply(given.worker, eventsOf(known.held, given))
}

/** The events of one call, as a cache sends them: a block behind one that is there, an end that goes, or one that leaves what is behind it. */
function eventsOf(held: Set<string>, given: Action): CacheEvent[] {
  if (given.kind === 'clear') {
    held.clear()
    return [cleared]
  }
  const { path: of } = given as { path: string }
  if (given.kind === 'store') {
    const news = [...of].map((_, at) => of.slice(0, at + 1)).filter(prefix => !held.has(prefix))
    news.forEach(prefix => held.add(prefix))
    return news.map(stored)
  }
  const gone = [...held]
    .filter(prefix => (given.kind === 'drop' ? prefix === of : prefix.startsWith(of)))
    .sort((one, other) => other.length - one.length)
  gone.forEach(prefix => held.delete(prefix))
  return gone.map(removed)
}

function compare(router: PrefixRouter, oracle: Oracle, of: string): void {
  const names = namesOf(of)
  const lengths = router.lengths(names)
  const wanted = oracle.lengths(of)
  const same =
    lengths.length === wanted.size && lengths.every(({ worker: name, blocks }) => wanted.get(name) === blocks)
  if (!same) throw new Error(`${of}: lengths ${JSON.stringify(lengths)}, not ${JSON.stringify([...wanted])}`)
  if (lengths.some(({ blocks }, at) => at > 0 && blocks > (lengths[at - 1] as Route).blocks))
    throw new Error('the longest comes first')
  for (const loadWeight of [undefined, 0, 0.5, 1, 4]) {
    const options = loadWeight === undefined ? {} : { loadWeight }
    const best = oracle.workers.size === 0 ? [undefined] : oracle.best(of, loadWeight)
    for (const keys of [names, PrefixRouter.shortKeys(names)]) {
      const route = router.route(keys, options)
      const isGood = best.some(one => one?.worker === route?.worker && one?.blocks === route?.blocks)
      if (!isGood)
        throw new Error(
          `${of}, load weight ${loadWeight}: ${JSON.stringify(route)}, not one of ${JSON.stringify(best)}`,
        )
    }
  }
}

test('routes and lengths are those of a list of names', t => {
  const given = fc.record({
    actions: fc.array(action, { minLength: 1, maxLength: 40 }),
    paths: fc.array(path, { minLength: 1, maxLength: 5 }),
  })
  check(t, given, ({ actions, paths }) => {
    using router = new PrefixRouter()
    const oracle = new Oracle()
    for (const name of WORKERS.slice(1)) act(router, oracle, { kind: 'add', worker: name })
    for (const one of actions) {
      act(router, oracle, one)
      for (const of of paths) compare(router, oracle, of)
    }
    const blocks = new Set([...oracle.workers.values()].flatMap(({ held }) => [...held])).size
    const { workers, blocks: counted, bytes } = router.stats()
    // A block that no worker has may be kept as the place of those behind it.
    const isCounted = actions.every(({ kind }) => kind !== 'drop')
    if (workers !== oracle.workers.size || (isCounted ? counted !== blocks : counted < blocks))
      throw new Error(`${workers} workers, ${counted} blocks, not ${oracle.workers.size} and ${blocks}`)
    if (!(bytes >= 0)) throw new Error('bytes')
  })
})

test('no workers have nothing, and the one with the least load takes what no worker has', t => {
  using router = new PrefixRouter()
  t.is(router.route(namesOf('010')), undefined)
  t.deepEqual(router.lengths(namesOf('010')), [])
  t.is(router.route([]), undefined)
  router.addWorker('one')
  router.addWorker('two')
  router.setLoad('one', 1)
  t.deepEqual(router.route([]), { worker: 'two', blocks: 0 })
  t.deepEqual(router.route(namesOf('010')), { worker: 'two', blocks: 0 })
  router.apply('one', [stored('0'), stored('01')])
  t.deepEqual(router.route(namesOf('010')), { worker: 'one', blocks: 2 })
  t.deepEqual(router.route(namesOf('010'), { loadWeight: 1.5 }), { worker: 'one', blocks: 2 })
  t.deepEqual(router.route(namesOf('010'), { loadWeight: 2.5 }), { worker: 'two', blocks: 0 })
  router.removeWorker('two')
  router.addWorker('two')
  router.setLoad('one', -1)
  t.deepEqual(router.route([]), { worker: 'one', blocks: 0 }, 'a worker that is added again has no load')
})

test('events are taken in all or not at all, in whatever place a wrong one stands', t => {
  using router = new PrefixRouter()
  router.addWorker('one')
  router.apply('one', [stored('1')])
  const good = [cleared, stored('0'), stored('01'), stored('010')]
  const wrong: [unknown, string][] = [
    [null, 'events[N]'],
    [{ type: 'moved' }, 'events[N].type'],
    [{ type: 'stored', parent: nameOf('0'), isFirst: false }, 'events[N].key'],
    [{ ...stored('01'), isFirst: 1 }, 'events[N].isFirst'],
    [{ ...stored('01'), parent: 5 }, 'events[N].parent'],
    [{ type: 'removed' }, 'events[N].key'],
    [{ type: 'removed', key: 'ab' }, 'events[N].key'],
    [{ ...stored('01'), key: 'g'.repeat(64) }, 'events[N].key'],
    [{ ...stored('01'), parent: 'é'.repeat(32) }, 'events[N].parent'],
    [{ ...stored('01'), parent: `+${'0'.repeat(63)}` }, 'events[N].parent'],
    [{ ...stored('01'), key: `${'0'.repeat(63)}\n` }, 'events[N].key'],
  ]
  for (const [event, argument] of wrong) {
    for (let place = 0; place <= good.length; place++) {
      const error = throwsCode(t, 'INVALID_ARGUMENT', () =>
        router.apply('one', good.toSpliced(place, 0, event as CacheEvent)),
      )
      t.is(error.details.argument, argument.replace('[N]', `[${place}]`))
      t.deepEqual(router.lengths(namesOf('1')), [{ worker: 'one', blocks: 1 }])
      t.deepEqual(router.lengths(namesOf('010')), [])
    }
  }
  throwsCode(t, 'INVALID_ARGUMENT', () => router.apply('nobody', good))
  t.deepEqual(router.lengths(namesOf('010')), [])
})

test('an event that changes while it is read is read once', t => {
  using router = new PrefixRouter()
  router.addWorker('one')
  let reads = 0
  const event = {
    ...stored('0'),
    get key() {
      return reads++ === 0 ? nameOf('0') : 'nonsense'
    },
  }
  router.apply('one', [event])
  t.deepEqual([reads, router.lengths(namesOf('0'))], [1, [{ worker: 'one', blocks: 1 }]])
})

test('what is not known, what is there already, and what is too much is refused', t => {
  using router = new PrefixRouter()
  for (const call of [
    () => router.removeWorker('nobody'),
    () => router.setLoad('nobody', 1),
    () => router.apply('nobody', []),
    () => router.follow('nobody', { endpoint: 'tcp://127.0.0.1:1' }),
  ])
    t.deepEqual(throwsCode(t, 'INVALID_ARGUMENT', call).details, {
      argument: 'worker',
      value: 'nobody',
      expected: 'the name of a worker that was added',
    })
  for (let at = 0; at < 1024; at++) router.addWorker(`worker ${at}`)
  t.is(throwsCode(t, 'INVALID_ARGUMENT', () => router.addWorker('one more')).details.expected, 'at most 1024 workers')
  router.removeWorker('worker 7')
  router.addWorker('one more')
  t.is(throwsCode(t, 'INVALID_ARGUMENT', () => router.addWorker('one more')).details.argument, 'worker')
  for (const loadWeight of [-1, NaN, Infinity, 1e300])
    throwsCode(t, 'INVALID_ARGUMENT', () => router.route([], { loadWeight }))
  for (const load of [NaN, Infinity, 1e300]) throwsCode(t, 'INVALID_ARGUMENT', () => router.setLoad('one more', load))
  for (const key of ['ab', nameOf('0').toUpperCase(), `${nameOf('0')}0`, `${'0'.repeat(63)}g`]) {
    const keys = [nameOf('1'), key]
    for (const call of [() => PrefixRouter.shortKeys(keys), () => router.route(keys), () => router.lengths(keys)]) {
      t.deepEqual(throwsCode(t, 'INVALID_ARGUMENT', call).details, {
        argument: 'keys[1]',
        value: key,
        expected: '64 hexadecimal digits',
      })
    }
  }
})

test('keys of a cache lead to the worker that has them, in both forms', t => {
  const options = { capacity: 8, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, events: 100 }
  using cache = new PagedKvCache(options)
  using router = new PrefixRouter()
  router.addWorker('one')
  router.addWorker('two')
  const data = { data: new Float32Array(6), shape: [1, 1, 6, 1] }
  cache.openSequence().append({ tokens: [1, 2, 3, 4, 5, 6], k: data, v: data })
  router.apply('two', cache.replay().events)
  for (const tokens of [
    [1, 2, 3, 4, 5, 6, 7],
    [1, 2, 3, 9, 9],
    [1, 2, 3],
    [9, 9, 9],
  ]) {
    const keys = cache.keys(tokens)
    const blocks = cache.match(tokens).length / 2
    t.is(router.route(keys)?.blocks, blocks, String(tokens))
    t.deepEqual(router.route(PrefixRouter.shortKeys(keys)), router.route(keys))
    if (blocks > 0) t.is(router.route(keys)?.worker, 'two')
  }
})

test('a router that is not held goes, with what it follows', async t => {
  let gone = 0
  const registry = new FinalizationRegistry(() => (gone += 1))
  const make = (): void => {
    const router = new PrefixRouter()
    router.addWorker('one')
    router.follow('one', { endpoint: 'tcp://127.0.0.1:1' })
    registry.register(router, undefined)
  }
  for (let at = 0; at < 20; at++) make()
  t.true(await collected(() => gone === 20))
})
