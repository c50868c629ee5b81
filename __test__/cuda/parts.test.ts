// The parts of a run on a GPU's machine: what programs print is counted as it is, and what cannot run is named and counted.
import { chmodSync, copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'

import test from 'ava'

import { folder, root, type RunProgram } from '../support/packaging/scripts.js'
import { run as start } from '../../scripts/cuda/carried/program.mjs'
import {
  askedParts,
  deviceTests,
  gpuOf,
  kernelTests,
  listedTests,
  rustCounts,
  rustFailures,
  sanitized,
  summary,
  tapCounts,
} from '../../scripts/cuda/carried/parts.mjs'

const GPU = { usable: true, reason: '' }
const NONE = { usable: false, reason: 'no NVIDIA driver: libcuda.so.1 not found' }

const TAP = `TAP version 13
ok 1 - cuda:0: a title that says ok 7 # SKIP
ok 2 - cpu: a title
not ok 3 - cpu: another
  ---
    not ok 9 - what an error says
  ...
1..3
`

const RUST =
  'running 2 tests\ntest result: ok. 5 passed; 0 failed; 0 ignored; 0 measured\n\ntest result: FAILED. 1 passed; 2 failed; 3 ignored; 0 measured\n'

function player(answers: Readonly<Record<string, { code: number; output: string }>>): {
  run: RunProgram
  asked: string[]
} {
  const asked: string[] = []
  return {
    asked,
    async run(command, args, options) {
      asked.push([command, ...args, ...(options?.env?.['KVTIDE_CASES'] === undefined ? [] : ['few'])].join(' '))
      const key = Object.keys(answers).find(part => asked.at(-1)?.includes(part))
      return answers[key ?? ''] ?? { code: 1, output: '' }
    },
  }
}

/** A program that was ended before it was done. */
const ended: RunProgram = async () =>
  await Promise.resolve({ code: 1, output: 'test result: ok. 5 passed; 0 failed; 0 ignored', late: true })

test('whether there is a GPU is what doctor says', t => {
  t.deepEqual(gpuOf('kernels        avx2\ndevice cuda    usable\ndevice metal   not usable: no'), GPU)
  t.deepEqual(gpuOf(`device cpu     usable\ndevice cuda    not usable: ${NONE.reason}\n`), NONE)
  t.false(gpuOf('the process ended').usable)
})

test('what test programs print is counted', t => {
  t.deepEqual(tapCounts(TAP), { passed: 1, failed: 1, skipped: 1 })
  t.deepEqual(rustCounts(RUST), { passed: 6, failed: 2, skipped: 3 })
  const without = `SKIPPED: tls::no: there is no openssl\n${RUST}test of::one ... SKIPPED: of::one: no server\nSKIPPED: of::one: no server\n`
  t.deepEqual(rustCounts(without), { passed: 4, failed: 2, skipped: 5 })
  t.is(listedTests('boxes: test\nmod::rows: test\nspeed: benchmark\n\n2 tests, 1 benchmark\n'), 2)
})

test('Rust tests that fail are named with the end of their output', t => {
  const long = 'x'.repeat(5_000)
  const output = `test one ... FAILED\ntest two ... ok\ntest three ... FAILED\ntest four - should panic ... FAILED\n
failures:\n\n---- one stdout ----\nthread 'one' panicked:\nseed 7\n\n---- three stdout ----\n${long} the end\n\n
failures:\n    one\n    three\n\ntest result: FAILED. 1 passed; 3 failed; 0 ignored; 0 measured\n`
  const [one, three, four] = rustFailures(output)
  t.is(one, "failed in Rust: one\nthread 'one' panicked:\nseed 7")
  t.regex(three ?? '', /^failed in Rust: three\nx{1990,1999} the end$/)
  t.is(four, 'failed in Rust: four - should panic')
  t.deepEqual(rustFailures(RUST), [])
})

test('a program that breaks off, or runs no test, has failed', async t => {
  for (const answer of [
    { code: 1, output: '' },
    { code: 0, output: '' },
    { code: 1, output: 'ok 1 - cpu: a title' },
  ]) {
    t.is((await deviceTests(player({ '': answer }).run, 'ava', [], {})).failed, 1)
  }
  t.is((await deviceTests(player({ '': { code: 0, output: 'ok 1 - cpu: a title' } }).run, 'ava', [], {})).failed, 0)
  t.is((await deviceTests(player({ '': { code: 1, output: TAP } }).run, 'ava', [], {})).failed, 1)
  const { run } = player({ one: { code: 0, output: RUST.slice(0, 70) }, two: { code: 101, output: '' } })
  t.like(await kernelTests(run, ['one', 'two'], GPU), { passed: 5, failed: 1 })
})

test('without a GPU the tests of kernels are counted and not run', async t => {
  const { run, asked } = player({ list: { code: 0, output: 'boxes: test\nrows: test\n' } })
  t.deepEqual(await kernelTests(run, ['moves', 'more'], NONE), { name: 'kernels', passed: 0, failed: 0, skipped: 4 })
  const parts: { name: string; reason: string }[] = await sanitized(run, ['moves'], NONE, '/cuda/compute-sanitizer')
  t.deepEqual(
    parts.map(({ name, reason }) => [name, reason]),
    [
      ['memcheck', NONE.reason],
      ['racecheck', NONE.reason],
    ],
  )
  t.deepEqual(asked, ['moves --list', 'more --list'])
})

test('with one they run under both tools, with few random cases', async t => {
  const { run, asked } = player({
    memcheck: { code: 0, output: RUST.slice(0, 70) },
    racecheck: { code: 99, output: RUST.slice(0, 70) },
  })
  const [memcheck, racecheck] = await sanitized(run, ['moves'], GPU, '/cuda/compute-sanitizer')
  t.like(memcheck, { name: 'memcheck', passed: 5, failed: 0 })
  t.like(racecheck, { name: 'racecheck', passed: 5, failed: 1 })
  t.true(
    asked.every(line => /^\/cuda\/compute-sanitizer --tool .* moves --test-threads 1 few$/.test(line)),
    asked.join('\n'),
  )
  t.is((await sanitized(run, ['moves'], GPU))[0]?.reason, 'compute-sanitizer was not found')
})

test('tests of kernels share a stream: they run one at a time', async t => {
  const { run, asked } = player({ '': { code: 0, output: RUST.slice(0, 70) } })
  await kernelTests(run, ['moves'], GPU)
  t.deepEqual(asked, ['moves --test-threads 1'])
})

test('what does not end in time has failed', async t => {
  const part = await kernelTests(ended, ['moves'], GPU)
  t.like(part, { passed: 5, failed: 1, late: true })
  t.is(summary([part], GPU).text, 'kernels  5 passed, 1 failed, not ended in time')
  const killed = await start(process.execPath, ['-e', 'setInterval(() => {}, 1000)'], { until: Date.now() })
  t.like(killed, { late: true, code: 1 })
})

test('parts are asked for by name', t => {
  const all = { parts: ['caches', 'kernels', 'sanitize'], requireGpu: false, out: undefined, bench: [] }
  t.deepEqual(askedParts([], undefined), all)
  t.deepEqual(askedParts(['--require-gpu', 'kernels'], '/of/the/environment'), {
    ...all,
    parts: ['kernels'],
    requireGpu: true,
    out: '/of/the/environment',
  })
  t.deepEqual(askedParts(['--out', 'here', 'kernels', 'bench', 'decode', '--rounds', '5'], ''), {
    ...all,
    parts: ['kernels', 'bench'],
    out: 'here',
    bench: ['decode', '--rounds', '5'],
  })
  t.throws(() => askedParts(['kernel'], undefined), {
    message: 'kernel: expected one of caches, kernels, sanitize, bench',
  })
})

test('the summary counts what a GPU is needed for, and fails for what has failed', t => {
  const devices = { name: 'caches', passed: 65, failed: 0, skipped: 67 }
  const kernels = { name: 'kernels', passed: 0, failed: 0, skipped: 5 }
  const skipped = summary([devices, kernels, { name: 'memcheck', reason: NONE.reason }], NONE)
  t.is(skipped.code, 0)
  t.is(skipped.text.split('\n').at(-1), `SKIPPED: 72 tests need a GPU: ${NONE.reason}`)
  t.is(skipped.text.split('\n')[2], `memcheck  SKIPPED: ${NONE.reason}`)
  const failed = summary([{ name: 'caches', passed: 131, failed: 1, skipped: 0 }], GPU)
  t.deepEqual([failed.code, failed.text], [1, 'caches  131 passed, 1 failed'])
})

const onLinux = process.platform === 'linux' ? test : test.skip

onLinux('run.sh starts the node next to it, and needs no other program for that', t => {
  const at = folder(t)
  copyFileSync(join(root, 'scripts/cuda/carried/run.sh'), join(at, 'run.sh'))
  writeFileSync(join(at, 'node'), '#!/bin/sh\necho "started $1 with $LD_LIBRARY_PATH"\nexit 3\n')
  for (const file of ['run.sh', 'node']) chmodSync(join(at, file), 0o755)
  const env = { PATH: '', LD_LIBRARY_PATH: '/of/mine' }
  for (const [command, cwd] of [
    [join(at, 'run.sh'), '/'],
    ['./run.sh', at],
  ] as const) {
    const error = t.throws(() => execFileSync(command, { cwd, env, stdio: 'pipe' })) as Error & {
      status: number
      stdout: Buffer
      stderr: Buffer
    }
    t.deepEqual([error.status, String(error.stderr)], [3, ''])
    t.true(String(error.stdout).includes(`started ${join(at, 'run.mjs')} with /of/mine`), String(error.stdout))
  }
})

onLinux('run.sh finds libraries wherever they are', t => {
  const at = folder(t)
  copyFileSync(join(root, 'scripts/cuda/carried/run.sh'), join(at, 'run.sh'))
  writeFileSync(join(at, 'node'), '#!/bin/sh\nexit 0\n')
  const put = (...places: string[]): string => {
    const to = join(at, ...places.slice(0, -1))
    mkdirSync(to, { recursive: true })
    writeFileSync(join(at, ...places), '')
    return to
  }
  const bare = put('by-loader', 'libcublas.so.13')
  const wheels = [
    put('site', 'nvidia', 'cu13', 'lib', 'libcublasLt.so.13'),
    put('site', 'nvidia', 'curand', 'lib', 'libcurand.so.10'),
  ]
  mkdirSync(join(at, 'bin'))
  writeFileSync(
    join(at, 'bin', 'ldconfig'),
    `#!/bin/sh\necho '\tlibcublas.so.13 (libc6,x86-64) => ${bare}/libcublas.so.13'\n`,
  )
  writeFileSync(join(at, 'bin', 'python3'), `#!/bin/sh\necho '${join(at, 'site')}'\n`)
  writeFileSync(join(at, 'bin', 'find'), '#!/bin/sh\n')
  for (const file of ['run.sh', 'node', 'bin/ldconfig', 'bin/python3', 'bin/find']) chmodSync(join(at, file), 0o755)
  const said = String(execFileSync(join(at, 'run.sh'), { env: { PATH: join(at, 'bin') } }))
  const [, path] = /^LD_LIBRARY_PATH=(.*)$/m.exec(said) ?? []
  for (const found of [bare, ...wheels]) t.true(path?.split(':').includes(found), said)
  t.regex(said, /not found: libcuda\.so\.1/)
})
