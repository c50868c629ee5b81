// The kernels of GPUs on the CPU that stands in for one: their own tests, and those of the caches over them.
//
// They run thread by thread, so that the random tests take fewer sequences than usual.
import { exists, hostTarget, must } from './steps.mjs'

const target = hostTarget()
const onTarget = target === undefined ? [] : ['--target', target]

if (!['c++', 'g++', 'clang++'].some(exists)) {
  console.log('SKIPPED: kernels for GPUs are not run on the CPU: there is no C++ compiler')
} else {
  await must('cargo', ['clippy', '--release', '-p', 'kvtide-cuda', '-p', 'kvtide-tensor', '--all-targets', '--features', 'kvtide-tensor/emulate', ...onTarget, '--', '-D', 'warnings'])
  await must('cargo', ['test', '--release', '-p', 'kvtide-cuda', '-p', 'kvtide-tensor', '--features', 'kvtide-tensor/emulate', ...onTarget], {
    env: { KVTIDE_KERNELS: 'emulated', KVTIDE_CASES: process.env.KVTIDE_CASES ?? '50' },
  })
}
