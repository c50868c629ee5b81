// Prefixes that are forgotten, caches that end, and matches that are aborted, during an offload, a restore, a save or a load.
import test from 'ava'

import { PagedKvCache, type TierOptions } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { inFolder } from '../support/folder.js'
import { HandClock } from '../support/hand-clock.js'
import { layered, LAYERED } from '../support/layered.js'
import { Dice } from '../support/onnx/toy-model.js'
import { Shelf } from '../support/shelf.js'
import { rejected } from '../support/throws.js'
import { span } from '../support/tokens.js'

const LATE = 60_000
const cacheOf = (tiers: TierOptions): PagedKvCache =>
  new PagedKvCache({ ...LAYERED, tiers: { deadline: LATE, ...tiers } })
const PROMPT = span(0, 21)

function compute(cache: PagedKvCache, tokens: readonly number[], salt?: string): void {
  const prefix = cache.match(tokens, salt === undefined ? {} : { salt })
  const seq = cache.openSequence({ prefix })
  const rest = tokens.slice(seq.length)
  const [k, v] = layered(rest)
  seq.append({ k, v, tokens: rest })
  cache.dropSequence(seq)
}

async function filled(): Promise<Shelf> {
  const shelf = new Shelf()
  using cache = cacheOf({ store: { store: shelf } })
  compute(cache, PROMPT)
  await cache.flush(LATE)
  return shelf
}

for (const name of ['hasMany', 'getMany']) {
  test(`prefixes that are forgotten during ${name} of a match are not found`, async t => {
    const shelf = await filled()
    using cache = cacheOf({ store: { store: shelf } })
    const asked = new Promise<void>(resolve => {
      shelf.before = called => {
        if (called !== name) return undefined
        resolve()
        return new Promise(() => {})
      }
    })
    const matching = cache.match(PROMPT, { tiers: 'all' })
    await asked
    cache.forgetPrefixes()
    const { length: calls } = shelf.calls
    t.is((await matching).length, 0, 'the store is not waited for any more')
    t.true(shelf.calls.at(-1)?.signal.aborted)
    t.is(cache.match(PROMPT).length, 0)
    compute(cache, span(100, 121))
    t.is((await cache.match(span(100, 121), { tiers: 'all' })).length, 20)
    t.is((await cache.match(PROMPT, { tiers: 'all' })).length, 0)
    t.is(shelf.calls.length, calls, 'nor asked or written to')
    cache.checkInvariants()
  })
}

test('what a load brings that was called before is not found', async t => {
  using source = new PagedKvCache(LAYERED)
  compute(source, PROMPT)
  const all = await source.saveBytes()
  const seq = source.openSequence({ prefix: source.match(PROMPT) })
  const one = await seq.saveBytes()
  using cache = new PagedKvCache(LAYERED)
  for (const turns of [0, 1, 2, 5]) {
    const [prompts, sequence] = [cache.loadPrompts(all), cache.loadSequence(one)]
    for (let turn = 0; turn < turns; turn++) await new Promise(resolve => setImmediate(resolve))
    const are = cache.match(PROMPT).length
    cache.forgetPrefixes()
    const [count, loaded] = await Promise.all([prompts, sequence])
    t.true(count === 0 || are > 0, `${turns}`)
    t.is(cache.match(PROMPT).length, 0, `${turns}`)
    // The sequence is loaded, without keys.
    t.is(loaded.length, 20)
    const [k, v] = layered(span(20, 30))
    loaded.append({ k, v, tokens: span(20, 30) })
    t.is(cache.match(span(0, 31)).length, 0, `${turns}`)
    cache.dropSequence(loaded)
    cache.checkInvariants()
  }
  t.is(await cache.loadPrompts(all), 5)
  t.is(cache.match(PROMPT).length, 20)
})

test("what waits for a store of one's own is not written once it is forgotten", async t => {
  const shelf = new Shelf()
  using cache = cacheOf({ store: { store: shelf } })
  let go!: () => void
  const asked = new Promise<void>(resolve => {
    shelf.before = () => {
      resolve()
      return new Promise<void>(release => {
        go = release
      })
    }
  })
  compute(cache, PROMPT)
  await asked
  cache.forgetPrefixes()
  go()
  t.true(await cache.flush(LATE))
  t.deepEqual([shelf.values.size, shelf.calls.map(({ name }) => name)], [0, ['hasMany']])
})

test.serial('a match that waits until fewer calls are in flight ends once prefixes are forgotten', async t => {
  const clock = HandClock.inPlace(t)
  const shelf = await filled()
  using cache = cacheOf({ store: { store: shelf } })
  shelf.before = () => new Promise(() => {})
  const { length: calls } = shelf.calls
  // Calls whose matches have ended are still in flight until they time out.
  const looks = span(0, 32).map(at => cache.match(span(1000 * at, 1000 * at + 9), { tiers: 'all', deadline: 10 }))
  await new Promise(resolve => setImmediate(resolve))
  clock.advance(10)
  for (const look of looks) t.is((await look).length, 0)
  const waiting = cache.match(PROMPT, { tiers: 'all' })
  await new Promise(resolve => setImmediate(resolve))
  t.is(shelf.calls.length, calls + 32)
  cache.forgetPrefixes()
  t.is((await waiting).length, 0)
  t.is(clock.now(), 10)
})

