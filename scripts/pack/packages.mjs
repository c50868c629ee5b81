// Makes the packages that are published: kvtide itself, one for each platform whose addon is there, and the one with CUDA.
//
//   node scripts/pack/packages.mjs [--addons <folder with .node files>] [--to <folder>] [--all]
//
// Each is a folder of its own and a tarball beside it. An addon that is not there is named, and its package is not made; with --all, which
// a release takes, that is refused for all but CUDA: some package managers install nothing when a package that kvtide names does not exist.
import { existsSync, readFileSync, statSync } from 'node:fs'
import { join, relative, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'

import { given } from '../arguments.mjs'
import { Refusal, refusable } from '../refusal.mjs'
import { root, run } from '../steps.mjs'
import { addonContents, emptied, filesOf, rootContents } from './contents.mjs'
import { cudaPackage, platformPackage, rootManifest } from './manifests.mjs'

/** The repository's package.json. */
export const repository = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))

/** Packages of addons, of which any may be missing. */
export const addonPackages = manifest => [...manifest.napi.targets.map(target => platformPackage(manifest, target)), cudaPackage(manifest)]

/**
 * Makes the packages in `to`, of the addons in `addons`; `only` are the files of addons to look at, all unless it is given.
 * Answers what was made, kvtide first, and the files that were not there.
 */
export async function makePackages({ addons, to, only }) {
  const manifest = rootManifest(repository)
  const made = [await make(manifest, to, folder => rootContents(repository, manifest, folder))]
  const skipped = []
  for (const described of addonPackages(repository)) {
    if (only !== undefined && !only.includes(described.file)) continue
    if (existsSync(join(addons, described.file))) made.push(await make(described.manifest, to, folder => addonContents(described, addons, folder)))
    else skipped.push(described.file)
  }
  return { made, skipped }
}

async function make({ name, version }, to, fill) {
  const folder = emptied(join(to, name))
  await fill(folder)
  const { code, output } = await run('npm', ['pack', folder, '--silent', '--ignore-scripts', '--pack-destination', to], { silent: true })
  if (code !== 0) throw new Refusal(`${name} could not be packed: ${output.trim()}`)
  const tarball = join(to, `${name}-${version}.tgz`)
  const unpackedBytes = filesOf(folder).reduce((sum, file) => sum + statSync(join(folder, file)).size, 0)
  return { name, version, folder, tarball, bytes: statSync(tarball).size, unpackedBytes }
}

const kilobytes = bytes => `${(bytes / 1000).toFixed(0)} kB`

/** A line for each package: what was made and how large it is, and what was not and why. */
export const report = ({ made, skipped }) =>
  [
    ...made.map(({ name, version, bytes, unpackedBytes }) => `${name}@${version}  ${kilobytes(bytes)}, ${kilobytes(unpackedBytes)} unpacked`),
    ...skipped.map(file => `SKIPPED: ${file} is not there, its package is not made`),
  ].join('\n')

const OPTIONS = { addons: { type: 'string', default: root }, to: { type: 'string', default: join(root, 'target', 'pack', 'packages') }, all: { type: 'boolean', default: false } }

async function main() {
  const { addons, to, all } = given(OPTIONS)
  if (!existsSync(addons)) throw new Refusal(`--addons is ${addons}, expected a folder with addons`)
  const needed = all ? repository.napi.targets.map(target => platformPackage(repository, target).file) : []
  const missing = needed.filter(file => !existsSync(join(addons, file)))
  if (missing.length > 0) throw new Refusal(`${addons} lacks ${missing.join(', ')}`)
  const packed = await makePackages({ addons: resolve(addons), to: resolve(to) })
  console.log(`${report(packed)}\nin ${relative(process.cwd(), resolve(to)) || '.'}`)
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await refusable('cannot make the packages', main)
