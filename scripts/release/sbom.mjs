// `npm run sbom`: what kvtide is made of, as CycloneDX 1.5, to standard output or to the file that `--out` names.
//
// In it: crates inside an addon, crates and npm packages that it is built and tested with (scope `excluded`), and CUDA's runtime. The same
// commit gives the same bytes: no time, and a serial number that follows from the rest.
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

import { given, refusable, Refusal } from '../refusal.mjs'
import { root } from '../steps.mjs'
import { metadata, shipped } from './cargo.mjs'
import { spdx } from './licences.mjs'
import { present } from './version.mjs'

const text = file => readFileSync(join(root, file), 'utf8')
const cratePurl = ({ name, version }) => `pkg:cargo/${name}@${version}`

/** SHA-256 of each crate's package, from Cargo.lock. */
export function checksums(lock) {
  const found = lock.matchAll(/\[\[package\]\]\nname = "([^"]+)"\nversion = "([^"]+)"\nsource = [^\n]+\nchecksum = "(\w+)"/g)
  return new Map([...found].map(([, name, version, checksum]) => [cratePurl({ name, version }), checksum]))
}

function crateComponents(crates, inside, sums) {
  return crates.map(crate => {
    const purl = cratePurl(crate)
    const names = inside.get(crate.id)
    return {
      type: 'library',
      'bom-ref': purl,
      name: crate.name,
      version: crate.version,
      scope: names === undefined ? 'excluded' : 'required',
      ...(sums.has(purl) ? { hashes: [{ alg: 'SHA-256', content: sums.get(purl) }] } : {}),
      licenses: [{ expression: spdx(crate.license ?? 'NOASSERTION') }],
      purl,
      ...(names === undefined ? {} : { properties: names.map(value => ({ name: 'kvtide:addon', value })) }),
    }
  })
}

/** The packages of package-lock.json, each once. None of them is needed to run kvtide. */
export function npmComponents(lock) {
  const found = new Map()
  for (const [path, { version, integrity, license, dev }] of Object.entries(lock.packages)) {
    const name = path.split('node_modules/').at(-1)
    if (path === '' || version === undefined) continue
    if (dev !== true) throw new Refusal(`${name} is needed to run kvtide, which needs no other package`)
    const purl = `pkg:npm/${name.replace('@', '%40')}@${version}`
    const [, sum] = /^sha512-(\S+)/.exec(integrity ?? '') ?? []
    found.set(purl, {
      type: 'library',
      'bom-ref': purl,
      name,
      version,
      scope: 'excluded',
      ...(sum === undefined ? {} : { hashes: [{ alg: 'SHA-512', content: Buffer.from(sum, 'base64').toString('hex') }] }),
      ...(typeof license === 'string' ? { licenses: [{ expression: spdx(license) }] } : {}),
      purl,
    })
  }
  return [...found.values()]
}

/** The library of the toolkit that is inside the addon with CUDA. */
function cudaComponent() {
  const [, version, sum] = /^nvidia-cuda-runtime==(\S+) --hash=sha256:(\w+)/m.exec(text('scripts/cuda/toolkit.txt')) ?? []
  if (version === undefined) throw new Refusal('scripts/cuda/toolkit.txt names no nvidia-cuda-runtime')
  const purl = `pkg:pypi/nvidia-cuda-runtime@${version}`
  const licenses = [{ license: { name: 'NVIDIA CUDA Toolkit licence agreement' } }]
  const properties = [{ name: 'kvtide:addon', value: 'cuda' }]
  return { type: 'library', 'bom-ref': purl, name: 'nvidia-cuda-runtime', version, scope: 'required', hashes: [{ alg: 'SHA-256', content: sum }], licenses, purl, properties }
}

function dependencies({ packages, resolve }) {
  const purls = new Map(packages.map(crate => [crate.id, cratePurl(crate)]))
  return resolve.nodes.map(({ id, dependencies: ids }) => ({ ref: purls.get(id), dependsOn: [...new Set(ids.map(other => purls.get(other)))].sort() }))
}

const byRef = (a, b) => (a < b ? -1 : Number(a > b))

/** A UUID that follows from what is written. */
function serial(written) {
  const hex = createHash('sha256').update(written).digest('hex')
  return `urn:uuid:${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-9${hex.slice(17, 20)}-${hex.slice(20, 32)}`
}

/** The whole document. */
export function bom() {
  const found = metadata(['--all-features'])
  const inside = new Map(shipped().map(({ id, addons }) => [id, addons]))
  const version = present(root)
  const self = { type: 'library', 'bom-ref': `pkg:npm/kvtide@${version}`, name: 'kvtide', version, licenses: [{ expression: 'MIT OR Apache-2.0' }], purl: `pkg:npm/kvtide@${version}` }
  const addon = cratePurl({ name: 'kvtide', version })
  const components = [...crateComponents(found.packages, inside, checksums(text('Cargo.lock'))), ...npmComponents(JSON.parse(text('package-lock.json'))), cudaComponent()]
  const content = {
    version: 1,
    metadata: { component: self },
    components: components.sort((a, b) => byRef(a['bom-ref'], b['bom-ref'])),
    dependencies: [{ ref: self['bom-ref'], dependsOn: [addon] }, ...dependencies(found)].sort((a, b) => byRef(a.ref, b.ref)),
  }
  return { bomFormat: 'CycloneDX', specVersion: '1.5', serialNumber: serial(JSON.stringify(content)), ...content }
}

function sbom() {
  const { out } = given({ out: { type: 'string' } })
  const written = `${JSON.stringify(bom(), null, 2)}\n`
  if (out === undefined) return process.stdout.write(written)
  writeFileSync(out, written)
  console.log(`${out} is written`)
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await refusable('there is no list of what kvtide is made of', sbom)
