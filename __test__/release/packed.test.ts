// The package as it is packed: what is in it, how large it may be, and what tools say of it.
import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test, { type ExecutionContext } from 'ava'

import { folder, refuses, root } from '../support/packaging/scripts.js'
import { BUDGETS, lint, within } from '../../scripts/release/packed.mjs'

function packed(t: ExecutionContext, files: Readonly<Record<string, string>>): Buffer {
  const at = folder(t)
  for (const [path, text] of Object.entries(files)) writeFileSync(join(at, path), text)
  execFileSync('npm', ['pack', '--silent'], { cwd: at, shell: process.platform === 'win32' })
  return readFileSync(join(at, 'one-1.0.0.tgz'))
}

const MANIFEST = {
  name: 'one',
  version: '1.0.0',
  type: 'module',
  files: ['index.js'],
  license: 'MIT',
  exports: './index.js',
}

test('what is over its budget is refused', t => {
  t.is(within('one', 5, 5), 'one: 5 bytes of 5')
  t.throws(() => within('one', 6, 5), { message: 'one has 6 bytes, at most 5 are wanted' })
  t.deepEqual(BUDGETS, {
    root: 1_140_000,
    'kvtide.linux-x64-gnu.node': 22_600_000,
    'kvtide-cuda.linux-x64-gnu.node': 60_000_000,
  })
})

test('publint is asked, and heard', async t => {
  t.deepEqual(
    await lint(packed(t, { 'package.json': JSON.stringify(MANIFEST), 'index.js': 'export const one = 1\n' })),
    [],
  )
  const messages = await lint(
    packed(t, { 'package.json': JSON.stringify({ ...MANIFEST, exports: './gone.js' }), 'index.js': '' }),
  )
  t.regex(messages.join('\n'), /gone\.js but the file does not exist/)
})

test('documentation is in the declarations that were compiled, and not in the code', t => {
  const compiled = readdirSync(join(root, 'dist/lib'), { recursive: true, encoding: 'utf8' })
  const of = (end: string): string[] =>
    compiled.filter(file => file.endsWith(end)).map(file => readFileSync(join(root, 'dist/lib', file), 'utf8'))
  t.true(of('.js').length > 40)
  for (const code of of('.js')) t.notRegex(code, /^\s*\/\*\*/m)
  t.true(of('.d.ts').some(code => /^\s*\/\*\*/m.test(code)))
})

test('bad arguments are refused in one line', async t => {
  await refuses(t, 'release/packed.mjs', ['--tarball', 'gone.tgz'], /--tarball is gone\.tgz, which is not there/)
  await refuses(t, 'release/packed.mjs', ['--tarball'], /argument missing/)
  await refuses(t, 'release/packed.mjs', ['gone.tgz'], /unexpected argument "gone\.tgz"/)
})
