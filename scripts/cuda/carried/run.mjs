// Runs what the bundle carries, and prints one summary. run.sh starts it with node and the folders of CUDA's libraries.
import { existsSync, readdirSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'

import { deviceTests, gpuOf, kernelTests, sanitized, summary } from './parts.mjs'
import { run } from './program.mjs'

const here = fileURLToPath(new URL('.', import.meta.url))
const compiled = join(here, 'package')

function sanitizer() {
  const installed = existsSync('/usr/local') ? readdirSync('/usr/local') : []
  const cuda = installed.flatMap(name => (name.startsWith('cuda') ? [`/usr/local/${name}/bin`, `/usr/local/${name}/compute-sanitizer`] : []))
  const folders = [...(process.env.PATH ?? '').split(delimiter).filter(folder => folder !== ''), ...cuda]
  return folders.map(folder => join(folder, 'compute-sanitizer')).find(existsSync)
}

const asked = await run(process.execPath, ['--input-type=module', '--eval', "console.log((await import('./lib/loading/doctor.js')).doctor())"], { cwd: compiled, env: { KVTIDE_DEVICE: 'cuda' } })
const gpu = gpuOf(asked.output)
const programs = readdirSync(join(here, 'kernels')).sort().map(name => join(here, 'kernels', name))

const parts = [
  ...(asked.code === 0 ? [] : [{ name: 'doctor', passed: 0, failed: 1, skipped: 0 }]),
  await deviceTests(run, process.execPath, [join(compiled, 'node_modules', 'ava', 'entrypoints', 'cli.js')], { cwd: compiled, env: { KVTIDE_DEVICE: 'cuda' } }),
  await kernelTests(run, programs, gpu),
  ...(await sanitized(run, programs, gpu, sanitizer())),
]
const { text, code } = summary(parts, gpu)
console.log(`\n${text}`)
process.exitCode = code
