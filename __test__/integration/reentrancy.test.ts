// Code of the caller's that runs in the middle of a call: getters, callbacks, the clock of a cache, and a store of the caller's own.
import { join } from 'node:path'

import test from 'ava'

import { isKvTideError, KvCache, PagedKvCache, type Sequence } from '../../index.js'
import { inOwnFolder } from '../support/arguments/files.js'
import { reentrant } from '../support/arguments/reentrant.js'
import { attendRows } from '../support/arguments/rows-attend.js'
import { contiguousRows } from '../support/arguments/rows-contiguous.js'
import { modelRows } from '../support/arguments/rows-model.js'
import { onnxRows } from '../support/arguments/rows-onnx.js'
import { otherRows } from '../support/arguments/rows-others.js'
import { pagedRows } from '../support/arguments/rows-paged.js'
import { routerRows } from '../support/arguments/rows-router.js'
import { storeRows } from '../support/arguments/rows-stores.js'
import { folderOf } from '../support/folder.js'
import { layered, LAYERED } from '../support/layered.js'
import { Shelf } from '../support/shelf.js'
import { rejected, throwsCode } from '../support/throws.js'
import { span, tokens } from '../support/tokens.js'

inOwnFolder()

const LATE = 60_000
const second = (): unknown => 1000

test.serial(
  'an argument that changes or ends the object of its call, at any of its reads or right after, breaks nothing',
  async t => {
    const { count, acted, wrong } = await reentrant([
      ...contiguousRows,
      ...attendRows,
      ...pagedRows,
      ...modelRows,
      ...otherRows,
      ...onnxRows,
      ...routerRows,
      ...storeRows,
    ])
    t.log(`${count} calls, ${acted} of them acted upon`)
    t.deepEqual(wrong, [])
    t.true(acted > 300)
  },
)

function computed(cache: PagedKvCache, of: readonly number[]): Sequence {
  const [k, v] = layered(of)
  const sequence = cache.openSequence()
  sequence.append({ k, v, tokens: of })
  return sequence
}

const CALLS: Readonly<Record<string, (cache: PagedKvCache) => unknown>> = {
  'dispose of the cache': cache => cache.dispose(),
  'forget its prefixes': cache => cache.forgetPrefixes(),
  'compute another prompt': cache => computed(cache, span(500, 509)).dispose(),
  'look in the tiers again': cache => cache.match(span(0, 21), { tiers: 'all', deadline: 5 }),
  'flush it': cache => cache.flush(5),
  'save it': cache => cache.saveBytes(),
}

function coded(error: unknown): void {
  if (!isKvTideError(error) || error.code === 'INTERNAL') throw error
}

/** Makes a call whose errors do not matter, unless they have no code. */
function free(call: () => unknown): void {
  try {
    const answer = call()
    if (answer instanceof Promise) answer.catch(coded)
  } catch (error) {
    coded(error)
  }
}

