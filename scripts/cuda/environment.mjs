// What cargo and the build scripts of candle's crates are told when they compile for CUDA.
import { mkdirSync } from 'node:fs'
import { availableParallelism, totalmem } from 'node:os'
import { join } from 'node:path'

import { root } from '../steps.mjs'
import { cudarcFolder } from './cudarc.mjs'
import { cudaHome } from './home.mjs'
import { checkMachine } from './requirements.mjs'
import { describeStubs } from './stubs.mjs'
import { cudarcVersion, toolkit } from './toolkit.mjs'

/**
 * The oldest GPU that is compiled for. Its PTX runs on it and on everything newer, since a driver compiles PTX for the GPU
 * that is there. From 90 on nvcc would be asked for `90a`, which is for that one GPU alone.
 */
const OLDEST_GPU = '80'

/** The most memory that one run of nvcc over candle's kernels takes. */
const NVCC_BYTES = 3 * 2 ** 30

/** Where all that the scripts of this folder make lies. */
export const cudaFolder = join(root, 'target', 'cuda')

/** The toolkit's version, and the environment to build in; it gets the toolkit and makes the link stubs where they are missing. */
export async function cudaEnvironment() {
  checkMachine()
  mkdirSync(cudaFolder, { recursive: true })
  const tools = await toolkit(cudaFolder)
  console.log(`CUDA ${tools.version.join('.')} of ${tools.home}`)
  const home = cudaHome(cudaFolder, tools, describeStubs(cudarcFolder(), tools.version[0]))
  return environment(home, tools.version)
}

/** Nothing of another CUDA on the machine gets through. */
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
