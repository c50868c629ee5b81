// What counts as a regression.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { BAND_MIN, recordOf, unrecorded, withRatios, worseThan, type Recorded } from '../report/recorded.js'
import { claim, report, workload } from './reports.js'

const recorded: Recorded = {
  cpu: 'a processor',
  ratios: {
    'a/ours-over-peer': { ratio: 2, better: 'less', band: 1.25 },
    'a/peer-over-ours': { ratio: 10, better: 'more', band: 2 },
  },
}

const run = (ours: number, peers: number): ReturnType<typeof report> =>
  report(workload('a', [claim('a/ours-over-peer', ours), claim('a/peer-over-ours', peers, { toReach: 'more' })]))

test('a time is not compared with another run', t => {
  const timed = report(workload('a', [claim('a/ours-over-peer', 2), claim('a/us', 3, { ofThisRun: true })]))
  t.deepEqual(Object.keys(recordOf('', [timed]).ratios), ['a/ours-over-peer'])
  t.deepEqual(unrecorded(recorded, [timed]), [])
  const ratios = Object.keys(
    (JSON.parse(readFileSync(new URL('../recorded.json', import.meta.url), 'utf8')) as Recorded).ratios,
  )
  t.deepEqual(
    ratios.filter(id => id.endsWith('-us')),
    [],
  )
})

test('a ratio in its band, or better, is no regression', t => {
  for (const [ours, peers] of [
    [2, 10],
    [2.5, 5],
    [0.1, 1000],
  ] as const)
    t.deepEqual(worseThan(recorded, [run(ours, peers)]), [])
})

test('a ratio on the wrong side of its band is one', t => {
  const [worse, ...others] = worseThan(recorded, [run(2.51, 10)])
  t.deepEqual(others, [])
  t.like(worse, { id: 'a/ours-over-peer', ratio: 2.51, bound: 2.5 })
  t.like(worseThan(recorded, [run(2, 4.99)])[0], { id: 'a/peer-over-ours', ratio: 4.99, bound: 5 })
  t.deepEqual(
    worseThan(recorded, [run(3, 1)]).map(({ id }) => id),
    ['a/ours-over-peer', 'a/peer-over-ours'],
  )
})

test('a ratio that is not a number is one', t => {
  t.is(worseThan(recorded, [run(Number.NaN, 10)]).length, 1)
})

test('a recorded ratio that was not measured is one, unless it was not asked for', t => {
  const other = report(workload('b', [claim('b/ratio', 1)]))
  t.deepEqual(
    worseThan(recorded, [other]).map(({ ratio }) => ratio),
    [undefined, undefined],
  )
  t.deepEqual(worseThan(recorded, [other], 'b'), [])
  t.deepEqual(unrecorded(recorded, [other]), ['b/ratio'])
})

test('a recorded ratio of a workload that cannot run here is none', t => {
  const without = { ...report(), skipped: [{ id: 'a', skipped: 'not installed' }] }
  t.deepEqual(worseThan(recorded, [without]), [])
  t.is(worseThan(recorded, [{ ...without, skipped: [{ id: 'b', skipped: 'not installed' }] }]).length, 2)
})

test('what is recorded of a run is no regression of it', t => {
  const reports = [
    run(2.345678, 9),
    report(workload('b', [claim('b/ratio', 0.5, { toReach: { atMost: 0.4 }, met: false })])),
  ]
  const record = recordOf('a processor', reports)
  t.deepEqual(worseThan(record, reports), [])
  t.deepEqual(unrecorded(record, reports), [])
  t.deepEqual(
    Object.values(record.ratios).map(({ better }) => better),
    ['less', 'more', 'less'],
  )
})

test('what could not run here stays as it was recorded; what was not measured any more goes', t => {
  const ran = { ...report(workload('b', [claim('b/ratio', 3)])), skipped: [{ id: 'a', skipped: 'not installed' }] }
  const before = {
    ...recorded.ratios,
    'b/ratio': { ratio: 1, better: 'less', band: 2 },
    'c/gone': { ratio: 1, better: 'less', band: 2 },
  } as const
  const { ratios } = recordOf('', [ran], before)
  t.deepEqual(ratios, { ...recorded.ratios, 'b/ratio': { ratio: 3, better: 'less', band: BAND_MIN } })
})

test('ratios of some workloads more leave the others as they are', t => {
  const { cpu, ratios } = withRatios(
    recorded,
    report(workload('a', [claim('a/ours-over-peer', 7)]), workload('b', [claim('b/ratio', 3)])),
  )
  t.is(cpu, 'a processor')
  t.deepEqual(
    Object.values(ratios).map(({ ratio }) => ratio),
    [7, 10, 3],
  )
})

test('the band is what the rounds differed by, and a quarter at least', t => {
  const record = recordOf('', [
    report(workload('a', [claim('a/calm', 1), claim('a/restless', 1, { low: 0.6, high: 1.5 })])),
  ])
  t.is(record.ratios['a/calm']?.band, BAND_MIN)
  t.is(record.ratios['a/restless']?.band, 2.5)
})

test('what the repository records can be read', t => {
  const { cpu, ratios } = JSON.parse(readFileSync(new URL('../recorded.json', import.meta.url), 'utf8')) as Recorded
  t.true(cpu.length > 0)
  t.true(Object.keys(ratios).length > 20)
  for (const [id, { ratio, better, band }] of Object.entries(ratios)) {
    t.true(ratio > 0 && Number.isFinite(ratio) && band >= BAND_MIN && (better === 'less' || better === 'more'), id)
  }
})
