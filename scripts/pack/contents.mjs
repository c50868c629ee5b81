// What goes into the package `kvtide`: the compiled sources, and the declarations that its types are made of.
import { copyFileSync, cpSync, existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'

import { compile } from '../compile.mjs'
import { root } from '../steps.mjs'

/** What goes along with every package; addons contain crates of others, and say whose. */
const LICENCES = ['LICENSE-MIT', 'LICENSE-APACHE']
const THIRD_PARTY = 'THIRD_PARTY.md'

/** Puts the package into an empty folder: `files` of the repository's package.json, of which `dist` is compiled here. */
export async function rootContents({ files }, manifest, to) {
  await compile(join(to, 'dist'))
  for (const part of ['README.md', ...files.filter(name => name !== 'dist')]) cpSync(join(root, part), join(to, part), { recursive: true })
  common(manifest, to)
}

/** Puts the package of an addon into an empty folder. */
export function addonContents({ manifest, readme, file }, addons, to) {
  copyFileSync(join(addons, file), join(to, file))
  writeFileSync(join(to, 'README.md'), readme)
  if (existsSync(join(root, THIRD_PARTY))) copyFileSync(join(root, THIRD_PARTY), join(to, THIRD_PARTY))
  common(manifest, to)
}

function common(manifest, to) {
  writeFileSync(join(to, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`)
  for (const file of LICENCES) copyFileSync(join(root, file), join(to, file))
}

/** A folder for a package, empty. */
export function emptied(folder) {
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  return folder
}

/** The files of a folder, sorted. */
export const filesOf = folder =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile())
    .map(entry => relative(folder, join(entry.parentPath ?? entry.path, entry.name)))
    .sort()
