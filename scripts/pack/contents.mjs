// What goes into the package `kvtide`: the compiled sources, and the declarations that its types are made of.
import { copyFileSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'

import { must, root } from '../steps.mjs'

/** What goes along with every package; addons contain crates of others, and say whose. */
const LICENCES = ['LICENSE-MIT', 'LICENSE-APACHE']
const THIRD_PARTY = 'THIRD_PARTY.md'

/** Declarations that others import, from one of them on. */
export function reachable(declarations, found = new Set()) {
  for (const file of declarations) {
    if (found.has(file)) continue
    found.add(file)
    const imported = [...readFileSync(file, 'utf8').matchAll(/(?:from|import|import\(|require\() ?['"]([^'"]+)['"]/g)].map(([, name]) => name)
    const internal = imported.find(name => name.startsWith('#'))
    if (internal !== undefined) throw new Error(`${file} is part of the package's types and imports ${internal}, which the package does not have`)
    const beside = imported.filter(name => name.startsWith('.')).map(name => resolve(dirname(file), name.replace(/\.js$/, '.d.ts')))
    reachable(beside, found)
  }
  return found
}

/** Compiles the sources: programs without comments, which take a third of them, and declarations with all that editors show. */
async function compile(to) {
  const build = ['-p', 'tsconfig.build.json', '--outDir', to]
  await must('tsc', [...build, '--declaration', 'false', '--isolatedDeclarations', 'false', '--removeComments'])
  await must('tsc', [...build, '--emitDeclarationOnly'])
  const typed = reachable([join(to, 'index.d.ts')])
  for (const file of readdirSync(to, { recursive: true })) {
    if (file.endsWith('.d.ts') && !typed.has(join(to, file))) rmSync(join(to, file))
  }
}

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
