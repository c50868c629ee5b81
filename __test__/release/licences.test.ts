// Licences: what an expression allows, and the page that names those inside the addons.
import { join } from 'node:path'

import test from 'ava'

import { root, text, runScript, type Crate } from '../support/packaging/scripts.js'
import { allowedBy, choose, licenceFile, page, spdx, where } from '../../scripts/release/third-party.mjs'
import { addons, shipped } from '../../scripts/release/cargo.mjs'

const ALLOWED = ['Apache-2.0', 'MIT', 'Zlib', 'Unicode-3.0']

test('a crate that leaves the choice is taken under Apache-2.0, then under MIT', t => {
  const cases: readonly [string, string[] | undefined][] = [
    ['MIT', ['MIT']],
    ['MIT OR Apache-2.0', ['Apache-2.0']],
    ['MIT/Apache-2.0', ['Apache-2.0']],
    ['Apache-2.0 / MIT', ['Apache-2.0']],
    ['Zlib OR MIT', ['MIT']],
    ['GPL-3.0 OR MIT', ['MIT']],
    ['Apache-2.0 WITH LLVM-exception OR MIT', ['MIT']],
    ['(MIT OR Apache-2.0) AND Unicode-3.0', ['Apache-2.0', 'Unicode-3.0']],
    ['MIT OR GPL-3.0 AND Apache-2.0', ['MIT']],
    ['GPL-3.0', undefined],
    ['MIT AND GPL-3.0', undefined],
    ['MIT WITH Classpath-exception-2.0', undefined],
  ]
  for (const [expression, licences] of cases) t.deepEqual(choose(expression, ALLOWED), licences, expression)
})

test('what is no expression is refused', t => {
  for (const wrong of ['', 'MIT OR', 'OR MIT', '(MIT', 'MIT)', 'MIT Apache-2.0', 'MIT WITH', 'MIT AND OR Zlib']) {
    t.throws(() => choose(wrong, ALLOWED), { message: `${JSON.stringify(wrong)} is no licence expression` }, wrong)
  }
  t.is(spdx('(MIT/Apache-2.0) AND Unicode-3.0'), '(MIT OR Apache-2.0) AND Unicode-3.0')
})

const SOURCE = 'registry+https://github.com/rust-lang/crates.io-index'

test('deny.toml says which are allowed', t => {
  t.deepEqual(allowedBy(text('deny.toml')).toSorted(), [
    'Apache-2.0',
    'BSD-3-Clause',
    'BSL-1.0',
    'ISC',
    'MIT',
    'Unicode-3.0',
    'Zlib',
  ])
  t.deepEqual(allowedBy('[bans]\ndeny = [\n]\n'), [])
})

test('the text is that of the licence that is taken', t => {
  t.is(licenceFile(['LICENSE-APACHE', 'LICENSE-MIT', 'README.md'], 'MIT'), 'LICENSE-MIT')
  t.is(licenceFile(['LICENSE', 'UNLICENSE'], 'MIT'), 'LICENSE')
  t.is(licenceFile(['LICENSE-APACHE', 'UNLICENSE'], 'MIT'), undefined)
  t.is(licenceFile(['src', 'COPYING'], 'MIT'), 'COPYING')
})

test('in which addons a crate is', t => {
  const all = ['a', 'b', 'cuda']
  t.is(where(all, all), 'all')
  t.is(where(['a', 'b'], all), 'all but cuda')
  t.is(where(['cuda'], all), 'cuda')
  t.is(where(['net a', 'cuda'], ['a', 'net a', 'cuda']), 'all that have the network')
})

test('each platform has its addon, Apple silicon with Metal', t => {
  t.deepEqual(
    (addons() as { name: string; features: string[] }[])
      .filter(({ name, features }) => features.length > 0 && !name.startsWith('net '))
      .map(({ name, features }) => [name, ...features]),
    [
      ['aarch64-apple-darwin', 'metal'],
      ['cuda', 'cuda', 'net'],
    ],
  )
})

test('THIRD_PARTY.md is what cargo knows, and every crate of an addon is on it', async t => {
  const { code, err } = await runScript('release/third-party.mjs')
  t.is(code, 0, err)
  const written = text('THIRD_PARTY.md')
  const crates: Crate[] = shipped()
  t.true(crates.length > 100)
  for (const absent of ['napi-build', 'napi-derive', 'proptest', 'syn'])
    t.false(
      crates.some(({ name }) => name === absent),
      absent,
    )
  for (const { name, version, source } of crates)
    t.is(source !== null, written.includes(`| ${name} | ${version} |`), name)
  t.true(written.includes('libcudart_static.a'))
  for (const name of ['cudarc', 'candle-kernels']) t.regex(written, new RegExp(`^\\| ${name} .* cuda \\|$`, 'm'))
  t.regex(written, /^\| objc2-metal .* aarch64-apple-darwin \|$/m)
})

test('a crate whose licence has no text, or is not allowed, is refused', t => {
  const crate = {
    name: 'one',
    version: '1.0.0',
    license: 'Zlib',
    source: SOURCE,
    manifest_path: join(root, '__test__/Cargo.toml'),
    authors: [],
    addons: ['a'],
  }
  t.throws(() => page([crate], ['a'], ALLOWED), {
    message: 'one 1.0.0 is under Zlib, and its package has no text of it',
  })
  t.throws(() => page([{ ...crate, license: 'GPL-3.0' }], ['a'], ALLOWED), { message: /of which none is allowed/ })
  t.regex(
    page([{ ...crate, license: 'MIT' }], ['a'], ALLOWED),
    /Copyright \(c\) the authors of one\n\nPermission is hereby granted/,
  )
})
