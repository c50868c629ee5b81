// Runs parts of the bundle, each in at most nine minutes, with a summary after each. run.sh starts it with node and the
// folders of CUDA's libraries.
//
//   caches      the caches' tests, each once for each device
//   kernels     the kernels' own tests, one at a time: they share a stream
//   sanitize    kernels under memcheck and racecheck of compute-sanitizer
//   bench       the kernels' speed, next to PyTorch and others (bench.mjs): workloads whose ids begin with the following words
//
// Without a part, all but bench run. The output is also written to a file for each part, and the summaries to summary.txt, in the folder that
// `--out` or OUT names. With `--require-gpu` the exit code is 3 if anything was skipped for want of a GPU.
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'

import { measured } from './bench.mjs'
import { askedParts, deviceTests, gpuOf, kernelTests, sanitized, summary } from './parts.mjs'
import { run } from './program.mjs'

const here = fileURLToPath(new URL('.', import.meta.url))
const compiled = join(here, 'package')
const MINUTES = 9

function sanitizer() {
  const installed = existsSync('/usr/local') ? readdirSync('/usr/local') : []
  const cuda = installed.flatMap(name =>
    name.startsWith('cuda') ? [`/usr/local/${name}/bin`, `/usr/local/${name}/compute-sanitizer`] : [],
  )
  const folders = [...(process.env.PATH ?? '').split(delimiter).filter(folder => folder !== ''), ...cuda]
  return folders.map(folder => join(folder, 'compute-sanitizer')).find(existsSync)
}

const asked = (() => {
  try {
    return askedParts(process.argv.slice(2), process.env.OUT)
  } catch (error) {
    console.error(error.message)
    process.exit(2)
  }
})()
if (asked.out !== undefined) mkdirSync(asked.out, { recursive: true })

const doctor = await run(
  process.execPath,
  [
    '--input-type=module',
    '--eval',
    "console.log((await (await import('./lib/cli/doctor.js')).doctor.run({ values: {}, files: [] })).text)",
  ],
  { cwd: compiled, env: { KVTIDE_DEVICE: 'cuda' } },
)
const gpu = gpuOf(doctor.output)
const programs = readdirSync(join(here, 'kernels'))
  .sort()
  .map(name => join(here, 'kernels', name))

const PARTS = {
  caches: async runIn => [
    await deviceTests(runIn, process.execPath, [join(compiled, 'node_modules', 'ava', 'entrypoints', 'cli.js')], {
      cwd: compiled,
      env: { KVTIDE_DEVICE: 'cuda' },
    }),
  ],
  kernels: async runIn => [await kernelTests(runIn, programs, gpu)],
  sanitize: runIn => sanitized(runIn, programs, gpu, sanitizer()),
  bench: runIn => measured(runIn, asked.bench, asked.out, gpu),
}

const all = doctor.code === 0 ? [] : [{ name: 'doctor', passed: 0, failed: 1, skipped: 0 }]
let last = summary(all, gpu)
for (const part of asked.parts) {
  const until = Date.now() + MINUTES * 60_000
  let log = ''
  const runIn = async (command, args, options) => {
    const answer = await run(command, args, { until, ...options })
    log += answer.output
    return answer
  }
  all.push(...(await PARTS[part](runIn)))
  last = summary(all, gpu)
  console.log(`\n${last.text}\n`)
  if (asked.out === undefined) continue
  // A log is limited to 15 MB, because machines may return files of at most 16 MiB.
  writeFileSync(join(asked.out, `${part}.log`), log.slice(-15_000_000))
  writeFileSync(join(asked.out, 'summary.txt'), `${doctor.output}\n${last.text}\n`)
}
process.exitCode = last.code === 0 && asked.requireGpu && !gpu.usable ? 3 : last.code
