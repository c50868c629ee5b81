// `npm run check:kernels`: compiles and assembles each kernel for the GPUs listed here, without a GPU, and prints its number of registers.
// A kernel that spills is a failure.
//
// The toolkit is that of the CUDA build. On a machine without one, the check is SKIPPED.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import { root, run, temporary } from '../steps.mjs'
import { main, Refusal } from '../refusal.mjs'
import { checkMachine } from './environment.mjs'
import { toolkit } from './toolkit.mjs'

/** The oldest supported GPU, the one that kernels are tuned for, and the newest that the compiler supports well. */
const GPUS = ['sm_80', 'sm_90', 'sm_120']

/** Returns the files whose products and sums must be rounded one by one, as the build script lists them. */
export function exactFiles(build = readFileSync(join(root, 'crates', 'kvtide-cuda', 'build.rs'), 'utf8')) {
  const names = /const EXACT: \[&str; \d+\] = \[([^\]]*)\]/.exec(build)?.[1]?.match(/\w+/g)
  if (!names) throw new Error('build.rs does not say which kernels are exact')
  return new Set(names.map(name => `${name}.cu`))
}

const KERNELS = join('crates', 'kvtide-cuda', 'kernels')

/** Returns the kernels in the output of `ptxas -v`: `{ name, registers, spilled }`, with `spilled` in bytes. */
export function assembled(text) {
  const kernels = []
  for (const part of text.split(/Compiling entry function '/).slice(1)) {
    const [, name] = /^(\w+)'/.exec(part) ?? []
    const [, stores, loads] = /(\d+) bytes spill stores, (\d+) bytes spill loads/.exec(part) ?? []
    const [, registers] = /Used (\d+) registers/.exec(part) ?? []
    if (name === undefined || loads === undefined || registers === undefined) {
      throw new Error(`unexpected output of the assembler: ${part}`)
    }
    kernels.push({ name, registers: Number(registers), spilled: Number(stores) + Number(loads) })
  }
  return kernels
}

/** Returns a line for each file: the number of kernels, the most registers, and the kernels that spill. */
export function table(files) {
  const rows = files.map(({ file, gpu, kernels }) => {
    const spilling = kernels.filter(kernel => kernel.spilled > 0)
    const most = Math.max(...kernels.map(kernel => kernel.registers))
    const spilled =
      spilling.length === 0 ? 'none' : spilling.map(({ name, spilled: bytes }) => `${name} ${bytes} bytes`).join(', ')
    return [file, gpu, `${kernels.length} kernels`, `${most} registers at most`, `spilled: ${spilled}`]
  })
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map(row => row[column].length))) ?? []
  return rows
    .map(row =>
      row
        .map((cell, column) => cell.padEnd(widths[column]))
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}

async function compile(nvcc, file, gpu, folder) {
  const flags = [
    '--cubin',
    '-O3',
    '-std=c++17',
    ...(exactFiles().has(file) ? ['-fmad=false'] : []),
    '-Xptxas',
    '-v',
    '-arch',
    gpu,
  ]
  const { code, output } = await run(
    nvcc,
    [...flags, '-o', join(folder, `${file}.${gpu}.cubin`), join(KERNELS, file)],
    { silent: true },
  )
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
    return console.log(`SKIPPED: compiling GPU kernels: ${error.message}`)
  }
  const folder = temporary('kernels')
  const done = []
  for (const file of readdirSync(join(root, KERNELS))
    .filter(name => name.endsWith('.cu'))
    .sort()) {
    done.push(...(await Promise.all(GPUS.map(gpu => compile(join(tools.home, 'bin', 'nvcc'), file, gpu, folder)))))
  }
  console.log(`CUDA ${tools.version.join('.')}\n${table(done)}`)
  if (done.some(({ kernels }) => kernels.some(kernel => kernel.spilled > 0)))
    throw new Refusal('a kernel spills registers to memory')
}

await main(import.meta.url, 'kernel check failed', check)
