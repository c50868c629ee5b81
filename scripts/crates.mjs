// The lists of this repository's crates that scripts pass to cargo.
import { readdirSync } from 'node:fs'
import { join } from 'node:path'

import { exists, root } from './steps.mjs'

const packages = names => names.flatMap(name => ['-p', name])

/** The features for grammars and the network, with which the crates are compiled as for the addon of a checkout. */
const NET = ['kvtide-sample/grammar', 'kvtide-tiers/objects', 'kvtide-tiers/redis', 'kvtide-router/zeromq']

const LIBRARIES = [
  'kvtide-core',
  'kvtide-files',
  'kvtide-onnx',
  'kvtide-router',
  'kvtide-sample',
  'kvtide-tensor',
  'kvtide-tiers',
]

/** The published crates, except the GPU kernels, which are compiled separately. */
export const libraries = [...packages(LIBRARIES), '--features', NET.join()]

/** True if GPU kernels can be compiled for the CPU, which emulates a GPU. */
export const canEmulate = ['c++', 'g++', 'clang++'].some(exists)
const EMULATED = canEmulate ? ['kvtide-tensor/emulate', 'kvtide-bench-cuda/emulate'] : []

/** Settings of tests: as one codegen unit, kvtide-tensor would be compiled on one core while nothing else can be. */
export const inParts = ['--config', 'profile.release.package.kvtide-tensor.codegen-units=16']

/** All crates whose tests run on any machine. With one list of crates, features and settings, cargo compiles the tests once for all steps that run them. */
export const tested = [
  ...packages([
    ...LIBRARIES,
    'kvtide-cuda',
    'decoder',
    'routing',
    'kvtide-bench',
    'kvtide-bench-cuda',
    'kvtide-bench-pool',
    'kvtide-bench-states',
  ]),
  '--features',
  [...NET, ...EMULATED].join(),
  ...inParts,
]

/** The environment of Rust tests. Without a number, candle reads /proc/cpuinfo before each product, which takes longer than the small products of tests. */
export const ONE_THREAD = { RAYON_NUM_THREADS: '1' }

/** Returns arguments of `cargo test` that select the unit tests of `tested`, and the integration tests of some crates. */
export function testsOf(...crates) {
  const names = crates.flatMap(crate => {
    const folder = join(root, 'crates', crate, 'tests')
    return readdirSync(folder, { withFileTypes: true })
      .filter(entry => entry.isFile() || readdirSync(join(folder, entry.name)).includes('main.rs'))
      .map(({ name }) => name.replace(/\.rs$/, ''))
  })
  return ['--lib', ...names.flatMap(name => ['--test', name])]
}
