// The page of results.
import test from 'ava'

import { reason, resultsPage } from '../report/markdown.js'
import { digits } from '../report/table.js'
import { claim, report, workload } from './reports.js'

test('numbers have three digits, or all of a whole number', t => {
  t.deepEqual([0.01234, 0.5, 1, 1.756, 99.96, 800.4, 1_234_567.8].map(digits), [
    '0.0123',
    '0.5',
    '1',
    '1.76',
    '100',
    '800',
    '1,234,568',
  ])
})

test('the reason for a target that is not met is what bare memory reaches', t => {
  const missed = { toReach: { atMost: 5 }, met: false } as const
  t.regex(reason(claim('a', 6, { ...missed, limit: 4 })), /reach 4: the cache itself costs 1\.5 times/)
  t.regex(reason(claim('a', 6, { ...missed, limit: 5.5 })), /reach 5\.5, and do not meet it either/)
  t.regex(
    reason(claim('a', 800, { toReach: { atLeast: 1000 }, met: false, limit: 1200 })),
    /reach 1,200: the cache itself costs 1\.5 times/,
  )
  t.regex(reason(claim('a', 6, missed)), /nothing in this run/)
  t.is(reason(claim('a', 6, { ...missed, why: 'it was dark' })), 'it was dark')
})

test('the page has the targets, met or not, and every lane', t => {
  const peers = report(
    workload('first', [
      claim('first/met', 4, { toReach: { atMost: 5 }, met: true, limit: 3 }),
      claim('first/missed', 700, { low: 650, high: 750, toReach: { atLeast: 800 }, met: false, limit: 900 }),
      claim('first/free', 2),
    ]),
  )
  const javascript = {
    ...report(workload('second', [])),
    engine: 'An engine 1',
    skipped: [{ id: 'third', skipped: 'no such runtime' }],
  }
  const machine = {
    cpu: 'A processor',
    features: ['avx2'],
    cores: 2,
    caches: ['L1 32K'],
    memory: '8 GiB',
    hugePages: 'never',
    kernel: 'an OS',
    rustc: 'rustc 1',
    load: '0.1',
  }
  const page = resultsPage('1.2.3', { peers: { ...peers, machine }, javascript })
  t.true(page.includes('| first & more, reused memory | first/met <says> | 4 (4 to 4) | 3 | at most 5 | met |'))
  t.true(page.includes('| 700 (650 to 750) | 900 | at least 800 | **not met**: the same moves'))
  t.true(page.includes('- first/free <says>: 2 (2 to 2)\n'))
  t.true(page.includes('| by hand | by hand | 4,200,000 | 4,000,000 to 5,000,000 |'))
  for (const part of [
    'kvtide 1.2.3',
    '### second & more, reused memory',
    'A processor, 2 cores, avx2',
    'An engine 1',
    'results.svg',
    '31 rounds.',
    '- `third`: no such runtime',
  ]) {
    t.true(page.includes(part), part)
  }
  t.false(/undefined|NaN|\[object/.test(page))
})
