// Checks the requirements of the CUDA build, and sets the environment of cargo and of candle's build scripts.
import { createHash } from 'node:crypto'
import { copyFileSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, symlinkSync } from 'node:fs'
import { availableParallelism, totalmem } from 'node:os'
import { dirname, join } from 'node:path'

import { Refusal } from '../refusal.mjs'
import { metadata } from '../release/cargo.mjs'
import { ask, exists, root } from '../steps.mjs'
import { compileStub, describeStubs } from './stubs.mjs'
import { cudarcVersion, toolkit } from './toolkit.mjs'

/**
 * The oldest supported GPU. Its PTX runs on it and on everything newer, because a driver compiles PTX for the GPU of the machine. From 90 on, nvcc
 * would get `90a`, which is for that one GPU alone.
 */
const OLDEST_GPU = '80'

const NVCC_BYTES = 3 * 2 ** 30

/** The folder of all files that these scripts make. */
export const cudaFolder = join(root, 'target', 'cuda')

/** Returns the toolkit's version and the build environment. It installs the toolkit and makes the link stubs if they are missing. */
export async function cudaEnvironment() {
  checkMachine()
  mkdirSync(cudaFolder, { recursive: true })
  const tools = await toolkit(cudaFolder)
  console.log(
    `CUDA ${tools.version.join('.')} of ${tools.home}, for compute capability ${process.env.CUDA_COMPUTE_CAP || OLDEST_GPU}`,
  )
  const home = cudaHome(cudaFolder, tools, describeStubs(cudarcFolder(), tools.version[0]))
  return environment(home, tools.version)
}

/** Returns an environment without the variables of another CUDA on the machine. */
function environment(home, version) {
  const jobs = Math.max(1, Math.min(availableParallelism(), Math.floor(totalmem() / NVCC_BYTES)))
  return {
    CUDA_HOME: home,
    ...Object.fromEntries(
      ['CUDA_PATH', 'CUDA_ROOT', 'CUDA_TOOLKIT_ROOT_DIR', 'CUDNN_LIB', 'NVCC'].map(name => [name, undefined]),
    ),
    PATH: [join(home, 'bin'), join(root, 'node_modules', '.bin'), process.env.PATH].join(':'),
    CUDA_COMPUTE_CAP: process.env.CUDA_COMPUTE_CAP || OLDEST_GPU,
    CUDARC_CUDA_VERSION: cudarcVersion(version),
    CUDAFORGE_THREADS: process.env.CUDAFORGE_THREADS || String(jobs),
    NVCC_APPEND_FLAGS: [process.env.NVCC_APPEND_FLAGS, ...compressed(version)].filter(Boolean).join(' '),
  }
}

/** Returns flags that compress machine code for GPUs, which would otherwise be half of the file; compilers from 12.8 on support it. */
function compressed([major, minor]) {
  return major > 12 || (major === 12 && minor >= 8) ? ['--compress-mode=size'] : []
}

const PROGRAMS = {
  cargo: 'Rust: https://rustup.rs',
  gcc: 'a C compiler (Debian: build-essential)',
  'g++': 'a C++ compiler, which nvcc calls (Debian: build-essential)',
  ar: 'binutils',
  strip: 'binutils',
  readelf: 'binutils',
}

/** Refuses an unsupported machine, or one that lacks programs, and names all missing programs. */
export function checkMachine({ platform = process.platform, arch = process.arch, found = exists } = {}) {
  if (platform !== 'linux' || arch !== 'x64') {
    throw new Refusal(
      `the CUDA build runs on Linux with x86-64, this is ${platform} with ${arch}: its link stubs are written for that processor's calls`,
    )
  }
  const missing = Object.keys(PROGRAMS).filter(program => !found(program))
  if (missing.length > 0) {
    throw new Refusal(missing.map(program => `${program} is missing: it comes with ${PROGRAMS[program]}`).join('\n'))
  }
  if (found === exists && ask('ldd', ['--version'])?.includes('musl')) {
    throw new Refusal('the CUDA build needs a system with glibc: NVIDIA has no driver for musl')
  }
}

/** Returns the folder with the sources of cudarc, through which candle calls CUDA, in the version that Cargo.lock names. */
function cudarcFolder() {
  const found = metadata(['--features', 'cuda', '--filter-platform', 'x86_64-unknown-linux-gnu']).packages.find(
    ({ name }) => name === 'cudarc',
  )
  if (found === undefined) throw new Refusal('cargo does not list cudarc among the dependencies')
  return dirname(found.manifest_path)
}

const MADE_BY = ['environment.mjs', 'stubs.mjs']

/**
 * Makes the folder that the build uses as CUDA_HOME: compiler and headers of the toolkit, and the link stubs as its only libraries.
 *
 *   target/cuda/home-<hash of its contents>/  bin, include, nvvm -> toolkit    lib/ libcuda.a, libcublas.a, …, libcudart.a
 *
 * cudarc tells the linker to look there and nowhere else, so the linker finds only the stubs, whatever else the machine
 * has. Another toolkit or other stubs use another folder, and cargo rebuilds everything that depends on it.
 */
export function cudaHome(folder, { home, version }, stubs) {
  const digest = createHash('sha256').update(JSON.stringify([home, version, stubs]))
  for (const file of MADE_BY) digest.update(readFileSync(new URL(file, import.meta.url)))
  const whole = join(folder, `home-${digest.digest('hex').slice(0, 12)}`)
  if (existsSync(whole)) return whole

  const partial = `${whole}.partial`
  rmSync(partial, { recursive: true, force: true })
  mkdirSync(join(partial, 'lib'), { recursive: true })
  for (const part of ['bin', 'include', 'nvvm']) symlinkSync(join(home, part), join(partial, part))
  for (const stub of stubs) compileStub(join(partial, 'lib'), stub)
  // The static form of the CUDA runtime opens the driver by itself, at its first use.
  copyFileSync(staticRuntime(home), join(partial, 'lib', 'libcudart.a'))
  renameSync(partial, whole)
  return whole
}

function staticRuntime(home) {
  const places = ['lib', 'lib64', 'targets/x86_64-linux/lib'].map(place => join(home, place, 'libcudart_static.a'))
  const found = places.find(file => existsSync(file))
  if (found === undefined) throw new Refusal(`the toolkit has no libcudart_static.a: looked for ${places.join(', ')}`)
  return found
}
