// `npm run check:kernels`: compiles and assembles each kernel for the GPUs that are named here, without a GPU, and says how many
// registers it takes. One that spills fails.
//
// The toolkit is that of the CUDA build. Where there can be none, it says SKIPPED.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import { root, run, temporary } from '../steps.mjs'
import { main, Refusal } from '../refusal.mjs'
import { checkMachine } from './environment.mjs'
import { toolkit } from './toolkit.mjs'

/** The oldest that runs them, the one they are made for, and the newest that the compiler knows well. */
const GPUS = ['sm_80', 'sm_90', 'sm_120']

/** The files of which the build wants products and sums rounded one by one: as its script names them. */
export function exactFiles(build = readFileSync(join(root, 'crates', 'kvtide-cuda', 'build.rs'), 'utf8')) {
  const names = /const EXACT: \[&str; \d+\] = \[([^\]]*)\]/.exec(build)?.[1]?.match(/\w+/g)
  if (!names) throw new Error('build.rs does not say which kernels are exact')
  return new Set(names.map(name => `${name}.cu`))
}

const KERNELS = join('crates', 'kvtide-cuda', 'kernels')

/** The kernels in what `ptxas -v` prints: `{ name, registers, spilled }`, bytes that go to memory and back. */
export function assembled(text) {
  const kernels = []
  for (const part of text.split(/Compiling entry function '/).slice(1)) {
    const [, name] = /^(\w+)'/.exec(part) ?? []
    const [, stores, loads] = /(\d+) bytes spill stores, (\d+) bytes spill loads/.exec(part) ?? []
    const [, registers] = /Used (\d+) registers/.exec(part) ?? []
    if (name === undefined || loads === undefined || registers === undefined) {
      throw new Error(`the assembler said something else than expected: ${part}`)
    }
    kernels.push({ name, registers: Number(registers), spilled: Number(stores) + Number(loads) })
  }
  return kernels
}

/** A line for each file: how many kernels, the most registers, and which of them spill. */
export function table(files) {
  const rows = files.map(({ file, gpu, kernels }) => {
    const spilling = kernels.filter(kernel => kernel.spilled > 0)
    const most = Math.max(...kernels.map(kernel => kernel.registers))
    const spilled = spilling.length === 0 ? 'none' : spilling.map(({ name, spilled: bytes }) => `${name} ${bytes} bytes`).join(', ')
    return [file, gpu, `${kernels.length} kernels`, `${most} registers at most`, `spilled: ${spilled}`]
  })
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map(row => row[column].length))) ?? []
  return rows.map(row => row.map((cell, column) => cell.padEnd(widths[column])).join('  ').trimEnd()).join('\n')
}

async function compile(nvcc, file, gpu, folder) {
  const flags = ['--cubin', '-O3', '-std=c++17', ...(exactFiles().has(file) ? ['-fmad=false'] : []), '-Xptxas', '-v', '-arch', gpu]
  const { code, output } = await run(nvcc, [...flags, '-o', join(folder, `${file}.${gpu}.cubin`), join(KERNELS, file)], { silent: true })
  if (code !== 0) throw new Refusal(`${file} does not compile for ${gpu}:\n${output}`)
  return { file, gpu, kernels: assembled(output) }
}

async function check() {
  let tools
  try {
    checkMachine()
    tools = await toolkit(join(root, 'target', 'cuda'))
  } catch (error) {
    if (!(error instanceof Refusal)) throw error
    return console.log(`SKIPPED: kernels for GPUs are not compiled here: ${error.message}`)
  }
  const folder = temporary('kernels')
  const done = []
  for (const file of readdirSync(join(root, KERNELS)).filter(name => name.endsWith('.cu')).sort()) {
    done.push(...(await Promise.all(GPUS.map(gpu => compile(join(tools.home, 'bin', 'nvcc'), file, gpu, folder)))))
  }
  console.log(`CUDA ${tools.version.join('.')}\n${table(done)}`)
  if (done.some(({ kernels }) => kernels.some(kernel => kernel.spilled > 0))) throw new Refusal('a kernel has more in use than there are registers')
}

await main(import.meta.url, 'the kernels are not as they should be', check)
