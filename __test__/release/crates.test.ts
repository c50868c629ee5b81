// The crates: what they say of themselves, which of them are published, and the Rust that they need.
import { cpSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { folder, refuses, root, text, type Crate } from '../support/packaging/scripts.js'
import { metadata, members, published } from '../../scripts/release/cargo.mjs'
import { faultsOf } from '../../scripts/release/crates.mjs'

const found = metadata(['--no-deps'])
const own: Crate[] = published(found)
const crate = (name: string): Crate => own.find(one => one.name === name) as Crate
const number = (version: string): number =>
  version.split('.').reduce((sum, part, at) => sum + Number(part) * 1000 ** (2 - at), 0)

test('which crates are published', t => {
  t.deepEqual(
    own.map(({ name }) => name),
    [
      'kvtide-core',
      'kvtide-cuda',
      'kvtide-files',
      'kvtide-onnx',
      'kvtide-router',
      'kvtide-sample',
      'kvtide-tensor',
      'kvtide-tiers',
    ],
  )
})

test('what stands against publishing one is named', t => {
  for (const one of own) t.deepEqual(faultsOf(one), [], one.name)
  const core = crate('kvtide-core')
  t.deepEqual(faultsOf({ ...core, description: null, keywords: [] }), [
    'has no description',
    'has 0 keywords, expected 1 to 5',
  ])
  t.deepEqual(faultsOf({ ...core, metadata: null, readme: 'GONE.md' }), [
    'has no settings for docs.rs',
    'names GONE.md, which is not there',
  ])

  const copy = folder(t)
  cpSync(join(root, 'crates/kvtide-core/README.md'), join(copy, 'README.md'))
  writeFileSync(join(copy, 'LICENSE-MIT'), 'as you like')
  t.deepEqual(faultsOf({ ...core, manifest_path: join(copy, 'Cargo.toml') }), [
    'has another LICENSE-MIT than the repository',
    'lacks LICENSE-APACHE',
  ])
})

test('everything public of them has a description', t => {
  for (const { name } of own)
    t.regex(text(`crates/${name}/src/lib.rs`), /^#!\[deny\((\w+, )*missing_docs(, \w+)*\)\]$/m, name)
})

test('the lowest Rust is the same wherever it is named', t => {
  const lowest = /^rust-version = "([\d.]+)"$/m.exec(text('Cargo.toml'))?.[1] ?? ''
  t.regex(lowest, /^1\.\d+$/)
  for (const one of members(found) as Crate[]) t.is(one.rust_version, lowest, one.name)
  for (const file of ['README.md', ...own.map(({ name }) => `crates/${name}/README.md`)])
    t.true(text(file).includes(`Rust ${lowest} or later`), file)
  const used = /^channel = "([\d.]+)"$/m.exec(text('rust-toolchain.toml'))?.[1] ?? ''
  t.true(number(used) >= number(lowest), `${used} is older than ${lowest}`)
})

test('nothing that the workspace is built with needs a newer Rust', t => {
  const lowest = number(own[0]?.rust_version ?? '')
  const newer = (metadata().packages as Crate[]).filter(
    ({ rust_version: needed }) => typeof needed === 'string' && number(needed) > lowest,
  )
  t.deepEqual(
    newer.map(({ name, rust_version: needed }) => `${name} ${needed}`),
    [],
  )
})

test('an option or a word that a script does not know is refused in one line', async t => {
  await refuses(t, 'release/crates.mjs', ['--verfy'], /^the crates cannot be published: Unknown option '--verfy'$/m)
  for (const script of ['crates', 'reproducible', 'sbom', 'surface', 'third-party', 'workflows']) {
    await refuses(t, `release/${script}.mjs`, ['--new'], /Unknown option '--new'/)
    await refuses(t, `release/${script}.mjs`, ['more'], /unexpected argument "more"/)
  }
})

test('a folder without a workspace is refused', t => {
  t.throws(() => metadata([], folder(t)), { message: /^cargo metadata failed: error: could not find `Cargo.toml`/ })
})
