// The panels of the pool as it grows, and its part of the page.
import test from 'ava'

import { growthOf, poolPanels, poolSection, type Measured } from '../report/pool.js'
import { spreadOf } from '../../lib/cli/spread.js'

const GROUPS = [
  ['allocate', 'free'],
  ['match', 'evict', 'insert', 'drop'],
  ['ensureCapacity', 'fork', 'snapshot'],
]
const NAMES = [...GROUPS.flat(), 'random read of BlockPool', 'random read of PagedKvCache']

const rounds = (time: number): number[] => [0.9, 1, 1.3].map(times => time * times)

/** Every call costs ten reads and 20 ns, whatever the size; what a read costs is told. */
function measured(reads: readonly number[] = [2, 5, 60, 150], own = 20): Measured {
  const calls = NAMES.map(name => ({
    name,
    per: name.startsWith('random') ? 'read' : name === 'fork' ? 'call' : 'block',
    nanoseconds: reads.map(read => rounds(name.startsWith('random') ? read : own + 10 * read)),
  }))
  return {
    rounds: 3,
    blocks: [1000, 10_000, 100_000, 1_000_000],
    bytes: [1, 2, 3, 4].map(size => [size * 2 ** 20, size * 2 ** 21] as const),
    calls,
    load: '0.25',
  }
}

test('a panel has every call of its group at every size, beside the reads', t => {
  const panels = poolPanels(measured())
  t.is(panels.length, GROUPS.length)
  for (const [index, { subtitle, lanes }] of panels.entries()) {
    const calls = GROUPS[index] as string[]
    t.deepEqual(
      lanes.map(({ role }) => role),
      [...Array<string>(4).fill('limit'), ...Array<string>(4 * calls.length).fill('ours')],
    )
    for (const name of calls)
      t.deepEqual(
        lanes.filter(lane => lane.name.startsWith(`${name},`)).map(lane => lane.name),
        ['1,000', '10,000', '100,000', '1,000,000'].map(size => `${name}, ${size}`),
      )
    t.true(subtitle.includes(`${calls[0]} per block`), subtitle)
  }
  t.like(panels[0]?.lanes[4], { name: 'allocate, 1,000', ...spreadOf(rounds(40)) })
})

test('growth is told in reads, round by round', t => {
  const growth = growthOf(
    [2, 5, 60, 150].map(read => rounds(20 + 10 * read)),
    [2, 5, 60, 150].map(rounds),
  )
  t.deepEqual(
    growth.map(({ median }) => Number(median.toFixed(6))),
    [2, 5, 60, 150].slice(1).map(at => Number(((10 * (at - 2)) / at).toFixed(6))),
  )
  t.deepEqual(
    growthOf(
      [
        [1, 2, 3],
        [3, 4, 7],
      ],
      [
        [1, 1, 1],
        [2, 2, 2],
      ],
    ),
    [spreadOf([1, 1, 2])],
  )
})

test('a report without a call, or of other sizes, is refused', t => {
  const whole = measured()
  t.throws(() => poolPanels({ ...whole, calls: whole.calls.slice(1) }), {
    instanceOf: RangeError,
    message: /no allocate at 4 sizes/,
  })
  t.throws(() => poolSection({ ...whole, blocks: [1000] }), { instanceOf: RangeError })
})

test('the page has every call once, with its sizes, and says which goal is met', t => {
  const page = poolSection(measured())
  for (const name of NAMES) t.is(page.split(`\n| ${name} |`).length, 2, name)
  t.true(page.includes('| allocate | block | 40 (36.8 to 49.6) | 70 (64.4 to 86.8) | 620 (570 to 769) |'))
  t.true(page.includes('| 38 (38 to 38) | 6.0, 9.7, 9.9 |'))
  t.true(
    page.includes(
      '**not met**: allocate takes 620 at 100,000 blocks, where one random read takes 60; allocate takes 1,520 at',
    ),
  )
  t.true(page.includes('load before the run: 0.25.'))
  t.true(poolSection({ ...measured(), load: '3.00' }).includes('load before the run: 3.00, so the machine was shared'))
  t.true(page.includes('](pool.svg)'))
  t.true(poolSection(measured([1, 1, 1, 1])).includes('at every size: met.'))
  t.false(/undefined|NaN|\[object|-0\.0/.test(page))
})
