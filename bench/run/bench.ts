// `npm run bench`: measures everything, then writes bench/RESULTS.md, bench/results.svg and bench/pool.svg.
//
//   npm run bench -- [--rounds <n>] [--record] [--from <folder>] [--only <suite>]
//
// With --record, the ratios become the ones that `npm run bench:check` holds later runs against. With --from, the pages are
// written from the reports in a folder, and nothing is measured. With --only, one suite is measured (peers, javascript, native
// or pool), and the rest of the pages is from the reports that earlier runs have left.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { chart } from '../report/chart.js'
import { readResults } from '../report/gpu.js'
import { resultsPage } from '../report/markdown.js'
import { poolPanels } from '../report/pool.js'
import { readmeChart } from '../report/readme.js'
import { recordOf, type Recorded } from '../report/recorded.js'
import { build, readArguments, readRun, REPORTS, root, runJavaScript, runNative, runPeers, runPool, type Run } from './suites.js'

const { only, rounds, record, from } = readArguments(process.argv.slice(2))

const SUITES: { readonly [S in keyof Run]-?: () => Run[S] } = {
  peers: () => runPeers({ only: '', rounds }),
  javascript: () => runJavaScript({ only: '', rounds }),
  native: runNative,
  pool: runPool,
}

function measured(): Run {
  if (only !== '' && !(only in SUITES)) throw new RangeError(`--only ${only}: expected one of ${Object.keys(SUITES).join(', ')}`)
  const earlier = only === '' ? {} : readRun(REPORTS)
  if (['', 'peers', 'javascript'].includes(only)) build()
  const wanted = Object.entries(SUITES).filter(([name]) => only === '' || name === only)
  return { ...earlier, ...Object.fromEntries(wanted.map(([name, run]) => [name, run()])) } as Run
}

const run = from === undefined ? measured() : readRun(from)
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
// Rates of memory alone are in the page; as times per MiB they would say little in a chart.
const charted = [...run.peers.workloads, ...run.javascript.workloads].filter(({ id }) => id !== 'memcpy')
const panels = charted.map(({ title, operation, memory, lanes }) => ({ title, subtitle: `per ${operation}, ${memory} memory`, lanes }))
const recorded = (): string => `${JSON.stringify(recordOf(run.peers.machine?.cpu ?? 'unknown', [run.peers, run.javascript]), null, 2)}\n`
const files = {
  'RESULTS.md': resultsPage(version, run, readResults()),
  'results.svg': chart('What each workload costs in kvtide, in other caches, by hand, and in bare memory', panels),
  ...(run.pool === undefined ? {} : { 'pool.svg': chart('What the calls of the pool cost as the pool grows, beside one random read of memory of the same size', poolPanels(run.pool)) }),
  ...(record === true ? { 'recorded.json': recorded() } : {}),
  'readme.svg': readmeChart(JSON.parse(record === true ? recorded() : readFileSync(join(root, 'bench', 'recorded.json'), 'utf8')) as Recorded),
}
for (const [name, text] of Object.entries(files)) writeFileSync(join(root, 'bench', name), text)
console.log(`\nwritten: ${Object.keys(files).map(name => `bench/${name}`).join(', ')}`)
