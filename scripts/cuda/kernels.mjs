// `npm run check:kernels`: compiles and assembles each kernel for the GPUs that are named here, without a GPU, and says how many
// registers it takes. One that spills fails.
//
// The toolkit is that of the CUDA build. Where there can be none, it says SKIPPED.
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { root, run } from '../steps.mjs'
import { assembled, table } from './ptxas.mjs'
import { Refusal } from '../refusal.mjs'
import { checkMachine } from './environment.mjs'
import { toolkit } from './toolkit.mjs'

/** The oldest that runs them, the one they are made for, and the newest that the compiler knows well. */
const GPUS = ['sm_80', 'sm_90', 'sm_120']

const KERNELS = join('crates', 'kvtide-cuda', 'kernels')

async function compile(nvcc, file, gpu, folder) {
  const flags = ['--cubin', '-O3', '-std=c++17', '-fmad=false', '-Xptxas', '-v', '-arch', gpu]
  const { code, output } = await run(nvcc, [...flags, '-o', join(folder, `${file}.${gpu}.cubin`), join(KERNELS, file)], { silent: true })
  if (code !== 0) throw new Error(`${file} does not compile for ${gpu}:\n${output}`)
  return { file, gpu, kernels: assembled(output) }
}

async function check() {
  checkMachine()
  const tools = await toolkit(join(root, 'target', 'cuda'))
  const files = readdirSync(join(root, KERNELS)).filter(name => name.endsWith('.cu')).sort()
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-kernels-'))
  try {
    const done = []
    for (const file of files) done.push(...(await Promise.all(GPUS.map(gpu => compile(join(tools.home, 'bin', 'nvcc'), file, gpu, folder)))))
    console.log(`CUDA ${tools.version.join('.')}\n${table(done)}`)
    if (done.some(({ kernels }) => kernels.some(kernel => kernel.spilled > 0))) throw new Error('a kernel has more in use than there are registers')
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

try {
  await check()
} catch (error) {
  if (error instanceof Refusal) console.log(`SKIPPED: kernels for GPUs are not compiled here: ${error.message}`)
  else {
    console.error(error.message)
    process.exitCode = 1
  }
}
