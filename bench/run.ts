// `npm run bench`: measures everything, then writes bench/RESULTS.md and bench/results.svg.
//
//   npm run bench -- [--rounds <n>] [--record] [--from <folder>]
//
// With --record, the ratios become the ones that `npm run bench:check` holds later runs against. With --from, the pages are
// written from the reports in a folder, and nothing is measured.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { readArguments } from './arguments.js'
import { chart } from './chart.js'
import { resultsPage } from './markdown.js'
import { recordOf } from './recorded.js'
import { build, readRun, root, runJavaScript, runNative, runPeers, type Run } from './suites.js'

function measured(rounds: number): Run {
  build()
  const wanted = { only: '', rounds }
  return { peers: runPeers(wanted), javascript: runJavaScript(wanted), native: runNative() }
}

const { rounds, record, from } = readArguments(process.argv.slice(2))
const run = from === undefined ? measured(rounds) : readRun(from)

const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
writeFileSync(join(root, 'bench', 'RESULTS.md'), resultsPage(version, run))
// Rates of memory alone are in the page; as times per MiB they would say little in a chart.
const charted = [...run.peers.workloads, ...run.javascript.workloads].filter(({ id }) => id !== 'memcpy')
writeFileSync(join(root, 'bench', 'results.svg'), chart(charted))
if (record) {
  const recorded = recordOf(run.peers.machine?.cpu ?? 'unknown', [run.peers, run.javascript])
  writeFileSync(join(root, 'bench', 'recorded.json'), `${JSON.stringify(recorded, null, 2)}\n`)
}
console.log(`\nwritten: bench/RESULTS.md, bench/results.svg${record ? ', bench/recorded.json' : ''}`)
