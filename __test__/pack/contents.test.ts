// What goes into the package, and which addons may be published.
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { folder } from '../support/packaging/scripts.js'
import { addonPath, PLATFORM } from '../support/packaging/package-copy.js'
import { reachable } from '../../scripts/compile.mjs'
import { packed } from '../../scripts/pack/packages.mjs'
import { glibcVersion, measured, neededLibraries } from '../../scripts/cuda/binary.mjs'
import { addonLine } from '../../scripts/release/addon.mjs'
import { PROGRAMS, quickStart } from '../../scripts/pack/stranger.mjs'

const onLinux = PLATFORM === 'linux-x64-gnu' ? test : test.skip

test('declarations are those that the entry is made of', t => {
  const at = folder(t)
  const write = (file: string, text: string): void => writeFileSync(join(at, file), text)
  write('index.d.ts', "export { A } from './a.js';\nexport type * from './types.js';")
  write('a.d.ts', "import type { B } from './b.js';\nexport declare const A: B | import('node:fs').Stats;")
  write('b.d.ts', "import { A } from './a.js';\nexport type B = typeof A;")
  write('types.d.ts', 'export type T = 1;')
  write('internal.d.ts', "export * from '#binding';")
  t.deepEqual(
    [...reachable([join(at, 'index.d.ts')])].sort(),
    ['a', 'b', 'index', 'types'].map(name => join(at, `${name}.d.ts`)),
  )
  write('types.d.ts', "import './internal.js';")
  t.throws(() => reachable([join(at, 'index.d.ts')]), {
    message: /internal\.d\.ts is part of the package's types and imports #binding/,
  })
})

test('npm says what is in a package', async t => {
  const at = folder(t)
  const files = { 'package.json': '{"name":"one","version":"1.0.0"}', 'z.js': 'x'.repeat(600), 'a/b.js': '' }
  mkdirSync(join(at, 'a'))
  for (const [file, text] of Object.entries(files)) writeFileSync(join(at, file), text)
  const made = await packed(at, at)
  t.like(made, {
    name: 'one',
    version: '1.0.0',
    tarball: join(at, 'one-1.0.0.tgz'),
    unpackedBytes: 600 + files['package.json'].length,
  })
  for (const { files: found } of [made, await packed(made.tarball)]) {
    t.deepEqual(
      (found as { path: string; size: number }[]).map(({ path, size }) => [path, size]).toSorted(),
      Object.entries(files)
        .map(([path, text]) => [path, text.length])
        .toSorted(),
    )
  }
  writeFileSync(join(at, 'none.tgz'), 'no archive')
  await t.throwsAsync(packed(join(at, 'none.tgz')), { message: /could not be packed/ })
})

test('an addon that asks for more than every system has is refused', t => {
  const good = {
    bytes: 7.7e6,
    glibc: '2.17',
    libraries: ['libc.so.6', 'libgcc_s.so.1', 'ld-linux-x86-64.so.2'],
    stripped: true,
  }
  t.is(addonLine('x.node', good), 'x.node  7.7 MB of less than 12 MB, glibc 2.17 or later (at most 2.28)')
  t.notThrows(() => addonLine('x.node', { ...good, glibc: '2.28' }))
  t.throws(() => addonLine('x.node', { ...good, glibc: '2.34' }), {
    message: 'x.node needs glibc 2.34, and may need 2.28',
  })
  t.throws(() => addonLine('x.node', { ...good, glibc: undefined }), { message: 'x.node names no version of glibc' })
  t.throws(() => addonLine('x.node', { ...good, libraries: ['libc.so.6', 'libstdc++.so.6'] }), {
    message: 'x.node needs libstdc++.so.6, which not every system has',
  })
  t.throws(() => addonLine('x.node', { ...good, stripped: false }), { message: 'x.node is not stripped' })
  t.throws(() => addonLine('x.node', { ...good, bytes: 12e6 }), {
    message: 'x.node has 12.0 MB, and may have less than 12 MB',
  })
  t.notThrows(() => addonLine('kvtide-net.x.node', { ...good, bytes: 20e6 }))
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

test('needed libraries are listed', t => {
  const dynamic = `
Dynamic section at offset 0x1f0 contains 30 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libstdc++.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libkvtide.so]
`
  t.deepEqual(neededLibraries(dynamic), ['libstdc++.so.6', 'libc.so.6'])
  t.deepEqual(neededLibraries('There is no dynamic section in this file.'), [])
})

test('the newest glibc counts, by numbers and not by letters', t => {
  const info = `
  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 12
  0x0020:   Name: GLIBC_2.34  Flags: none  Version: 5
  0x0030:   Name: GLIBC_2.2.5  Flags: none  Version: 3
  0x0040:   Name: GLIBCXX_3.4.30  Flags: none  Version: 4
`
  t.is(glibcVersion(info), '2.34')
  t.is(glibcVersion('GLIBC_2.2 GLIBC_2.2.5'), '2.2.5')
  t.is(glibcVersion(''), undefined)
})
