// What goes into the package, and which addons may be published.
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { folder } from '../support/cuda-scripts.js'
import { packScript } from '../support/pack-scripts.js'
import { addonPath, PLATFORM } from '../support/package-copy.js'

const { filesOf } = await packScript('contents')
const { reachable } = (await import(new URL('../../scripts/compile.mjs', import.meta.url).href)) as { reachable(declarations: readonly string[]): Set<string> }
const { addonLine, checkMachine, measured } = await packScript('addon')
const { PROGRAMS, quickStart } = await packScript('tried')

const onLinux = PLATFORM === 'linux-x64-gnu' ? test : test.skip

test('declarations are those that the entry is made of', t => {
  const at = folder(t)
  const write = (file: string, text: string): void => writeFileSync(join(at, file), text)
  write('index.d.ts', "export { A } from './a.js';\nexport type * from './types.js';")
  write('a.d.ts', "import type { B } from './b.js';\nexport declare const A: B | import('node:fs').Stats;")
  write('b.d.ts', "import { A } from './a.js';\nexport type B = typeof A;")
  write('types.d.ts', 'export type T = 1;')
  write('internal.d.ts', "export * from '#binding';")
  t.deepEqual([...reachable([join(at, 'index.d.ts')])].sort(), ['a', 'b', 'index', 'types'].map(name => join(at, `${name}.d.ts`)))
  write('types.d.ts', "import './internal.js';")
  t.throws(() => reachable([join(at, 'index.d.ts')]), { message: /internal\.d\.ts is part of the package's types and imports #binding/ })
})

test('files of a folder are named from there', t => {
  const at = folder(t)
  mkdirSync(join(at, 'b'))
  for (const file of ['z', 'a', 'b/c']) writeFileSync(join(at, file), '')
  t.deepEqual(filesOf(at), ['a', 'b/c', 'z'])
})

test('an addon that asks for more than every system has is refused', t => {
  const good = { bytes: 7.7e6, glibc: '2.16', libraries: ['libc.so.6', 'libgcc_s.so.1', 'ld-linux-x86-64.so.2'], stripped: true }
  t.is(addonLine('x.node', good), 'x.node  7.7 MB of less than 12 MB, glibc 2.16 or later (at most 2.28)')
  t.notThrows(() => addonLine('x.node', { ...good, glibc: '2.28' }))
  t.throws(() => addonLine('x.node', { ...good, glibc: '2.34' }), { message: 'x.node needs glibc 2.34, and may need 2.28' })
  t.throws(() => addonLine('x.node', { ...good, glibc: undefined }), { message: 'x.node names no version of glibc' })
  t.throws(() => addonLine('x.node', { ...good, libraries: ['libc.so.6', 'libstdc++.so.6'] }), { message: 'x.node needs libstdc++.so.6, which not every system has' })
  t.throws(() => addonLine('x.node', { ...good, stripped: false }), { message: 'x.node is not stripped' })
  t.throws(() => addonLine('x.node', { ...good, bytes: 12e6 }), { message: 'x.node has 12.0 MB, and may have less than 12 MB' })
})

test('a machine that cannot build the addon is told what is missing', t => {
  const linux = { platform: 'linux', arch: 'x64' }
  t.notThrows(() => checkMachine({ ...linux, found: () => true }))
  t.throws(() => checkMachine({ ...linux, found: program => program !== 'xz' }), { message: 'xz is missing' })
  t.throws(() => checkMachine({ ...linux, found: () => false }), { message: 'cargo, tar, xz, strip, readelf are missing' })
  t.throws(() => checkMachine({ platform: 'darwin', arch: 'arm64', found: () => true }), { message: /this is darwin with arm64$/ })
})

onLinux('what an addon needs is read from it', t => {
  const { bytes, glibc, libraries } = measured(addonPath)
  t.true(bytes > 1e6)
  t.regex(glibc ?? '', /^2\.\d+/)
  t.true(libraries.includes('libc.so.6'))
})

test('what is tried begins with the first example of the README', t => {
  t.regex(quickStart(), /^import \{ .* \} from 'kvtide'/)
  t.is(PROGRAMS[0]?.file, 'quick-start.mjs')
})
