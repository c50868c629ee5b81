// `npm run bench`: measures everything, then writes bench/RESULTS.md, bench/results.svg and bench/pool.svg.
//
//   npm run bench -- [--rounds <n>] [--record] [--from <folder>] [--only <suite>]
//
// With --record, the ratios become the ones that `npm run bench:check` holds later runs against. With --from, the pages are
// written from the reports in a folder, and nothing is measured. With --only, one suite is measured (peers, javascript, native
// or pool), and the rest of the pages is from the reports that earlier runs have left.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { readArguments } from './arguments.js'
import { chart } from './chart.js'
import { readResults } from './gpu-results.js'
import { resultsPage } from './markdown.js'
import { poolChart } from './pool-chart.js'
import { recordOf } from './recorded.js'
import { build, readRun, REPORTS, root, runJavaScript, runNative, runPeers, runPool, SUITES, type Run, type Suite } from './suites.js'

function measured(rounds: number): Run {
  build()
  const wanted = { only: '', rounds }
  return { peers: runPeers(wanted), javascript: runJavaScript(wanted), native: runNative(), pool: runPool() }
}

/** Measures one suite; the others are as they were measured last. */
function measuredAnew(name: string, rounds: number): Run {
  const suite = SUITES.find(each => each === name)
  if (suite === undefined) throw new RangeError(`--only ${name}: expected one of ${SUITES.join(', ')}`)
  const earlier = readRun(REPORTS)
  const wanted = { only: '', rounds }
  const run: Readonly<Record<Suite, () => Partial<Run>>> = {
    peers: () => ({ peers: runPeers(wanted) }),
    javascript: () => {
      build()
      return { javascript: runJavaScript(wanted) }
    },
    native: () => ({ native: runNative() }),
    pool: () => ({ pool: runPool() }),
  }
  return { ...earlier, ...run[suite]() }
}

function runOf(): Run {
  if (from !== undefined) return readRun(from)
  return only === '' ? measured(rounds) : measuredAnew(only, rounds)
}

const { only, rounds, record, from } = readArguments(process.argv.slice(2))
const run = runOf()

const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
writeFileSync(join(root, 'bench', 'RESULTS.md'), resultsPage(version, run, readResults()))
// Rates of memory alone are in the page; as times per MiB they would say little in a chart.
const charted = [...run.peers.workloads, ...run.javascript.workloads].filter(({ id }) => id !== 'memcpy')
writeFileSync(join(root, 'bench', 'results.svg'), chart(charted))
if (run.pool !== undefined) writeFileSync(join(root, 'bench', 'pool.svg'), poolChart(run.pool))
if (record) {
  const recorded = recordOf(run.peers.machine?.cpu ?? 'unknown', [run.peers, run.javascript])
  writeFileSync(join(root, 'bench', 'recorded.json'), `${JSON.stringify(recorded, null, 2)}\n`)
}
console.log(`\nwritten: bench/RESULTS.md, bench/results.svg${run.pool === undefined ? '' : ', bench/pool.svg'}${record ? ', bench/recorded.json' : ''}`)
