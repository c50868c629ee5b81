// `npm run check:crates`: checks the crates as crates.io would get them.
//
//   their metadata  ->  cargo package        -- --verify builds each from its package, which compiles candle again
//   with --docs, their pages as docs.rs makes them, if there is a nightly compiler
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { ask, must, root } from '../steps.mjs'
import { given, main, Refusal } from '../refusal.mjs'
import { metadata, published } from './cargo.mjs'

const KEYWORDS_MAX = 5

export function faultsOf(crate) {
  const folder = dirname(crate.manifest_path)
  const faults = []
  const wanted = {
    description: crate.description,
    license: crate.license,
    repository: crate.repository,
    readme: crate.readme,
    'rust-version': crate.rust_version,
  }
  for (const [field, value] of Object.entries(wanted)) if (!value) faults.push(`has no ${field}`)
  for (const field of ['keywords', 'categories']) {
    const count = crate[field].length
    if (count < 1 || count > KEYWORDS_MAX) faults.push(`has ${count} ${field}, expected 1 to ${KEYWORDS_MAX}`)
  }
  if (crate.metadata?.docs?.rs === undefined) faults.push('has no settings for docs.rs')
  if (crate.readme && !existsSync(join(folder, crate.readme))) faults.push(`names ${crate.readme}, which is not there`)
  for (const file of ['LICENSE-MIT', 'LICENSE-APACHE']) {
    const own = join(folder, file)
    if (!existsSync(own)) faults.push(`lacks ${file}`)
    else if (readFileSync(own, 'utf8') !== readFileSync(join(root, file), 'utf8'))
      faults.push(`has another ${file} than the repository`)
  }
  return faults
}

async function docs(named) {
  if (ask('cargo', ['+nightly', '--version']) === undefined) {
    console.log('SKIPPED: documentation on the settings of docs.rs: there is no nightly compiler')
    return
  }
  const target = ['--target', 'x86_64-unknown-linux-gnu', '--target-dir', 'target/docs-rs']
  await must('cargo', ['+nightly', 'doc', '--locked', '--no-deps', '--lib', ...named, ...target], {
    env: { RUSTDOCFLAGS: '--cfg docsrs -D warnings' },
  })
}

async function crates() {
  const { verify, docs: documented } = given({ verify: { type: 'boolean' }, docs: { type: 'boolean' } })
  const own = published(metadata(['--no-deps']))
  const faults = own.flatMap(crate => faultsOf(crate).map(fault => `${crate.name} ${fault}`))
  if (faults.length > 0) throw new Refusal(faults.join('\n'))
  const named = own.flatMap(({ name }) => ['-p', name])
  await must('cargo', ['package', '--locked', '--allow-dirty', ...named, ...(verify ? [] : ['--no-verify'])])
  if (documented) await docs(named)
  console.log(`${own.map(({ name }) => name).join(', ')}: ready for their registry`)
}

await main(import.meta.url, 'the crates cannot be published', crates)
