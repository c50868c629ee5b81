// The suite of the TypeScript API: prints a table, and writes the report as JSON to `--out`.
//
//   npx tsx bench/javascript.ts [--only <start of an id>] [--rounds <n>] [--out <file>]
import { writeFileSync } from 'node:fs'

import { readArguments } from './arguments.js'
import type { Report, Skipped, Workload } from './report.js'
import { digits } from './table.js'
import { WORKLOADS } from './workloads/index.js'

const { only, rounds, out } = readArguments(process.argv.slice(2))

const workloads: Workload[] = []
const skipped: Skipped[] = []
for (const [id, run] of Object.entries(WORKLOADS)) {
  if (!id.startsWith(only)) continue
  const workload = await run(rounds)
  if ('skipped' in workload) {
    skipped.push(workload)
    console.log(`\nSKIPPED ${workload.id}: ${workload.skipped}`)
    continue
  }
  workloads.push(workload)
  console.log(`\n${workload.title}, ns per ${workload.operation}`)
  for (const { name, median, p10, p90 } of workload.lanes) {
    console.log(`  ${name.padEnd(44)} ${digits(median).padStart(12)}  (${digits(p10)} to ${digits(p90)})`)
  }
  for (const { says, ratio, low, high } of workload.claims) console.log(`  ${says} = ${digits(ratio)} (${digits(low)} to ${digits(high)})`)
}

const engine = `Node ${process.versions.node}, V8 ${process.versions.v8}`
const report: Report = { suite: 'javascript', rounds, engine, workloads, skipped }
if (out !== undefined) writeFileSync(out, `${JSON.stringify(report, null, 2)}\n`)
