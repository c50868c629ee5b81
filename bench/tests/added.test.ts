// Workloads that are put into a page of results which is there already.
import test from 'ava'

import { panelsIn, withReport } from '../report/added.js'
import { resultsPage } from '../report/markdown.js'
import { claim, report, workload } from './reports.js'

const met = (id: string, ratio: number) => claim(id, ratio, { toReach: { atLeast: 2 }, met: true })
const machine = {
  cpu: 'A processor',
  features: [],
  cores: 2,
  caches: [],
  memory: '8 GiB',
  hugePages: 'never',
  kernel: 'an OS',
  rustc: 'rustc 1',
  load: '3.14',
}
const page = resultsPage('1.2.3', {
  peers: report(workload('first', [met('first/a', 4)]), workload('second', [met('second/a', 5)])),
  javascript: report(workload('third', [met('third/a', 6)])),
})

test('a workload that is new comes behind the last, and all else stays', t => {
  const added = withReport(page, { ...report(workload('fourth', [met('fourth/a', 7)])), machine })
  t.deepEqual(
    [...added.matchAll(/^### (\w+)/gm)].map(([, name]) => name),
    ['first', 'second', 'third', 'fourth'],
  )
  t.deepEqual(
    [...added.matchAll(/^\| (\w+) & more/gm)].map(([, name]) => name),
    ['first', 'second', 'third', 'fourth'],
  )
  t.true(added.includes('| fourth & more, reused memory | fourth/a <says> | 7 (7 to 7) |  | at least 2 | met |'))
  t.true(added.includes('\n31 rounds, measured by itself and later than others; load before the run: 3.14.\n'))
  const lines = new Set(added.split('\n'))
  for (const line of page.split('\n')) t.true(lines.has(line), line)
})

test('a workload that is there is put in its place', t => {
  const added = withReport(page, { ...report(workload('second', [met('second/a', 9), claim('second/b', 1)])), machine })
  t.deepEqual(
    [...added.matchAll(/^### (\w+)/gm)].map(([, name]) => name),
    ['first', 'second', 'third'],
  )
  t.deepEqual(
    [...added.matchAll(/^\| \w+ & more, reused memory \| (\S+)/gm)].map(([, id]) => id),
    ['first/a', 'second/a', 'third/a'],
  )
  t.true(added.includes('- second/a <says>: 9 (9 to 9)\n- second/b <says>: 1 (1 to 1)\n\n### third'))
  t.false(added.includes('second/a <says>: 5'))
  t.is(withReport(added, { ...report(workload('second', [met('second/a', 9), claim('second/b', 1)])), machine }), added)
})

test('what is no page of results is refused', t => {
  t.throws(() => withReport('# Results\n', report(workload('first', []))), {
    instanceOf: RangeError,
    message: /no ## Targets/,
  })
})

test('the chart of a page has what its sections show', t => {
  const { title, lanes } = workload('third', [])
  t.deepEqual(
    panelsIn(page).map(panel => panel.title),
    ['first & more', 'second & more', 'third & more'],
  )
  t.deepEqual(panelsIn(page)[2], { title, subtitle: 'per token, reused memory', lanes })
})
