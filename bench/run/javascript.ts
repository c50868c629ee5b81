// The suite of the TypeScript API: prints a table, and writes the report as JSON to `--out`.
//
//   npx tsx bench/run/javascript.ts [--only <start of an id>] [--rounds <n>] [--out <file>]
import { writeFileSync } from 'node:fs'

import { sectionOf, type Report, type Skipped, type Workload } from '../report/report.js'
import { attentionOverCaches } from '../workloads/attention.js'
import { deadStore } from '../workloads/dead-store.js'
import { growable } from '../workloads/growable.js'
import { besideLlamaCpp, clients, decode, prefill, shared } from '../workloads/onnx.js'
import { paged } from '../workloads/paged.js'
import { pauses } from '../workloads/pauses.js'
import { prepare } from '../workloads/prepare.js'
import { attentionBesidePyTorch } from '../workloads/pytorch.js'
import { rollback } from '../workloads/rollback.js'
import { rotating } from '../workloads/rotating.js'
import { routing } from '../workloads/routing.js'
import { saving } from '../workloads/saving.js'
import { step } from '../workloads/step.js'
import { bring } from '../workloads/tiers.js'
import { transformers } from '../workloads/transformers.js'
import { view } from '../workloads/view.js'
import { machineHere } from './machine.js'
import { readArguments } from './suites.js'

/** The number of rounds if each takes seconds; rounds of the clients take minutes. */
const few = (rounds: number): number => Math.min(rounds, 5)

const some = (rounds: number): number => Math.min(rounds, 7)

/** Every workload by its id, in the order of the report. A new one is a file of bench/workloads and a line here. */
const WORKLOADS: Readonly<Record<string, (rounds: number) => Promise<Workload | Skipped>>> = {
  'js-rotating': rounds => rotating([512, 4096, 32768], rounds),
  'js-growable': rounds => growable(2048, rounds),
  'js-rollback': rounds => rollback(4096, rounds),
  'js-paged': rounds => paged(2048, rounds),
  'js-step': rounds => step(1024, rounds),
  'js-prepare': rounds => prepare({ sequences: 1000, blocks: 512 }, rounds),
  'js-view': rounds => view(4096, rounds),
  'js-attention': rounds => attentionOverCaches(8192, rounds),
  'js-attention-pytorch': rounds => attentionBesidePyTorch(8192, rounds),
  'js-onnx-256-1': rounds => decode(256, 1, 1, rounds, { peer: 1 }),
  'js-onnx-256-2': rounds => decode(256, 1, 2, rounds, { peer: 1 }),
  'js-onnx-2048-1': rounds => decode(2048, 1, 1, rounds, { peer: 1.7 }),
  'js-onnx-2048-2': rounds => decode(2048, 1, 2, rounds, { peer: 2 }),
  'js-onnx-8192-1': rounds => decode(8192, 1, 1, rounds, { peer: 2.8, parts: 1.15 }),
  'js-onnx-8192-2': rounds => decode(8192, 1, 2, rounds, { peer: 3.5, parts: 1.15 }),
  'js-onnx-8x2048-1': rounds => decode(2048, 8, 1, rounds, { peer: 2.3 }),
  'js-onnx-8x2048-2': rounds => decode(2048, 8, 2, rounds, { peer: 3.2 }),
  'js-onnx-prefill-2048-1': rounds => prefill(2048, 1, few(rounds)),
  'js-onnx-prefill-2048-2': rounds => prefill(2048, 2, few(rounds)),
  'js-onnx-shared-1000-2': rounds => shared(1000, 20, 2, few(rounds)),
  'js-onnx-clients-16-2': rounds => clients(16, 512, 128, 2, Math.min(rounds, 2)),
  'js-saving-1024': rounds => saving(1024, few(rounds)),
  'js-tiers-16-f32': rounds => bring(16, 'f32', rounds, 2),
  'js-tiers-2000-f32': rounds => bring(2000, 'f32', some(rounds), 2),
  'js-tiers-2000-f16': rounds => bring(2000, 'f16', some(rounds)),
  'js-dead-store-256': rounds => deadStore(256, some(rounds)),
  'js-pauses-2000': rounds => pauses(2000, some(rounds)),
  'js-routing-625-64': rounds => routing(625, 64, rounds),
  'js-transformers-1000-2': rounds => transformers(1000, 20, 32, 2, few(rounds)),
  'js-onnx-llama-cpp-8-2': rounds => besideLlamaCpp(8, 256, 64, 2, few(rounds)),
}

const machine = machineHere()
const { only, rounds, out } = readArguments(process.argv.slice(2))
const workloads: Workload[] = []
const skipped: Skipped[] = []
for (const [id, run] of Object.entries(WORKLOADS)) {
  if (!id.startsWith(only)) continue
  const workload = await run(rounds)
  if ('skipped' in workload) skipped.push(workload)
  else workloads.push(workload)
  console.log('skipped' in workload ? `\nSKIPPED ${workload.id}: ${workload.skipped}` : `\n${sectionOf(workload)}`)
}

const engine = `Node ${process.versions.node}, V8 ${process.versions.v8}`
const report: Report = { suite: 'javascript', rounds, machine, engine, workloads, skipped }
if (out !== undefined) writeFileSync(out, `${JSON.stringify(report, null, 2)}\n`)