test('random matches and forgetting: prompts find nothing of what was asked for before', async t => {
  const shelf = await filled()
  const CASES = Number(process.env['KVTIDE_CASES'] ?? 60)
  let came = 0
  for (let seed = 1; seed <= CASES && t.passed; seed++) {
    const dice = new Dice(seed)
    using cache = cacheOf({ store: { store: shelf } })
    shelf.before = async () => {
      for (let turn = dice.roll(4); turn > 0; turn--) await new Promise(resolve => setImmediate(resolve))
    }
    const matching = cache.match(PROMPT, { tiers: 'all' })
    for (let turn = dice.roll(24); turn > 0; turn--) await new Promise(resolve => setImmediate(resolve))
    came += cache.match(PROMPT).length
    cache.forgetPrefixes()
    t.is(cache.match(PROMPT).length, 0, `seed ${seed}`)
    const match = await matching
    t.is(cache.match(PROMPT).length, 0, `seed ${seed}`)
    match.dispose()
    cache.checkInvariants()
  }
  shelf.before = undefined
  t.true(came > 0, 'some had come before they were forgotten')
})

test.serial('a cache that ends while its store hangs lets go of it at once', async t => {
  const clock = HandClock.inPlace(t)
  const shelf = await filled()
  const cache = cacheOf({ memory: { limitBytes: 1e6 }, store: { store: shelf } })
  shelf.before = () => new Promise(() => {})
  compute(cache, span(100, 121))
  const flushing = cache.flush(LATE)
  const matching = cache.match(PROMPT, { tiers: 'all' })
  while (shelf.calls.filter(({ signal }) => !signal.aborted).length < 2)
    await new Promise(resolve => setImmediate(resolve))
  cache.dispose()
  await rejected(matching, 'DISPOSED')
  t.false(await flushing)
  t.true(
    shelf.calls.every(({ signal }) => signal.aborted),
    'no call is waited for',
  )
  t.is(clock.now(), 0)
})

for (const [what, number] of [
  ['looks for entries', 1],
  ['reads entries', 2],
] as const) {
  test.serial(`an abort ends a match at once while a tier ${what}, and its blocks are free after that`, async t =>
    inFolder(async folder => {
      const tiers = { disk: { path: folder } }
      {
        await using first = cacheOf(tiers)
        compute(first, PROMPT)
      }
      const log: string[] = []
      let [count, begin, release] = [0, () => {}, () => {}]
      const begun = new Promise<void>(resolve => {
        begin = resolve
      })
      const released = new Promise<void>(resolve => {
        release = resolve
      })
      const { prototype } = binding.NativeDriver
      const { work, dispose } = prototype
      t.teardown(() => Object.assign(prototype, { work, dispose }))
      prototype.work = async function () {
        count += 1
        const isLast = count === number
        await work.call(this)
        if (!isLast) return
        begin()
        await released
        log.push('worked')
      }
      prototype.dispose = function () {
        dispose.call(this)
        log.push('disposed')
      }
      using cache = cacheOf(tiers)
      const controller = new AbortController()
      const looking = rejected(cache.match(PROMPT, { tiers: 'all', signal: controller.signal }), 'ABORTED')
      const rejecting = looking.then(() => log.push('rejected'))
      await begun
      controller.abort()
      await new Promise(resolve => setImmediate(resolve))
      t.deepEqual(log, ['disposed', 'rejected'])
      release()
      await rejecting
      await new Promise(resolve => setImmediate(resolve))
      // The thread has given the machine back, so it is disposed of once more.
      t.deepEqual(log, ['disposed', 'rejected', 'worked', 'disposed'])
      cache.ensureCapacity(cache.openSequence(), cache.capacity * cache.blockSize)
      cache.checkInvariants()
    }),
  )
}

test.serial('a fraction of a millisecond counts in each deadline', async t => {
  const clock = HandClock.inPlace(t)
  const shelf = await filled()
  shelf.before = () => new Promise(() => {})
  using cache = cacheOf({ store: { store: shelf } })
  const looking = cache.match(PROMPT, { tiers: 'all', deadline: 1.5 })
  await clock.asleep(1.5, 2000)
  t.is(clock.advance(1), 0)
  t.is(clock.advance(0.5), 1)
  t.is((await looking).length, 0)
  using usual = new PagedKvCache({ ...LAYERED, tiers: { store: { store: shelf }, deadline: 0.25 } })
  t.is((await usual.match(PROMPT, { tiers: 'all', deadline: 0 })).length, 0)
  for (const deadline of [-1, -0.5, NaN, Infinity, '5', null]) {
    const { details } = await rejected(
      cache.match(PROMPT, { tiers: 'all', deadline: deadline as number }),
      'INVALID_ARGUMENT',
    )
    t.is(details.argument, 'deadline')
    await rejected(cache.flush(deadline as number), 'INVALID_ARGUMENT')
  }
})
