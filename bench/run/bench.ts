// `npm run bench`: measures everything, then writes bench/RESULTS.md, bench/results.svg and bench/pool.svg.
//
//   npm run bench -- [--rounds <n>] [--record] [--from <folder>] [--only <suite>|js-…] [--add <report>]
//
// --record records the ratios that `npm run bench:check` compares later runs with. --from writes the pages from the reports in a
// folder, and measures nothing. --only measures one suite (peers, javascript or pool), and takes the rest of the pages from
// the reports of earlier runs. With the start of an id of the TypeScript suite instead, --only measures those workloads and leaves the
// rest of the pages unchanged; --add does the same with an existing report.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { panelsIn, withReport } from '../report/added.js'
import { chart, type Panel } from '../report/chart.js'
import { readResults } from '../report/gpu.js'
import { resultsPage } from '../report/markdown.js'
import { poolPanels } from '../report/pool.js'
import { readmeChart } from '../report/readme.js'
import { recordOf, withRatios, type Recorded } from '../report/recorded.js'
import type { Report } from '../report/report.js'
import { build, readArguments, readRun, REPORTS, root, runJavaScript, runPeers, runPool, type Run } from './suites.js'

const { only, rounds, record, from, add } = readArguments(process.argv.slice(2))

const SUITES: { readonly [S in keyof Run]-?: () => Run[S] } = {
  peers: () => runPeers({ only: '', rounds }),
  javascript: () => runJavaScript({ only: '', rounds }),
  pool: runPool,
}

type Files = Readonly<Record<string, string>>

const read = (name: string): string => readFileSync(join(root, 'bench', name), 'utf8')
const recordedBefore = (): Recorded => JSON.parse(read('recorded.json')) as Recorded

/** The chart of all workloads. Memory rates are only on the page: as times per MiB they would say little in the chart. */
const results = (panels: readonly Panel[]): string =>
  chart(
    'Cost of each workload in kvtide, in other caches, by hand, and in bare memory',
    panels.filter(({ title }) => title !== 'memcpy'),
  )

const withRecorded = (recorded: Recorded): Files => ({
  ...(record === true ? { 'recorded.json': `${JSON.stringify(recorded, null, 2)}\n` } : {}),
  'readme.svg': readmeChart(record === true ? recorded : recordedBefore()),
})

function measured(): Run {
  if (only !== '' && !(only in SUITES))
    throw new RangeError(
      `--only ${only}: expected one of ${Object.keys(SUITES).join(', ')}, or the start of an id: js-…`,
    )
  const earlier = only === '' ? {} : readRun(REPORTS)
  if (['', 'peers', 'javascript'].includes(only)) build()
  const wanted = Object.entries(SUITES).filter(([name]) => only === '' || name === only)
  return { ...earlier, ...Object.fromEntries(wanted.map(([name, run]) => [name, run()])) } as Run
}

function pagesOf(run: Run): Files {
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
  const panels = [...run.peers.workloads, ...run.javascript.workloads].map(({ title, operation, memory, lanes }) => ({
    title,
    subtitle: `per ${operation}, ${memory} memory`,
    lanes,
  }))
  return {
    'RESULTS.md': resultsPage(version, run, readResults()),
    'results.svg': results(panels),
    ...(run.pool === undefined
      ? {}
      : {
          'pool.svg': chart(
            'Cost of pool calls as the pool grows, next to one random read of memory of the same size',
            poolPanels(run.pool),
          ),
        }),
    ...withRecorded(
      recordOf(run.peers.machine?.cpu ?? 'unknown', [run.peers, run.javascript], recordedBefore().ratios),
    ),
  }
}

/** Returns the existing pages with some workloads added or replaced. */
function pagesWith(report: Report): Files {
  const page = withReport(read('RESULTS.md'), report)
  return {
    'RESULTS.md': page,
    'results.svg': results(panelsIn(page)),
    ...withRecorded(withRatios(recordedBefore(), report)),
  }
}

function addedWorkloads(): Report {
  if (add !== undefined) return JSON.parse(readFileSync(add, 'utf8')) as Report
  build()
  return runJavaScript({ only, rounds }, 'added.json')
}

const files =
  add !== undefined || only.startsWith('js-')
    ? pagesWith(addedWorkloads())
    : pagesOf(from === undefined ? measured() : readRun(from))
for (const [name, text] of Object.entries(files)) writeFileSync(join(root, 'bench', name), text)
console.log(
  `\nwritten: ${Object.keys(files)
    .map(name => `bench/${name}`)
    .join(', ')}`,
)
