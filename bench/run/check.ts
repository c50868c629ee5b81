// `npm run bench:check`: measures again and compares ratios with the recorded ones; exits with 1 if one is worse than its band allows.
//
//   npm run bench:check -- [--only <start of an id>] [--rounds <n>]
//
// A worse ratio is measured a second time, and counts if it is worse again: one bad moment is not a regression.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import { unrecorded, worseThan, type Recorded, type Worse } from '../report/recorded.js'
import type { Report } from '../report/report.js'
import { digits } from '../report/table.js'
import { build, readArguments, root, runJavaScript, runPeers } from './suites.js'

const { only, rounds } = readArguments(process.argv.slice(2))
const recorded = JSON.parse(readFileSync(join(root, 'bench', 'recorded.json'), 'utf8')) as Recorded

const measured = (start: string): Report[] => [
  runPeers({ only: start, rounds }),
  runJavaScript({ only: start, rounds }),
]

function tell({ id, recorded: was, bound, ratio }: Worse): string {
  const found = ratio === undefined ? 'not measured' : `measured ${digits(ratio)}`
  return `${id}: ${found}, recorded ${digits(was.ratio)}, ${was.better === 'less' ? 'at most' : 'at least'} ${digits(bound)} with a noise band of ${was.band}`
}

build()
const reports = measured(only)
let worse = worseThan(recorded, reports, only)
if (worse.length > 0) {
  console.log(`\nworse, measured again:\n${worse.map(tell).join('\n')}`)
  const suspects = worse.map(({ id }) => id)
  const again = [...new Set(suspects.map(id => id.slice(0, id.indexOf('/'))))].flatMap(measured)
  worse = worseThan(recorded, again, only).filter(({ id }) => suspects.includes(id))
}

const cpu = reports[0]?.machine?.cpu
if (cpu !== undefined && cpu !== recorded.cpu)
  console.log(`\nrecorded on another processor: ${recorded.cpu}; this is ${cpu}`)
const added = unrecorded(recorded, reports)
if (added.length > 0) console.log(`\nnot recorded yet: ${added.join(', ')}`)
const compared = Object.keys(recorded.ratios).filter(id => id.startsWith(only)).length
console.log(
  worse.length === 0
    ? `\n${compared} ratios, none worse than its band`
    : `\nworse than recorded:\n${worse.map(tell).join('\n')}`,
)
process.exitCode = worse.length === 0 ? 0 : 1
