// Broken installations: each throws an error whose code and text say what is wrong and what to do. The package is a copy in a temporary folder, and the
// packages around it are made up.
import { execFileSync } from 'node:child_process'
import { chmodSync, readdirSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { chooseBinding } from '../../lib/loading/binding-choice.js'
import { required } from '../../scripts/compile.mjs'
import { compiling } from '../support/packaging/scripts.js'
import { ADDON_FILE, answerOf, PackageCopy, PLATFORM, VERSION } from '../support/packaging/package-copy.js'
import { throwsCode } from '../support/throws.js'

const OWN = `kvtide-${PLATFORM}`
const onGlibc = PLATFORM.endsWith('-gnu') ? test : test.skip

interface Refused {
  readonly code: string
  readonly message: string
  readonly details: { readonly platform?: string; readonly reason?: string }
}

/** Imports a copy in a new process, and returns its error. */
const imported = async (copy: PackageCopy, before = ''): Promise<Refused> =>
  (await answerOf(
    `${before}; await import('${copy.url()}'); return { code: 'none', message: '', details: {} }`,
  )) as Refused

/** Makes a copy without an addon. */
function bare(...given: ConstructorParameters<typeof PackageCopy>): PackageCopy {
  const copy = new PackageCopy(...given)
  copy.remove(ADDON_FILE)
  return copy
}

test('the addon is taken from the package of the platform', async t => {
  const copy = bare(t)
  const file = copy.addPackage(OWN, ADDON_FILE)
  t.deepEqual(await answerOf(`return (await import('${copy.url('lib/loading/binding.ts')}')).bindingChoice.file`), file)
})

test('without the package of the platform, its name and version are told', async t => {
  const { code, message, details } = await imported(bare(t))
  t.is(code, 'BINDING_NOT_FOUND')
  t.is(details.platform, PLATFORM)
  t.true(message.includes(`\`npm install ${OWN}@${VERSION}\``), message)
  t.true(message.includes('without --no-optional'), message)
})

test('a system that nothing is built for is told which there are', t => {
  const surroundings = { folder: bare(t).folder, version: VERSION, wanted: undefined, named: undefined }
  const platform = { name: 'freebsd-x64', system: 'freebsd', arch: 'x64' }
  const { message } = throwsCode(t, 'BINDING_NOT_FOUND', () => chooseBinding({ ...surroundings, platform }))
  t.regex(message, /there is no prebuilt addon for freebsd-x64, only for darwin-arm64, .*from a checkout/)
})

test('a folder that was installed on another system is told so', async t => {
  for (const other of ['darwin-arm64', 'linux-x64-musl', 'linux-x64-gnu'].filter(name => name !== PLATFORM)) {
    const copy = bare(t)
    copy.addPackage(`kvtide-${other}`, `kvtide.${other}.node`, { text: 'of another system' })
    const { code, message } = await imported(copy)
    t.is(code, 'BINDING_NOT_FOUND')
    t.true(message.includes(`kvtide-${other} is installed, but this system is ${PLATFORM}`), message)
  }
})

test('on musl, the package for glibc is not taken', t => {
  const copy = bare(t)
  copy.addPackage('kvtide-linux-x64-gnu', 'kvtide.linux-x64-gnu.node')
  copy.addPackage('kvtide-cuda-linux-x64-gnu', 'kvtide-cuda.linux-x64-gnu.node')
  const platform = { name: 'linux-x64-musl', system: 'linux', arch: 'x64' }
  const surroundings = { folder: copy.folder, version: VERSION, wanted: undefined, named: undefined, platform }
  const { message } = throwsCode(t, 'BINDING_NOT_FOUND', () => chooseBinding(surroundings))
  t.regex(message, /kvtide-linux-x64-gnu is installed, but this system is linux-x64-musl/)
})

onGlibc('a file for another system, under the name of this one, is not loaded', async t => {
  const copy = bare(t)
  const head = Buffer.alloc(100)
  head.writeUInt32BE(0xcafebabe)
  copy.addPackage(OWN, ADDON_FILE)
  writeFileSync(copy.path(`node_modules/${OWN}/${ADDON_FILE}`), head)
  const { code, message } = await imported(copy)
  t.is(code, 'BINDING_NOT_FOUND')
  t.regex(
    message,
    /could not be loaded: it is for darwin-any, this is linux-.*; remove node_modules and run `npm install` on linux-/,
  )
})

compiling('a library for musl is told so', async t => {
  const copy = bare(t)
  const [source, libc] = [copy.path('empty.c'), copy.path('libc.musl-x86_64.so.1')]
  writeFileSync(source, 'int kvtide_empty(void) { return 1; }\n')
  execFileSync('gcc', ['-shared', '-fPIC', '-nostdlib', '-Wl,-soname,libc.musl-x86_64.so.1', '-o', libc, source])
  execFileSync('gcc', [
    '-shared',
    '-fPIC',
    '-nostdlib',
    '-Wl,--no-as-needed',
    '-o',
    copy.path(ADDON_FILE),
    source,
    libc,
  ])
  const { code, message } = await imported(copy)
  t.is(code, 'BINDING_NOT_FOUND')
  t.regex(message, /could not be loaded: it is for musl, this system has glibc; remove node_modules/)
})

test('a package of another version is not loaded', async t => {
  const copy = bare(t)
  const file = copy.addPackage(OWN, ADDON_FILE, { version: '9.9.9', text: 'never loaded' })
  const { code, message, details } = await imported(copy)
  t.is(code, 'BINDING_MISMATCH')
  t.deepEqual(details as unknown, { file, version: '9.9.9', expected: VERSION })
  t.true(message.includes(`npm install kvtide@${VERSION} ${OWN}@${VERSION}`), message)
})

test('an addon that is cut short is an error, and not the end of the process', async t => {
  const copy = bare(t)
  const file = copy.addPackage(OWN, ADDON_FILE)
  const { size } = statSync(file)
  for (const left of [size - 1, size >> 1, 100, 0]) {
    truncateSync(file, left)
    const { code, message } = await imported(copy)
    t.is(code, 'BINDING_NOT_FOUND', String(left))
    t.regex(message, /could not be loaded: it is truncated.*; remove node_modules and run `npm install`/)
  }
})

test('a package without its file is an error', async t => {
  const copy = bare(t)
  copy.addPackage(OWN, ADDON_FILE)
  copy.remove(`node_modules/${OWN}/${ADDON_FILE}`)
  const { code, message } = await imported(copy)
  t.is(code, 'BINDING_NOT_FOUND')
  t.regex(message, /is missing from its package: remove node_modules/)
})

test('a node that is too old for the addon is told so', async t => {
  const old = `Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '18.0.0', napi: '8' } })`
  const { code, details } = await imported(new PackageCopy(t), old)
  t.is(code, 'BINDING_NOT_FOUND')
  t.deepEqual(details, {
    platform: PLATFORM,
    reason: 'node 18.0.0 has Node-API 8, kvtide needs 9: use node 20 or later',
  })
})

test('a node that cannot require modules is told what to do', t => {
  const copy = new PackageCopy(t)
  const script = `try { require(${JSON.stringify(copy.path('dist/index.cjs'))}) } catch ({ code, message }) { console.log(code, message) }`
  const made: Record<string, string> = { ...required('index'), 'index.js': 'export const made = 1' }
  for (const [file, text] of Object.entries(made)) copy.addAddon(`dist/${file}`, text)
  const said = execFileSync(process.execPath, ['--no-experimental-require-module', '--eval', script], {
    encoding: 'utf8',
    env: {},
  })
  t.is(
    said.trim(),
    `ERR_REQUIRE_ESM require('kvtide') needs node 20.19, 22.12 or later, but this is ${process.versions.node}: use await import('kvtide') instead`,
  )
})

test('a folder without write permission will do, and nothing is written to it', async t => {
  const copy = new PackageCopy(t)
  const all = (): string[] =>
    readdirSync(copy.folder, { recursive: true, encoding: 'utf8' }).map(file => join(copy.folder, file))
  const state = (): string[] => [copy.folder, ...all()].map(file => `${file} ${statSync(file).mtimeMs}`)
  const allow = (mode: number): void =>
    [copy.folder, ...all()].filter(file => statSync(file).isDirectory()).forEach(folder => chmodSync(folder, mode))
  allow(0o555)
  t.teardown(() => allow(0o755))
  const before = state()
  t.is((await imported(copy)).code, 'none')
  t.deepEqual(state(), before)
})
