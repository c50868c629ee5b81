// `npm run build:cuda`: the addon with CUDA, beside the ordinary one, on a machine that needs neither GPU nor driver nor CUDA.
//
//   toolkit (CUDA_HOME, or wheels)  ->  link stubs  ->  napi build --features cuda  ->  strip, describe
//
// What is compiled lies in target/ with everything else: cargo tells builds with and without the feature apart, and makes
// neither of them twice.
import { mkdirSync, renameSync } from 'node:fs'
import { availableParallelism, totalmem } from 'node:os'
import { join } from 'node:path'

import { must, root } from '../steps.mjs'
import { describe } from './binary.mjs'
import { cudarcFolder } from './cudarc.mjs'
import { cudaHome } from './home.mjs'
import { Refusal } from './refusal.mjs'
import { checkMachine } from './requirements.mjs'
import { describeStubs } from './stubs.mjs'
import { cudarcVersion, toolkit } from './toolkit.mjs'

const FILE = 'kvtide-cuda.linux-x64-gnu.node'

/**
 * The oldest GPU that is compiled for. Its PTX runs on it and on everything newer, since a driver compiles PTX for the GPU
 * that is there. From 90 on nvcc would be asked for `90a`, which is for that one GPU alone.
 */
const OLDEST_GPU = '80'

/** The most memory that one run of nvcc over candle's kernels takes. */
const NVCC_BYTES = 3 * 2 ** 30

/** What cargo and the build scripts of candle's crates are told. Nothing of another CUDA on the machine gets through. */
function environment(home, version) {
  const jobs = Math.max(1, Math.min(availableParallelism(), Math.floor(totalmem() / NVCC_BYTES)))
  return {
    CUDA_HOME: home,
    ...Object.fromEntries(['CUDA_PATH', 'CUDA_ROOT', 'CUDA_TOOLKIT_ROOT_DIR', 'CUDNN_LIB', 'NVCC'].map(name => [name, undefined])),
    PATH: [join(home, 'bin'), join(root, 'node_modules', '.bin'), process.env.PATH].join(':'),
    CUDA_COMPUTE_CAP: process.env.CUDA_COMPUTE_CAP || OLDEST_GPU,
    CUDARC_CUDA_VERSION: cudarcVersion(version),
    CUDAFORGE_THREADS: process.env.CUDAFORGE_THREADS || String(jobs),
    NVCC_APPEND_FLAGS: [process.env.NVCC_APPEND_FLAGS, ...compressed(version)].filter(Boolean).join(' '),
  }
}

/** Machine code for GPUs, which is half of the file otherwise; compilers from 12.8 on can make it small. */
function compressed([major, minor]) {
  return major > 12 || (major === 12 && minor >= 8) ? ['--compress-mode=size'] : []
}

async function build() {
  checkMachine()
  const folder = join(root, 'target', 'cuda')
  mkdirSync(folder, { recursive: true })
  const tools = await toolkit(folder)
  console.log(`CUDA ${tools.version.join('.')} of ${tools.home}`)
  const home = cudaHome(folder, tools, describeStubs(cudarcFolder(), tools.version[0]))

  // The generated loader and types go to a folder of their own: the package has those of the ordinary build.
  const output = join(folder, 'output')
  const named = ['--config-path', 'scripts/cuda/napi.json', '--output-dir', output, '--js', 'binding.cjs', '--dts', 'binding.d.cts']
  const env = environment(home, tools.version)
  await must('napi', ['build', '--platform', '--release', '--no-const-enum', '--features', 'cuda', ...named], { env })

  const built = join(output, FILE)
  await must('strip', ['--strip-all', built])
  console.log(`\n${FILE}\n${describe(built)}`)
  renameSync(built, join(root, FILE))
}

try {
  await build()
} catch (error) {
  if (!(error instanceof Refusal)) throw error
  console.error(`cannot build for CUDA: ${error.message}`)
  process.exitCode = 1
}
