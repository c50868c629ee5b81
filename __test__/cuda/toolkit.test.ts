// The compiler side of CUDA: which is taken, what is refused, and what a machine lacks. No network: pip is played.
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'

import test, { type ExecutionContext } from 'ava'

import { folder } from '../support/packaging/scripts.js'
import { cudarcVersion, nvccVersion, toolkit } from '../../scripts/cuda/toolkit.mjs'
import { checkMachine } from '../../scripts/cuda/environment.mjs'

const posix = process.platform === 'win32' ? test.skip : test.serial

function program(file: string, script: string): void {
  mkdirSync(join(file, '..'), { recursive: true })
  writeFileSync(file, `#!/bin/sh\n${script}\n`)
  chmodSync(file, 0o755)
}

const nvcc = (release: string): string => `echo 'Cuda compilation tools, release ${release}, V${release}.88'`

/** Puts a python3 in front of all others; what it installs is an nvcc, and each call of it is noted. */
function playPip(t: ExecutionContext, at: string, installs: string): () => string[] {
  program(
    join(at, 'programs/python3'),
    `
    echo "$@" >> '${at}/calls'
    case "$*" in *--version*) exit 0;; esac
    while [ "$1" != --target ]; do shift; done
    mkdir -p "$2/nvidia/cu13/bin" "$2/nvidia/cu13/nvvm/bin"
    ${installs}`,
  )
  const { PATH } = process.env
  process.env['PATH'] = [join(at, 'programs'), PATH].join(delimiter)
  t.teardown(() => void (process.env['PATH'] = PATH))
  return () => (existsSync(join(at, 'calls')) ? readFileSync(join(at, 'calls'), 'utf8').trim().split('\n') : [])
}

const INSTALLS = `printf '#!/bin/sh\\necho release 13.0,\\n' > "$2/nvidia/cu13/bin/nvcc"`

test('a version is read from what nvcc prints', t => {
  t.deepEqual(
    nvccVersion('nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n'),
    [13, 0],
  )
  t.deepEqual(nvccVersion('release 12.10, V12.10.1'), [12, 10])
  t.is(nvccVersion('nvcc: not found'), undefined)
  t.is(nvccVersion(), undefined)
  t.deepEqual(
    [
      [13, 0],
      [12, 9],
      [13, 4],
    ].map(([major = 0, minor = 0]) => cudarcVersion([major, minor])),
    ['13000', '12090', '13040'],
  )
})

posix('the toolkit that CUDA_HOME names is taken', async t => {
  const at = folder(t)
  program(join(at, 'bin/nvcc'), nvcc('12.8'))
  t.deepEqual(await toolkit(join(at, 'unused'), at), { home: at, version: [12, 8] })
  t.false(existsSync(join(at, 'unused')))
})

posix('a CUDA_HOME without a compiler, or with an old one, is refused by name', async t => {
  const at = folder(t)
  const bare = await t.throwsAsync(toolkit(at, at))
  t.true(bare?.message.startsWith(`CUDA_HOME is ${at}, whose bin/nvcc cannot be run`), bare?.message)
  program(join(at, 'bin/nvcc'), nvcc('11.8'))
  const old = await t.throwsAsync(toolkit(at, at))
  t.is(old?.message, `CUDA_HOME is ${at}, which is CUDA 11.8: 12.0 or later is needed`)
})

posix('without CUDA_HOME one is installed, pinned, and used again', async t => {
  const at = folder(t)
  const calls = playPip(t, at, INSTALLS)
  const first = await toolkit(at, '')
  t.deepEqual(first.version, [13, 0])
  t.deepEqual(await toolkit(at, ''), first)
  t.is(calls().length, 2)
  t.regex(calls()[1] ?? '', /^-m pip install .*--require-hashes .*toolkit\.txt$/)
})

posix('what was left half-made is made again', async t => {
  const at = folder(t)
  const calls = playPip(t, at, INSTALLS)
  const { home } = await toolkit(at, '')
  rmSync(join(home, 'bin/nvcc'))
  mkdirSync(join(at, 'toolkit-0.partial'))
  t.deepEqual((await toolkit(at, '')).home, home)
  t.is(calls().length, 4)
  t.deepEqual(
    readdirSync(at).filter(name => name.endsWith('.partial')),
    [],
  )
})

posix('an installation that fails leaves nothing that is taken for a toolkit', async t => {
  const at = folder(t)
  playPip(t, at, 'exit 1')
  await t.throwsAsync(toolkit(at, ''), { message: /^pip could not install the CUDA compiler/ })
  t.true(readdirSync(at).every(name => !name.startsWith('toolkit-') || name.endsWith('.partial')))
})

posix('a machine without python3 or pip is told what to install', async t => {
  const at = folder(t)
  playPip(t, at, '')
  program(join(at, 'programs/python3'), 'exit 1')
  await t.throwsAsync(toolkit(at, ''), { message: /^python3 with pip is missing.* or set CUDA_HOME/ })
})

test('every pin has a hash', t => {
  const lines = readFileSync(new URL('../../scripts/cuda/toolkit.txt', import.meta.url), 'utf8')
    .trim()
    .split('\n')
  const pins = lines.filter(line => !line.startsWith('#'))
  t.is(pins.length, 5)
  for (const pin of pins) t.regex(pin, /^nvidia-[a-z-]+==[\d.]+ --hash=sha256:[\da-f]{64}$/)
})

const everything = (): boolean => true
const someMissing = (name: string): boolean => !['gcc', 'readelf'].includes(name)

test('a machine that the build does not know is refused', t => {
  t.notThrows(() => checkMachine({ platform: 'linux', arch: 'x64', found: everything }))
  for (const [platform, arch] of [
    ['linux', 'arm64'],
    ['darwin', 'arm64'],
    ['win32', 'x64'],
  ] as const) {
    t.throws(() => checkMachine({ platform, arch, found: everything }), {
      message: new RegExp(`Linux with x86-64, this is ${platform} with ${arch}`),
    })
  }
})

test('programs that are missing are all named', t => {
  const error = t.throws(() => checkMachine({ platform: 'linux', arch: 'x64', found: someMissing }))
  t.is(
    error?.message,
    'gcc is missing: it comes with a C compiler (Debian: build-essential)\nreadelf is missing: it comes with binutils',
  )
})
