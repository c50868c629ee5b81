// What the bundle for GPU machines has in it: names, files, and its size.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { folder, root } from '../support/packaging/scripts.js'
import {
  bundleName,
  CARRIED,
  compiledPackage,
  IMPORTED,
  isNeeded,
  NODE,
  packageFolders,
  sizeLine,
} from '../../scripts/cuda/bundle.mjs'
import { countKernelTests, programsOf } from '../../scripts/cuda/programs.mjs'

test('packages come with all they depend on', t => {
  const folders: string[] = packageFolders(IMPORTED)
  for (const name of ['ava', 'emittery', 'fast-check', 'pure-rand'])
    t.true(folders.includes(`node_modules/${name}`), name)
  for (const name of ['typescript', '@vercel/nft', 'tar']) t.false(folders.includes(`node_modules/${name}`), name)
  t.throws(() => packageFolders(['absent']), { message: 'absent is not installed: run npm ci' })
})

test('what runs and what licences ask for is taken along', t => {
  for (const file of [
    'lib/index.js',
    'package.json',
    'LICENSE',
    'license.md',
    'LICENCE-MIT.txt',
    'NOTICE',
    'lib/testing.js',
  ])
    t.true(isNeeded(file), file)
  for (const file of [
    'dist/a.min.js',
    'index.d.ts',
    'index.d.mts',
    'a.js.map',
    'readme.md',
    'docs/index.js',
    'test/index.js',
    '.github/x.yml',
  ])
    t.false(isNeeded(file), file)
})

test('the tests import nothing but the package, ava, fast-check and node itself', t => {
  for (const place of ['devices', 'support']) {
    for (const name of readdirSync(join(root, '__test__', place)).filter(file => file.endsWith('.ts'))) {
      const text = readFileSync(join(root, '__test__', place, name), 'utf8')
      const imported = [...text.matchAll(/^(?:import|export) .*from '([^'.][^']*)'/gm)].map(([, of]) => of as string)
      t.deepEqual(
        imported.filter(of => !IMPORTED.includes(of) && !of.startsWith('node:')),
        [],
        name,
      )
    }
  }
})

test('the compiled package finds itself and its tests', t => {
  const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
  t.like(compiledPackage(manifest), {
    name: 'kvtide',
    version: manifest.version,
    type: 'module',
    imports: { '#package': './package.json' },
    ava: { files: ['__test__/devices/**/*.test.js'], workerThreads: false },
  })
  t.is(bundleName('1.2.3'), 'kvtide-cuda-tests-1.2.3-linux-x64')
})

test('node is pinned, to a version that the package runs on', t => {
  t.regex(NODE.version, /^20\.\d+\.\d+$/)
  t.regex(NODE.sha256, /^[0-9a-f]{64}$/)
})

test('an archive over 60 MB is refused with its size', t => {
  t.is(sizeLine('x.tar.gz', 25_408_016), 'x.tar.gz  25.4 MB of at most 60.0 MB')
  t.is(sizeLine('x.tar.gz', 60e6), 'x.tar.gz  60.0 MB of at most 60.0 MB')
  t.throws(() => sizeLine('x.tar.gz', 60_100_000), { message: 'x.tar.gz has 60.1 MB, and may have 60.0 MB' })
})

const artifact = (executable: string | null, kind: string, name: string): string =>
  JSON.stringify({ reason: 'compiler-artifact', executable, target: { name, kind: [kind] } })

test('programs are found among what cargo says', t => {
  const messages = [
    '   Compiling kvtide-cuda',
    artifact(null, 'lib', 'a'),
    artifact('/t/a-1', 'lib', 'a'),
    artifact('/t/moves-2', 'test', 'moves'),
    artifact('/t/script', 'custom-build', 'b'),
    artifact('/t/b', 'bin', 'b'),
    '{"reason":"build-finished"}',
    '',
  ]
  t.deepEqual(programsOf(messages.join('\n'), 'test'), [{ name: 'moves', file: '/t/moves-2' }])
  t.deepEqual(programsOf(messages.join('\n'), 'bin'), [{ name: 'b', file: '/t/b' }])
  t.deepEqual(programsOf('', 'bin'), [])
})

test('what is carried is there, and imports nothing but its like and node itself', t => {
  for (const name of CARRIED) {
    const text = readFileSync(join(root, 'scripts', 'cuda', 'carried', name), 'utf8')
    for (const [, of = ''] of text.matchAll(/^import .*from '([^']*)'/gm))
      t.true(of.startsWith('node:') || CARRIED.includes(of.replace('./', '')), `${name}: ${of}`)
  }
  t.deepEqual(readdirSync(join(root, 'scripts', 'cuda', 'carried')).sort(), [...CARRIED].sort())
})

test('tests of kernels are counted in their sources', t => {
  const at = folder(t)
  mkdirSync(join(at, 'attend'))
  writeFileSync(
    join(at, 'moves.rs'),
    'proptest! {\n    #[test]\n    fn one() {}\n\n    // #[test]\n    #[test]\n    fn two() {}\n}\n',
  )
  writeFileSync(join(at, 'attend', 'main.rs'), '#[test]\nfn three() {}\n')
  writeFileSync(join(at, 'notes.txt'), '#[test]\n')
  t.is(countKernelTests(at), 3)
  t.true(countKernelTests() >= 5)
})
