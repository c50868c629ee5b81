// Makes the published packages: kvtide itself, one for each platform whose addon exists, the one with CUDA, and those over kvtide (packages/).
//
//   node scripts/pack/packages.mjs [--addons <folder with .node files>] [--to <folder>] [--complete]
//
// Each is a folder and a tarball next to it. A missing addon is named, and its package is not made. With --complete, as in a release, that is an error: some package
// managers install nothing if a package that kvtide depends on does not exist.
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join, relative, resolve } from 'node:path'

import { compile, compilePackage, packageFolders } from '../compile.mjs'
import { given, main, Refusal } from '../refusal.mjs'
import { repository, root, run } from '../steps.mjs'
import { cudaPackage, netPackage, overManifest, platformPackage, rootManifest } from './manifests.mjs'

export const addonPackages = manifest =>
  [platformPackage, netPackage]
    .flatMap(described => manifest.napi.targets.map(target => described(manifest, target)))
    .concat(cudaPackage(manifest))

/**
 * Makes the packages in `to` from the addons in `addons`; `only` limits the addon files, which are all by default.
 * Returns the packages, kvtide first, those over kvtide apart, and the missing files.
 */
export async function makePackages({ addons, to, only }) {
  const made = [await make(rootManifest(repository), to, rootContents)]
  const skipped = []
  for (const described of addonPackages(repository)) {
    if (only !== undefined && !only.includes(described.file)) continue
    if (existsSync(join(addons, described.file)))
      made.push(await make(described.manifest, to, folder => addonContents(described, addons, folder)))
    else skipped.push(described.file)
  }
  const over = []
  for (const source of packageFolders()) {
    const manifest = JSON.parse(readFileSync(join(source, 'package.json'), 'utf8'))
    over.push(await make(overManifest(manifest), to, folder => overContents(source, manifest, folder)))
  }
  return { made, over, skipped }
}

/** Copies the `files` of a package over kvtide; `dist` is compiled here. A file with `!` in front is left out. */
async function overContents(source, { files }, folder) {
  await compilePackage(source, join(folder, 'dist'))
  const left = new Set(files.filter(name => name.startsWith('!')).map(name => join(source, name.slice(1))))
  const parts = ['README.md', ...files.filter(name => name !== 'dist' && !name.startsWith('!'))]
  for (const part of parts.filter(name => existsSync(join(source, name))))
    cpSync(join(source, part), join(folder, part), { recursive: true, filter: file => !left.has(file) })
}

/** Copies the `files` of the repository's package.json; `dist` is compiled here. */
async function rootContents(folder) {
  await compile(join(folder, 'dist'))
  for (const part of ['README.md', ...repository.files.filter(name => name !== 'dist')])
    cpSync(join(root, part), join(folder, part), { recursive: true })
}

/** Copies an addon, with its README and the licences of the crates inside it. */
function addonContents({ readme, file }, addons, folder) {
  copyFileSync(join(addons, file), join(folder, file))
  writeFileSync(join(folder, 'README.md'), readme)
  copyFileSync(join(root, 'THIRD_PARTY.md'), join(folder, 'THIRD_PARTY.md'))
}

async function make(manifest, to, fill) {
  const folder = emptied(join(to, manifest.name))
  await fill(folder)
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`)
  for (const file of ['LICENSE-MIT', 'LICENSE-APACHE']) copyFileSync(join(root, file), join(folder, file))
  return { folder, ...(await packed(folder, to)) }
}

/** Packs a folder, or inspects a tarball if no target folder is given; returns its name, files and sizes from npm. */
export async function packed(what, to) {
  const { code, output } = await run(
    'npm',
    [
      'pack',
      what,
      '--json',
      '--loglevel',
      'error',
      '--ignore-scripts',
      ...(to === undefined ? ['--dry-run'] : ['--pack-destination', to]),
    ],
    { silent: true },
  )
  if (code !== 0) throw new Refusal(`${what} could not be packed: ${output.trim()}`)
  const [{ name, version, filename, size, unpackedSize, files }] = JSON.parse(output.slice(output.indexOf('[')))
  return {
    name,
    version,
    tarball: to === undefined ? what : join(to, filename),
    bytes: size,
    unpackedBytes: unpackedSize,
    files,
  }
}

export function emptied(folder) {
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  return folder
}

const kilobytes = bytes => `${(bytes / 1000).toFixed(0)} kB`

/** Returns a line for each package: its size, or why it was not made. */
export const report = ({ made, over = [], skipped }) =>
  [
    ...[...made, ...over].map(
      ({ name, version, bytes, unpackedBytes }) =>
        `${name}@${version}  ${kilobytes(bytes)}, ${kilobytes(unpackedBytes)} unpacked`,
    ),
    ...skipped.map(file => `SKIPPED: ${file} is not there, its package is not made`),
  ].join('\n')

async function packages() {
  const { addons, to, complete } = given({
    complete: { type: 'boolean', default: false },
    addons: { type: 'string', default: root },
    to: { type: 'string', default: join(root, 'target', 'pack', 'packages') },
  })
  if (!existsSync(addons)) throw new Refusal(`--addons is ${addons}, expected a folder with addons`)
  const missing = addonPackages(repository).filter(({ file }) => !existsSync(join(addons, file)))
  if (complete && missing.length > 0)
    throw new Refusal(`--complete needs all addons: ${addons} lacks ${missing.map(({ file }) => file).join(', ')}`)
  const found = await makePackages({ addons: resolve(addons), to: resolve(to) })
  console.log(`${report(found)}\nin ${relative(process.cwd(), resolve(to)) || '.'}`)
}

await main(import.meta.url, 'cannot make the packages', packages)
