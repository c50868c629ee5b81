// Stores of the caller's own that answer with anything, late, or never: each answer that is wrong is a miss, no call is rejected, no rejection is left
// unhandled, and every attempt counts once.
import { setTimeout } from 'node:timers/promises'

import test, { type ExecutionContext } from 'ava'

import {
  attendAsync,
  type BlockStore,
  isKvTideError,
  PagedKvCache,
  type StoreEntry,
  type StoreEvent,
} from '../../index.js'
import { HandClock } from '../support/hand-clock.js'
import { layered, LAYERED } from '../support/layered.js'
import { Shelf } from '../support/shelf.js'
import { rejected, throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'
import { until } from '../support/until.js'

const PROMPT = span(0, 21)
/** A deadline that no answer of these stores reaches. */
const LATE = 60_000

type CallName = 'getMany' | 'hasMany' | 'putMany'
type Answer = (name: CallName, keys: readonly string[]) => unknown

/** A store in a map. Once it has an `answer`, that replaces every answer of its own. */
class OddStore implements BlockStore {
  readonly values = new Map<string, Uint8Array>()
  answer: Answer | undefined

  async getMany(keys: readonly string[]): Promise<(Uint8Array | undefined)[]> {
    return (this.answer?.('getMany', keys) ?? keys.map(key => this.values.get(key))) as Uint8Array[]
  }

  async putMany(entries: readonly StoreEntry[]): Promise<unknown> {
    if (this.answer !== undefined)
      return this.answer(
        'putMany',
        entries.map(({ key }) => key),
      )
    for (const { key, value } of entries) this.values.set(key, value.slice())
    return undefined
  }

  async hasMany(keys: readonly string[]): Promise<boolean[]> {
    return (this.answer?.('hasMany', keys) ?? keys.map(key => this.values.has(key))) as boolean[]
  }
}

const cacheOf = (store: BlockStore): PagedKvCache =>
  new PagedKvCache({ ...LAYERED, tiers: { deadline: LATE, store: { store } } })

function compute(cache: PagedKvCache, tokens: readonly number[]): void {
  const [k, v] = layered(tokens)
  using sequence = cache.openSequence()
  sequence.append({ k, v, tokens })
}

class Strange extends Array<unknown> {
  static override get [Symbol.species](): ArrayConstructor {
    return function () {
      return 5
    } as unknown as ArrayConstructor
  }
}

const yes = (keys: readonly string[]): boolean[] => keys.map(() => true)
/** Answers that all keys exist, and changes each value right after it was handed over. */
const changing =
  (value: () => Uint8Array, change: (value: Uint8Array) => void): Answer =>
  (name, keys) =>
    name === 'hasMany'
      ? yes(keys)
      : keys.map(() => {
          const made = value()
          queueMicrotask(() => change(made))
          return made
        })
const resizable = (): Uint8Array =>
  new Uint8Array(Reflect.construct(ArrayBuffer, [100, { maxByteLength: 200 }]) as ArrayBuffer)
const resize = (value: Uint8Array, bytes: number): unknown =>
  Reflect.apply(Reflect.get(value.buffer, 'resize') as (bytes: number) => void, value.buffer, [bytes])

const ANSWERS: Readonly<Record<string, Answer>> = {
  'a list of holes': (_, keys) => Object.assign([], { length: keys.length }),
  'a list with a hole': (_, keys) => {
    const list = yes(keys)
    delete list[1]
    return list
  },
  'a list of another class': (_, keys) => Strange.from(yes(keys)),
  'a list with a map of its own': (_, keys) => Object.assign(yes(keys), { map: () => 7 }),
  'a proxy of a list, which throws': (_, keys) =>
    new Proxy(yes(keys), {
      get: () => {
        throw new Error('mine')
      },
    }),
  'a getter that throws': (_, keys) =>
    Object.defineProperty(yes(keys), 0, {
      get: () => {
        throw new Error('mine')
      },
    }),
  'a promise that settles twice': (_, keys) => ({
    // eslint-disable-next-line unicorn/no-thenable
    then: (resolve: (value: unknown) => void) => {
      resolve(yes(keys))
      resolve(3)
      throw new Error('mine')
    },
  }),
  'a thrown symbol': () => {
    throw Symbol('mine')
  },
  'a thrown object without a text': () => {
    throw Object.create(null)
  },
  'values of shared memory': changing(
    () => new Uint8Array(new SharedArrayBuffer(100)),
    value => value.fill(1),
  ),
  'values that are detached right after': changing(
    () => new Uint8Array(100),
    value => structuredClone(value, { transfer: [value.buffer as ArrayBuffer] }),
  ),
  'values that shrink right after': changing(resizable, value => resize(value, 0)),
  'values that grow right after': changing(resizable, value => resize(value, 200)),
}

for (const [what, answer] of Object.entries(ANSWERS)) {
  test(`an answer that is wrong is a miss, for a match and for what is written: ${what}`, async t => {
    const store = new OddStore()
    {
      await using first = cacheOf(store)
      compute(first, PROMPT)
      t.true(await first.flush(LATE))
    }
    store.answer = answer
    await using cache = cacheOf(store)
    for (let turn = 0; turn < 2; turn++) {
      using match = await cache.match(PROMPT, { tiers: 'all' })
      t.is(match.length, 0)
    }
    compute(cache, span(100, 121))
    // Without a flush, nothing waits for the writer: a rejection of its own would end the process.
    await setTimeout(20)
    t.true(await cache.flush(LATE))
    t.is(cache.match(span(100, 121)).length, 20)
    cache.checkInvariants()
  })
}

test('values that were right, and change before they are read, are misses', async t => {
  const store = new OddStore()
  {
    await using first = cacheOf(store)
    compute(first, PROMPT)
    t.true(await first.flush(LATE))
  }
  const changes: Readonly<Record<string, (value: Uint8Array) => void>> = {
    'a bit': value => {
      value[value.length >> 1] = (value[value.length >> 1] as number) ^ 1
    },
    zeros: value => value.fill(0),
    nothing: value => structuredClone(value, { transfer: [value.buffer as ArrayBuffer] }),
  }
  for (const [what, change] of Object.entries(changes)) {
    store.answer = (name, keys) => {
      if (name !== 'getMany') return yes(keys)
      const values = keys.map(key => Uint8Array.from(store.values.get(key) as Uint8Array))
      // Before the answer is read.
      for (const value of values) change(value)
      return values
    }
    using cache = cacheOf(store)
    using match = await cache.match(PROMPT, { tiers: 'all' })
    t.is(match.length, 0, what)
  }
})

test('a value at any place of its buffer is found', async t => {
  const store = new OddStore()
  {
    await using first = cacheOf(store)
    compute(first, PROMPT)
    t.true(await first.flush(LATE))
  }
  for (let offset = 0; offset < 8; offset++) {
    store.answer = (name, keys) => {
      if (name !== 'getMany') return yes(keys)
      return keys.map(key => {
        const value = store.values.get(key) as Uint8Array
        const wide = new Uint8Array(value.length + 16).fill(255)
        wide.set(value, offset)
        return wide.subarray(offset, offset + value.length)
      })
    }
    using cache = cacheOf(store)
    using match = await cache.match(PROMPT, { tiers: 'all' })
    t.is(match.length, 20, `${offset} bytes behind the start`)
  }
})

const turn = (): Promise<void> => new Promise(resolve => setImmediate(resolve))
/** The number of calls of a store that may be in flight. */
const CALLS_MAX = 32
/** Prompts that no store has. */
const others = (count: number): number[][] => span(0, count).map(at => span(1000 + 100 * at, 1021 + 100 * at))

async function filled(): Promise<Shelf> {
  const shelf = new Shelf()
  await using cache = cacheOf(shelf)
  compute(cache, PROMPT)
  return shelf
}

/** Makes calls of a shelf wait until the returned function is called. */
function held(shelf: Shelf): () => void {
  let release!: () => void
  const released = new Promise<void>(resolve => {
    release = resolve
  })
  shelf.before = () => released
  return release
}

/** Takes all blocks of a cache but some that are in use: cached ones are evicted, and each must be free. */
function takeAll(cache: PagedKvCache, used = 0): void {
  const sequence = cache.openSequence()
  cache.ensureCapacity(sequence, (cache.capacity - used) * cache.blockSize)
  sequence.drop()
}

/** Checks that all blocks are free, and that a shelf is called and its blocks are found, which needs a permit. */
async function findsAll(t: ExecutionContext, cache: PagedKvCache, shelf: Shelf): Promise<void> {
  takeAll(cache)
  shelf.before = undefined
  const { length: calls } = shelf.calls
  const [unknown] = others(1) as [number[]]
  t.is((await cache.match(unknown, { tiers: 'all' })).length, 0)
  t.is(shelf.calls.length, calls + 1)
  const match = await cache.match(PROMPT, { tiers: 'all' })
  t.is(match.length, PROMPT.length - 1)
  match.dispose()
  cache.checkInvariants()
}

test.serial(
  'a store that never answers is no longer asked, though each match has ended before the timeout',
  async t => {
    const clock = HandClock.inPlace(t)
    const shelf = new Shelf()
    shelf.before = () => new Promise(() => {})
    const events: StoreEvent[] = []
    const store = { store: shelf, onChange: (event: StoreEvent) => events.push(event) }
    using cache = new PagedKvCache({ ...LAYERED, tiers: { store } })
    /** Looks once, and waits for the timeout. Returns true if the store was called. */
    const look = async (): Promise<boolean> => {
      const { length: calls } = shelf.calls
      const looking = cache.match(PROMPT, { tiers: 'all', deadline: 100 })
      await turn()
      const isCalled = shelf.calls.length > calls
      clock.advance(100)
      t.is((await looking).length, 0)
      clock.advance(1900)
      await turn()
      return isCalled
    }
    for (let time = 0; time < 3; time++) t.true(await look())
    // On a slow machine, the first back-off may be over: then the store is being probed.
    if (!t.not(cache.stats().tiers?.store?.health.state, 'available')) return
    // Only probes remain, and they become ever rarer.
    t.true(await until(async () => !(await look())))
    t.not(cache.stats().tiers?.store?.health.state, 'available')
    t.deepEqual(events, [{ type: 'unavailable', reason: 'timedOut', about: 'no answer in 2000 ms' }])
  },
)

test.serial('a match that waits until fewer calls are in flight ends at its deadline', async t => {
  const clock = HandClock.inPlace(t)
  const shelf = await filled()
  using cache = cacheOf(shelf)
  const release = held(shelf)
  const ended: string[] = []
  const looks = others(CALLS_MAX).map(async prompt => {
    t.is((await cache.match(prompt, { tiers: 'all' })).length, 0)
    ended.push('hanging')
  })
  await turn()
  const { length: calls } = shelf.calls
  const waiting = cache
    .match(PROMPT, { tiers: 'all', deadline: 20 })
    .then(({ length }) => ended.push(`found ${length}`))
  for (let time = 0; time < 20; time++) {
    clock.advance(1)
    await turn()
  }
  t.is(shelf.calls.length, calls)
  const endedFirst = [...ended]
  release()
  await Promise.all(looks)
  t.deepEqual(endedFirst, ['found 0'])
  await waiting
  await findsAll(t, cache, shelf)
})

for (const name of ['hasMany', 'getMany']) {
  test.serial(`an abort ends a match at once if ${name} never answers`, async t => {
    const clock = HandClock.inPlace(t)
    const shelf = await filled()
    using cache = cacheOf(shelf)
    for (let time = 0; time <= CALLS_MAX; time++) {
      const controller = new AbortController()
      const asked = new Promise<void>(resolve => {
        shelf.before = called => {
          if (called !== name) return undefined
          resolve()
          return new Promise(() => {})
        }
      })
      const looking = rejected(cache.match(PROMPT, { tiers: 'all', signal: controller.signal }), 'ABORTED')
      await asked
      const { signal } = shelf.calls.at(-1) as Shelf['calls'][number]
      t.false(signal.aborted)
      controller.abort(new Error('enough'))
      t.is(((await looking).cause as Error).message, 'enough')
      await turn()
      t.true(signal.aborted, 'the store learns that its answer is no longer needed')
    }
    await findsAll(t, cache, shelf)
    t.is(clock.now(), 0)
    t.is(cache.stats().tiers?.store?.health.state, 'available')
  })
}

test.serial('an abort at any point of a match leaves no call in flight and no block taken', async t => {
  // Time stands still: without a permit, a match would never end.
  HandClock.inPlace(t)
  const shelf = await filled()
  using cache = cacheOf(shelf)
  let [aborted, found] = [0, 0]
  for (let time = 0; time <= CALLS_MAX; time++) {
    for (let after = 0; after < 48; after++) {
      takeAll(cache)
      const controller = new AbortController()
      const { signal } = controller
      shelf.before = name => {
        if (name === 'hasMany')
          void (async () => {
            for (let step = 0; step < after; step++) await undefined
            controller.abort()
          })()
      }
      try {
        using match = await cache.match(PROMPT, { tiers: 'all', signal })
        found += match.length
      } catch (error) {
        if (!isKvTideError(error) || error.code !== 'ABORTED') throw error
        aborted += 1
      }
    }
  }
  t.true(aborted > 0 && found > 0, `${aborted} were aborted, ${found} tokens were found`)
  await findsAll(t, cache, shelf)
})

test.serial('answers count that come while background work uses the cache, or while its clock throws', async t => {
  // Time stands still for deadlines: without a permit, a match would never end.
  HandClock.inPlace(t)
  const shelf = await filled()
  const mine = new Error('mine')
  let isThrowing = false
  const now = (): number => {
    if (isThrowing) throw mine
    return 0
  }
  using cache = new PagedKvCache({ ...LAYERED, now, tiers: { deadline: LATE, store: { store: shelf } } })
  const kept = cache.openSequence()
  const [k, v] = layered(span(500, 520))
  kept.append({ k, v, tokens: span(500, 520) })
  // Until the limit, each change of the cache sets its clock.
  kept.retain({ priority: 60, until: 1000 })
  t.true(await cache.flush(LATE))
  const looks = async (): Promise<[release: () => void, Promise<PromiseSettledResult<number>[]>]> => {
    const release = held(shelf)
    const { length: calls } = shelf.calls
    const looking = [PROMPT, ...others(CALLS_MAX - 1)].map(async prompt => {
      using match = await cache.match(prompt, { tiers: 'all' })
      return match.length
    })
    await turn()
    t.is(shelf.calls.length, calls + CALLS_MAX)
    return [release, Promise.allSettled(looking)]
  }
  {
    const [release, looking] = await looks()
    const reading = attendAsync({ data: new Float32Array(2), shape: [1, 2, 1] }, { cache, layer: 0, sequences: [kept] })
    throwsCode(t, 'BUSY', () => cache.createSequence())
    // The answers come before the background work has ended, which takes a turn of the event loop.
    release()
    t.deepEqual(
      await looking,
      span(0, CALLS_MAX).map(at => ({ status: 'fulfilled', value: at === 0 ? 20 : 0 })),
    )
    await reading
  }
  takeAll(cache, 5)
  {
    const [release, looking] = await looks()
    isThrowing = true
    release()
    for (const result of await looking) t.is((result as PromiseRejectedResult).reason, mine)
    isThrowing = false
  }
  kept.drop()
  await findsAll(t, cache, shelf)
})
