// Runs the GPU kernels on the CPU, which emulates a GPU: the tests of the caches over them, and bench/cuda with small sizes. `npm test` runs the
// kernels' own tests.
//
// They run thread by thread, so the random tests use fewer and shorter sequences than usual.
import { canEmulate, ONE_THREAD, tested, testsOf } from './crates.mjs'
import { must, onTarget } from './steps.mjs'

if (canEmulate) {
  const tests = testsOf('kvtide-tensor')
  await must('cargo', ['test', '--release', ...tested, ...tests, '--test', 'emulated', ...onTarget()], {
    env: {
      ...ONE_THREAD,
      KVTIDE_KERNELS: 'emulated',
      KVTIDE_CASES: process.env.KVTIDE_CASES ?? '25',
      KVTIDE_CALLS: '24',
    },
  })
} else console.log('SKIPPED: emulated GPU kernels: there is no C++ compiler')