for (const [what, call] of Object.entries(CALLS)) {
  test(`a store of the caller's own may ${what} in each of its calls`, async t => {
    const shelf = new Shelf()
    const made = (): PagedKvCache =>
      new PagedKvCache({ ...LAYERED, capacity: 16, tiers: { deadline: LATE, store: { store: shelf } } })
    {
      await using first = made()
      computed(first, span(0, 21)).dispose()
      t.true(await first.flush(LATE))
    }
    for (const name of ['hasMany', 'getMany', 'putMany']) {
      const cache = made()
      let calls = 0
      shelf.before = asked => {
        if (asked !== name || calls++ > 0) return
        free(() => call(cache))
      }
      const isEnding = what === 'dispose of the cache'
      if (name === 'putMany') computed(cache, span(200, 221)).dispose()
      try {
        using match = await cache.match(span(0, 21), { tiers: 'all' })
        t.true([0, 20].includes(match.length), `${name}: ${match.length}`)
        t.is(await cache.flush(LATE), !isEnding || calls === 0, name)
        cache.checkInvariants()
      } catch (error) {
        t.true(isEnding && isKvTideError(error) && error.code === 'DISPOSED', String(error))
      }
      cache.dispose()
      t.true(calls > 0, name)
    }
  })

  test(`onProgress of a save or a load may ${what}`, async t => {
    const folder = await folderOf(t)
    const cache = new PagedKvCache({ ...LAYERED, tiers: { memory: { limitBytes: 1e6 }, deadline: LATE } })
    const chat = computed(cache, span(0, 21))
    const bytes = await chat.saveBytes()
    let calls = 0
    const onProgress = (): void => {
      calls += 1
      free(() => call(cache))
    }
    for (const work of [
      () => chat.save(join(folder, 'chat.kv'), { onProgress }),
      () => cache.save(join(folder, 'all.kv'), { onProgress }),
      () => cache.loadSequence(bytes, { onProgress }),
    ]) {
      try {
        await work()
      } catch (error) {
        t.is(what, 'dispose of the cache')
        t.true(isKvTideError(error) && error.code === 'DISPOSED', String(error))
      }
    }
    t.true(calls > 0)
    if (what !== 'dispose of the cache') cache.checkInvariants()
    cache.dispose()
  })
}

test('a clock that calls the cache, ends it, throws or tells nonsense', t => {
  let now = second
  const made = (): [PagedKvCache, Sequence] => {
    const cache = new PagedKvCache({ ...LAYERED, now: () => now() as number })
    const sequence = computed(cache, span(0, 8))
    // From here on, every change asks the clock.
    sequence.retain({ priority: 5, forMs: 1e9 })
    return [cache, sequence]
  }
  const mine = new Error('mine')
  for (const [value, code] of [
    [NaN, 'INVALID_ARGUMENT'],
    [-1, 'INVALID_ARGUMENT'],
    ['5', 'INVALID_ARGUMENT'],
    [undefined, 'INVALID_ARGUMENT'],
  ] as const) {
    now = second
    const [cache, sequence] = made()
    now = () => value
    throwsCode(t, code, () => cache.openSequence())
    now = second
    t.is(sequence.length, 8)
    cache.checkInvariants()
    cache.dispose()
  }
  const [thrown] = made()
  now = () => {
    throw mine
  }
  t.is(
    t.throws(() => thrown.openSequence()),
    mine,
  )
  now = second
  thrown.dispose()
  const [ended] = made()
  now = () => {
    now = second
    ended.dispose()
    return 1000
  }
  throwsCode(t, 'DISPOSED', () => ended.openSequence())
  const [nested, sequence] = made()
  now = () => {
    now = second
    sequence.truncate(4)
    computed(nested, span(100, 108)).dispose()
    return 2000
  }
  using opened = nested.openSequence()
  t.deepEqual([opened.length, sequence.length], [0, 4])
  nested.checkInvariants()
  nested.dispose()
})

test('a loop over the events of a cache may end the cache', async t => {
  const cache = new PagedKvCache({ ...LAYERED, events: 16 })
  computed(cache, span(0, 9)).dispose()
  const seen: string[] = []
  for await (const event of cache.events()) {
    seen.push(event.type)
    cache.dispose()
  }
  t.true(seen.length >= 1)
})

test('a signal that aborts in the middle of its own call', async t => {
  using cache = new PagedKvCache({ ...LAYERED, tiers: { memory: { limitBytes: 1e6 } } })
  using chat = computed(cache, span(0, 9))
  for (const call of [
    (options: object) => chat.saveBytes(options),
    (options: object) => cache.match(span(0, 9), { tiers: 'all', ...options }),
    (options: object) => KvCache.load(new Uint8Array(9), options),
    (options: object) => tokens(0, 1).toArrayAsync(options),
  ]) {
    const controller = new AbortController()
    const options = Object.defineProperty({}, 'signal', {
      enumerable: true,
      get: () => {
        controller.abort(new Error('enough'))
        return controller.signal
      },
    })
    const { cause } = await rejected(call(options), 'ABORTED')
    t.is((cause as Error).message, 'enough')
  }
})
