// Clocks that jump: the system's time goes back or ahead, and files have times that cannot be.
import { readdir, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import test, { type ExecutionContext } from 'ava'

import { PagedKvCache, type Sequence } from '../../index.js'
import { folderOf } from '../support/folder.js'
import { layered, LAYERED } from '../support/layered.js'
import { span } from '../support/tokens.js'

const LATE = 60_000
const YEAR = 365 * 24 * 3600_000

const prompt = (number: number): number[] => span(100 * number, 100 * number + 20)

function found(cache: PagedKvCache, of: readonly number[]): number {
  using match = cache.match(of)
  return match.length
}

/** Replaces `Date.now` until the test ends. */
function handClock(t: ExecutionContext): { now: number } {
  const own = Date.now
  const clock = { now: own() }
  Date.now = () => clock.now
  t.teardown(() => {
    Date.now = own
  })
  return clock
}

function computed(cache: PagedKvCache, of: readonly number[]): Sequence {
  using match = cache.match([...of, 0])
  const sequence = cache.openSequence({ prefix: match })
  const rest = of.slice(sequence.length)
  if (rest.length === 0) return sequence
  const [k, v] = layered(rest)
  sequence.append({ k, v, tokens: rest })
  return sequence
}

test.serial('time limits of a cache survive a clock that jumps back and ahead', t => {
  const clock = handClock(t)
  using cache = new PagedKvCache({ ...LAYERED, capacity: 8 })
  {
    using kept = computed(cache, span(0, 8))
    kept.retain({ priority: 90, forMs: 10_000 })
  }
  for (const jump of [-YEAR, 1, -1, -40 * YEAR, 0]) {
    clock.now += jump
    // Prompts that take the whole pool but for what is retained.
    computed(cache, span(1000, 1024)).dispose()
    t.is(found(cache, span(0, 9)), 8, `it is kept after a jump of ${jump} ms`)
    cache.checkInvariants()
  }
  clock.now += 100 * YEAR
  for (const start of [2000, 3000, 4000]) {
    computed(cache, span(start, start + 32)).dispose()
    cache.checkInvariants()
  }
  t.is(found(cache, span(0, 9)), 0, 'and goes once the time is over')
})

test.serial('a clock before its epoch, or at none, is refused and not waited for', async t => {
  const clock = handClock(t)
  using cache = new PagedKvCache({ ...LAYERED, tiers: { memory: { limitBytes: 1e6 } } })
  using kept = computed(cache, span(0, 8))
  kept.retain({ priority: 90, forMs: 10_000 })
  const before = clock.now
  for (const now of [-1, NaN, Infinity]) {
    clock.now = now
    const error = t.throws(() => cache.openSequence())
    t.is((error as { code?: string }).code, 'INVALID_ARGUMENT', String(now))
    // Work in the background does not ask the clock of the system.
    t.true(await cache.flush(LATE))
  }
  clock.now = before
  cache.openSequence().dispose()
  cache.checkInvariants()
})

test('entries of a folder whose times are in the future or long ago are found, and make room', async t => {
  const folder = await folderOf(t)
  const tiers = { disk: { path: folder, limitBytes: 20_000 }, deadline: LATE }
  {
    await using cache = new PagedKvCache({ ...LAYERED, tiers })
    for (let number = 0; number < 3; number++) computed(cache, prompt(number)).dispose()
    t.true(await cache.flush(LATE))
  }
  const files = (await readdir(folder, { recursive: true, withFileTypes: true })).filter(entry => entry.isFile())
  const times = [new Date(0), new Date(Date.now() + 50 * YEAR), new Date(-5e9)]
  for (const [at, { parentPath, name }] of files.entries()) {
    const time = times[at % times.length] as Date
    await utimes(join(parentPath, name), time, time)
  }
  await using cache = new PagedKvCache({ ...LAYERED, tiers })
  for (let number = 0; number < 3; number++) {
    using match = await cache.match([...prompt(number), 1], { tiers: 'all' })
    t.is(match.length, 20)
  }
  for (let number = 10; number < 60; number++) computed(cache, prompt(number)).dispose()
  t.true(await cache.flush(LATE))
  const { disk } = cache.stats().tiers ?? {}
  t.true(disk !== undefined && disk.bytes <= 20_000 && disk.bytes > 0, JSON.stringify(disk))
})

test('temporary files of a save stay while they may be in use, whatever their times say', async t => {
  const folder = await folderOf(t)
  const path = join(folder, 'chat.kv')
  const left = {
    old: 'chat.kv.00000000000000aa.tmp',
    fresh: 'chat.kv.00000000000000bb.tmp',
    future: 'chat.kv.00000000000000cc.tmp',
  }
  for (const name of Object.values(left)) await writeFile(join(folder, name), 'half')
  await utimes(join(folder, left.old), new Date(0), new Date(0))
  const later = new Date(Date.now() + YEAR)
  await utimes(join(folder, left.future), later, later)
  using cache = new PagedKvCache(LAYERED)
  using chat = computed(cache, span(0, 8))
  await chat.save(path)
  t.deepEqual((await readdir(folder)).toSorted(), ['chat.kv', left.fresh, left.future])
})
