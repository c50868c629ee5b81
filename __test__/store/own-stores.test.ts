// Stores of the caller's own that answer with anything: each answer that is wrong is a miss, no call is rejected, and no rejection is left unhandled.
import { setTimeout } from 'node:timers/promises'

import test from 'ava'

import { type BlockStore, PagedKvCache, type StoreEntry } from '../../index.js'
import { layered, LAYERED } from '../support/layered.js'
import { span } from '../support/tokens.js'

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
