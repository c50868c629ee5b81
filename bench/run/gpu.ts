// `npm run bench:cuda -- [results.json]`: writes GPU results into bench/RESULTS.md, and copies them to bench/cuda/results.json.
// Without a file, it writes the section again from that copy.
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'

import { gpuSection, RECORDED, readResults, withSection } from '../report/gpu.js'
import { root } from './suites.js'

const [given, ...rest] = process.argv.slice(2)
if (rest.length > 0) throw new RangeError(`${rest.join(' ')}: expected one file, the results.json of a run`)
if (given !== undefined) {
  // Paths are relative to the folder in which the command was given.
  const file = resolve(process.env['INIT_CWD'] ?? '.', given)
  const results = readResults(file)
  if (results === undefined) throw new RangeError(`${file} does not exist: expected the results.json of a run`)
  if (results.workloads.length === 0)
    throw new RangeError(`${file} has no workload: ${results.skipped[0]?.skipped ?? 'nothing has run'}`)
  if (file !== RECORDED) copyFileSync(file, RECORDED)
}
const results = readResults()
const page = join(root, 'bench', 'RESULTS.md')
writeFileSync(page, withSection(readFileSync(page, 'utf8'), gpuSection(results)))
console.log(
  `written: bench/RESULTS.md, ${results === undefined ? 'without GPU results' : `${results.workloads.length} GPU workloads`}`,
)
