// The command line: `kvtide doctor`.
import test from 'ava'

import { main } from '../../lib/loading/cli.js'
import { doctor } from '../../lib/loading/doctor.js'
import { threads } from '../../lib/border/process.js'
import { runProcess } from '../support/packaging/child.js'

/** Runs the command line, keeping what it prints. */
async function run(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const { log, error } = console
  const printed = { out: '', err: '' }
  console.log = (text: unknown) => void (printed.out += `${String(text)}\n`)
  console.error = (text: unknown) => void (printed.err += `${String(text)}\n`)
  try {
    return { code: await main(args), ...printed }
  } finally {
    Object.assign(console, { log, error })
  }
}

test.serial('doctor prints what is loaded, and why a device cannot be used', async t => {
  const { code, out, err } = await run('doctor')
  t.deepEqual([code, err], [0, ''])
  const rows = Object.fromEntries(out.trimEnd().split('\n').map(line => [line.slice(0, 14).trim(), line.slice(15)]))
  t.deepEqual(Object.keys(rows), [
    'binary', 'loaded from', 'chosen', 'platform', 'cpu features', 'kernels', 'threads', 'memory limit', 'device cpu', 'device cuda', 'device metal',
  ])
  t.regex(rows['binary'] ?? '', /^kvtide \d+\.\d+\.\d+, \w+-\w+$/)
  t.regex(rows['loaded from'] ?? '', /kvtide.*\.node$/)
  t.true(rows['platform']?.includes(process.versions.node))
  t.regex(rows['kernels'] ?? '', /^(portable|neon|avx2|avx512)$/)
  t.is(rows['threads'], String(threads()))
  t.is(rows['device cpu'], 'usable')
  t.regex(rows['chosen'] ?? '', /^(cpu|cuda): \w/)
  // An addon with CUDA looks for a driver, the other one says where to get it.
  t.regex(rows['device cuda'] ?? '', rows['chosen']?.startsWith('cuda') ? /^(usable$|not usable: \w)/ : /^not usable: .*(npm install kvtide-cuda-linux-x64-gnu@\d|none for this system)/)
  t.regex(rows['device metal'] ?? '', /^not usable: /)
  t.is(`${doctor()}\n`, out)
})

test('doctor says when a variable of the environment is wrong', async t => {
  const doctorUrl = new URL('../../lib/loading/doctor.ts', import.meta.url).href
  const { out, err } = await runProcess(`
    process.env.KVTIDE_KERNELS = 'fast'
    process.env.KVTIDE_THREADS = '0'
    console.log((await import(${JSON.stringify(doctorUrl)})).doctor())`)
  t.regex(out, /^kernels +KVTIDE_KERNELS is fast, expected auto or one of /m, err)
  t.regex(out, /^threads +KVTIDE_THREADS is 0, expected /m)
})

test.serial('asked for help it prints how it is used', async t => {
  for (const args of [[], ['help'], ['--help']]) {
    const { code, out, err } = await run(...args)
    t.deepEqual([code, err], [0, ''])
    t.true(out.startsWith('usage: kvtide doctor'))
  }
})

test.serial('a command that it does not know ends with 2', async t => {
  for (const args of [['doctors'], ['doctor', 'x'], ['']]) {
    const { code, out, err } = await run(...args)
    t.deepEqual([code, out], [2, ''])
    t.true(err.startsWith('usage: kvtide doctor'))
  }
})
