// What has to be on the machine before the CUDA build begins.
import { ask, exists } from '../steps.mjs'
import { Refusal } from '../refusal.mjs'

const PROGRAMS = {
  cargo: 'Rust: https://rustup.rs',
  gcc: 'a C compiler (Debian: build-essential)',
  'g++': 'a C++ compiler, which nvcc calls (Debian: build-essential)',
  ar: 'binutils',
  strip: 'binutils',
  readelf: 'binutils',
}

/** Refuses a machine that the build does not know, or one that lacks a program, and names all that are missing. */
export function checkMachine({ platform = process.platform, arch = process.arch, found = exists } = {}) {
  if (platform !== 'linux' || arch !== 'x64') {
    throw new Refusal(`the CUDA build runs on Linux with x86-64, this is ${platform} with ${arch}: its link stubs are written for that processor's calls`)
  }
  const missing = Object.keys(PROGRAMS).filter(program => !found(program))
  if (missing.length > 0) {
    throw new Refusal(missing.map(program => `${program} is missing: it comes with ${PROGRAMS[program]}`).join('\n'))
  }
  if (found === exists && ask('ldd', ['--version'])?.includes('musl')) {
    throw new Refusal('the CUDA build needs a system with glibc: NVIDIA has no driver for musl')
  }
}
