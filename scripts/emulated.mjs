// The kernels of GPUs on the CPU that stands in for one: their own tests, those of the caches over them, and bench/cuda in small.
//
// They run thread by thread, so that the random tests take fewer sequences than usual.
import { exists, must, onTarget } from './steps.mjs'

if (!['c++', 'g++', 'clang++'].some(exists)) {
  console.log('SKIPPED: kernels for GPUs are not run on the CPU: there is no C++ compiler')
} else {
  const crates = ['-p', 'kvtide-cuda', '-p', 'kvtide-tensor', '-p', 'kvtide-bench-cuda', '--features', 'kvtide-tensor/emulate,kvtide-tensor/captured-steps,kvtide-bench-cuda/emulate', ...onTarget()]
  await must('cargo', ['clippy', '--release', '--all-targets', ...crates, '--', '-D', 'warnings'])
  await must('cargo', ['test', '--release', ...crates], {
    env: { KVTIDE_KERNELS: 'emulated', KVTIDE_CASES: process.env.KVTIDE_CASES ?? '50' },
  })
}
