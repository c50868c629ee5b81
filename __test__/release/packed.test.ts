// The package as it is packed: what is in it, how large it may be, and what tools say of it.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { gunzipSync, gzipSync } from 'node:zlib'

import test from 'ava'

import { refuses, releaseScript, root } from '../support/scripts.js'

interface Packed {
  readonly path: string
  readonly size: number
}

const { filesOf } = await releaseScript<{ filesOf(packed: Buffer): Packed[] }>('tarball')
const { BUDGETS, changes, contentsOf, lint, within } = await releaseScript<{
  readonly BUDGETS: Readonly<Record<string, number>>
  changes(recorded: readonly string[], contents: readonly string[]): string[]
  contentsOf(files: readonly Packed[]): string[]
  lint(packed: Buffer): Promise<string[]>
  within(name: string, bytes: number, budget: number): string
}>('packed')

/** An entry of a tar archive. */
function entry(path: string, text: string, kind = '0'): Buffer {
  const head = Buffer.alloc(512)
  head.write(path, 0, 'latin1')
  head.write(text.length.toString(8).padStart(11, '0'), 124, 'latin1')
  head.write(' '.repeat(8), 148, 'latin1')
  head.write(kind, 156, 'latin1')
  head.write('ustar\u000000', 257, 'latin1')
  const sum = head.reduce((total, byte) => total + byte, 0)
  head.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1')
  const body = Buffer.alloc(Math.ceil(text.length / 512) * 512)
  body.write(text, 'latin1')
  return Buffer.concat([head, body])
}

/** A package of these files. */
function packed(files: Readonly<Record<string, string>>): Buffer {
  return gzipSync(Buffer.concat([...Object.entries(files).map(([path, text]) => entry(`package/${path}`, text)), Buffer.alloc(1024)]))
}

const MANIFEST = { name: 'one', version: '1.0.0', type: 'module', files: ['index.js'], license: 'MIT', exports: './index.js' }

test('the files of a package and their sizes', t => {
  t.deepEqual(filesOf(packed({ 'index.js': 'x'.repeat(600), 'a/b.js': '' })), [
    { path: 'a/b.js', size: 0 },
    { path: 'index.js', size: 600 },
  ])
})

test('what is no package is refused', t => {
  t.throws(() => filesOf(Buffer.from('no archive')), { message: /^the package cannot be read: incorrect header check/ })
  const whole = packed({ 'index.js': 'x'.repeat(600) })
  t.throws(() => filesOf(gzipSync(gunzipSync(whole).subarray(0, 700))), { message: 'the package is cut short' })
  t.throws(() => filesOf(gzipSync(entry('package/link', '', '2'))), { message: 'the package has an entry that is no file: package/link' })
})

test('what came in and what went is named', t => {
  t.deepEqual(changes(['a', 'b'], ['b', 'c']), ['- a', '+ c'])
  t.deepEqual(contentsOf([{ path: 'dist/index.js', size: 1 }, { path: 'kvtide.linux-x64-gnu.node', size: 1 }]), ['dist/index.js'])
})

test('what is over its budget is refused', t => {
  t.is(within('one', 5, 5), 'one: 5 bytes of 5')
  t.throws(() => within('one', 6, 5), { message: 'one has 6 bytes, at most 5 are wanted' })
  t.deepEqual(BUDGETS, { root: 320_000, 'kvtide.linux-x64-gnu.node': 12_000_000, 'kvtide-cuda.linux-x64-gnu.node': 60_000_000 })
})

test('publint is asked, and heard', async t => {
  t.deepEqual(await lint(packed({ 'package.json': JSON.stringify(MANIFEST), 'index.js': 'export const one = 1\n' })), [])
  const messages = await lint(packed({ 'package.json': JSON.stringify({ ...MANIFEST, exports: './gone.js' }), 'index.js': '' }))
  t.regex(messages.join('\n'), /gone\.js but the file does not exist/)
})

test('documentation is in the declarations that were compiled, and not in the code', t => {
  const compiled = readdirSync(join(root, 'dist/lib'), { recursive: true, encoding: 'utf8' })
  const of = (end: string): string[] => compiled.filter(file => file.endsWith(end)).map(file => readFileSync(join(root, 'dist/lib', file), 'utf8'))
  t.true(of('.js').length > 40)
  for (const code of of('.js')) t.notRegex(code, /^\s*\/\*\*/m)
  t.true(of('.d.ts').some(code => /^\s*\/\*\*/m.test(code)))
})

test('bad arguments are refused in one line', async t => {
  await refuses(t, 'release/packed.mjs', ['--tarball', 'gone.tgz'], /--tarball is gone\.tgz, which is not there/)
  await refuses(t, 'release/packed.mjs', ['--tarball'], /argument missing/)
  await refuses(t, 'release/packed.mjs', ['gone.tgz'], /unexpected argument "gone\.tgz"/)
})
