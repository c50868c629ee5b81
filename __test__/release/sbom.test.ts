// The list of what kvtide is made of: complete, consistent in itself, and the same bytes each time.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { folder, refuses, root, runScript } from '../support/scripts.js'
import { bom, checksums, npmComponents } from '../../scripts/release/sbom.mjs'

interface Component {
  readonly 'bom-ref': string
  readonly name: string
  readonly version: string
  readonly scope: 'required' | 'excluded'
  readonly purl: string
  readonly hashes?: readonly { alg: string; content: string }[]
  readonly licenses?: readonly object[]
}
interface Bom {
  readonly serialNumber: string
  readonly metadata: { readonly component: Component }
  readonly components: readonly Component[]
  readonly dependencies: readonly { ref: string; dependsOn: readonly string[] }[]
}

const found = bom()
const text = (file: string): string => readFileSync(join(root, file), 'utf8')

test('everything that the lock files name is in it, and nothing twice', t => {
  const refs = found.components.map(component => component['bom-ref'])
  t.is(new Set(refs).size, refs.length)
  t.deepEqual(refs, refs.toSorted())
  for (const [, name = '', version = ''] of text('package-lock.json').matchAll(/^ {4}"node_modules\/(ava|typescript)": \{\n {6}"version": "([^"]+)"/gm)) {
    t.true(refs.includes(`pkg:npm/${name}@${version}`), name)
  }
  for (const name of ['candle-core', 'napi', 'cudarc', 'objc2-metal', 'blake3', 'kvtide-core']) {
    t.is(found.components.find(component => component.name === name)?.scope, 'required', name)
  }
  for (const name of ['proptest', 'cc', 'thiserror-impl', 'ava']) t.is(found.components.find(component => component.name === name)?.scope, 'excluded', name)
  t.true(refs.some(ref => ref.startsWith('pkg:pypi/nvidia-cuda-runtime@')))
})

test('every component that comes from a registry has its checksum and a licence', t => {
  for (const { name, purl, hashes, licenses } of found.components) {
    t.is(licenses?.length, 1, purl)
    const isOwn = purl.startsWith('pkg:cargo/') && (name.startsWith('kvtide') || name === 'decoder')
    if (isOwn) t.is(hashes, undefined)
    else t.regex(hashes?.[0]?.content ?? '', /^([\da-f]{64}|[\da-f]{128})$/, purl)
  }
})

test('what depends on what names components alone', t => {
  const refs = new Set([found.metadata.component['bom-ref'], ...found.components.map(component => component['bom-ref'])])
  for (const { ref, dependsOn } of found.dependencies) for (const other of [ref, ...dependsOn]) t.true(refs.has(other), other)
})

test('it is the same bytes each time', async t => {
  const file = join(folder(t), 'kvtide.cdx.json')
  const { code, err } = await runScript('release/sbom.mjs', ['--out', file])
  t.is(code, 0, err)
  t.is(readFileSync(file, 'utf8'), `${JSON.stringify(found, null, 2)}\n`)
  t.regex(found.serialNumber, /^urn:uuid:[\da-f]{8}-[\da-f]{4}-8[\da-f]{3}-9[\da-f]{3}-[\da-f]{12}$/)
  t.notRegex(readFileSync(file, 'utf8'), /timestamp/)
})

test('checksums are those of Cargo.lock', t => {
  const lock = `[[package]]\nname = "own"\nversion = "1.0.0"\n\n[[package]]\nname = "one"\nversion = "1.0.0"\nsource = "registry"\nchecksum = "ab12"\n`
  t.deepEqual([...checksums(lock)], [['pkg:cargo/one@1.0.0', 'ab12']])
})

test('a package that kvtide would need to run is refused', t => {
  const lock = { packages: { '': {}, 'node_modules/@a/b': { version: '1.0.0', integrity: 'sha512-AAAA', license: 'MIT', dev: true } } }
  t.deepEqual(npmComponents(lock).map(({ purl, hashes }) => [purl, hashes?.[0]?.content]), [['pkg:npm/%40a/b@1.0.0', '000000']])
  t.throws(() => npmComponents({ packages: { 'node_modules/c': { version: '1.0.0' } } }), { message: 'c is needed to run kvtide, which needs no other package' })
})

test('an unknown option is refused', async t => {
  await refuses(t, 'release/sbom.mjs', ['--to'], /Unknown option '--to'/)
})
