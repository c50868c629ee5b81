// `npm run test:cuda`: runs the tests of caches on each device, with the addon with CUDA if it is built, then the tests of the kernels.
//
// Without a GPU, tests that need one are skipped and counted. With `--emulated` the kernels run on the CPU instead, thread by thread,
// under all tests of caches, with a separate addon in target/emulated.
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'

import { main } from '../refusal.mjs'
import { must, root, run } from '../steps.mjs'
import { ADDON } from './binary.mjs'
import { deviceTests, gpuOf, kernelTests, summary } from './carried/parts.mjs'
import { cudaEnvironment } from './environment.mjs'
import { buildKernelTests, countKernelTests } from './programs.mjs'

const SUITE = ['__test__/devices']

/** The number of random cases of a test if the CPU runs every thread. */
const EMULATED_CASES = '40'

async function onGpu() {
  const built = existsSync(join(root, ADDON))
  const env = { KVTIDE_DEVICE: built ? 'cuda' : 'cpu' }
  const doctor = "console.log((await (await import('./lib/cli/doctor.ts')).doctor.run({ values: {}, files: [] })).text)"
  const { output } = await run(process.execPath, ['--import=tsx', '--input-type=module', '--eval', doctor], { env })
  const gpu = built ? gpuOf(output) : { usable: false, reason: `${ADDON} is not built: npm run build:cuda` }
  const parts = [await deviceTests(run, 'ava', SUITE, { env })]
  if (gpu.usable) {
    const programs = await buildKernelTests(await cudaEnvironment())
    parts.push(
      await kernelTests(
        run,
        programs.map(({ file }) => file),
        gpu,
      ),
    )
  } else {
    parts.push({ name: 'kernels', passed: 0, failed: 0, skipped: countKernelTests() })
  }
  return summary(parts, gpu)
}

async function emulated() {
  const folder = join(root, 'target', 'emulated')
  const named = ['--output-dir', folder, '--no-js', '--dts', 'binding.d.cts', '--no-const-enum']
  await must('napi', ['build', '--platform', '--release', '--features', 'emulate', ...named])
  const addon = join(
    folder,
    readdirSync(folder).find(name => name.endsWith('.node')),
  )
  const cases = process.env.KVTIDE_CASES_JS || EMULATED_CASES
  const env = {
    KVTIDE_DEVICE: 'cpu',
    KVTIDE_KERNELS: 'emulated',
    KVTIDE_CASES_JS: cases,
    NAPI_RS_NATIVE_LIBRARY_PATH: addon,
  }
  const gpu = { usable: false, reason: 'the kernels have run on the CPU' }
  return summary([await deviceTests(run, 'ava', SUITE, { env })], gpu)
}

await main(import.meta.url, 'cannot test on a GPU', async () => {
  const { text, code } = await (process.argv.includes('--emulated') ? emulated() : onGpu())
  console.log(`\n${text}`)
  process.exitCode = code
})
