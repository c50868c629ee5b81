// Runs the GPU kernels on the CPU, which emulates a GPU: their own tests, those of the caches over them, and bench/cuda with small sizes.
//
// They run thread by thread, so the random tests use fewer sequences than usual.
import { exists, must, onTarget } from './steps.mjs'

if (!['c++', 'g++', 'clang++'].some(exists)) {
  console.log('SKIPPED: emulated GPU kernels: there is no C++ compiler')
} else {
  const crates = [
    '-p',
    'kvtide-cuda',
    '-p',
    'kvtide-tensor',
    '-p',
    'kvtide-bench-cuda',
    '--features',
    'kvtide-tensor/emulate,kvtide-bench-cuda/emulate',
    ...onTarget(),
  ]
  await must('cargo', ['clippy', '--release', '--all-targets', ...crates, '--', '-D', 'warnings'])
  await must('cargo', ['test', '--release', ...crates], {
    env: { KVTIDE_KERNELS: 'emulated', KVTIDE_CASES: process.env.KVTIDE_CASES ?? '50' },
  })
}
