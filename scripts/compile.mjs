// `npm run build:ts`: what the package has of TypeScript, compiled to dist/.
//
// Documentation is for editors, which read it in the declarations: the JavaScript goes without, a third of it. Declarations that no caller
// can reach from a public entry go as well.
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, resolve } from 'node:path'

import { build as bundle, transform } from 'esbuild'

import { main } from './refusal.mjs'
import { must, root } from './steps.mjs'

/** The declarations of what callers import. */
export const ENTRIES = ['index.d.ts', 'inspector.d.ts', 'onnx.d.ts', 'transformers.d.ts']

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

export async function compile(to) {
  rmSync(to, { recursive: true, force: true })
  const build = ['-p', 'tsconfig.build.json', '--outDir', to]
  await must('tsc', [...build, '--declaration', 'false', '--isolatedDeclarations', 'false', '--removeComments'])
  await must('tsc', [...build, '--emitDeclarationOnly'])
  const typed = reachable(ENTRIES.map(entry => join(to, entry)))
  for (const file of readdirSync(to, { recursive: true })) {
    if (file.endsWith('.d.ts') && !typed.has(join(to, file))) rmSync(join(to, file))
  }
  writeFileSync(join(to, 'lib', 'inspector', 'page.html'), await inspectorPage())
}

/** A file of the package that draws charts. */
const packaged = name => readFileSync(createRequire(import.meta.url).resolve(`uplot/${name}`), 'utf8')

/** The page of the inspector, with its script, its style and those of the charts in it. */
async function inspectorPage() {
  const folder = join(root, 'lib', 'inspector', 'page')
  const { outputFiles: [script] } = await bundle({ entryPoints: [join(folder, 'main.ts')], bundle: true, minify: true, format: 'iife', target: 'es2022', write: false, tsconfigRaw: {} })
  const [charts, licence] = [packaged('dist/uPlot.min.css'), packaged('LICENSE')]
  const style = (await transform(`${charts}\n${readFileSync(join(folder, 'style.css'), 'utf8')}`, { loader: 'css', minify: true })).code
  const html = readFileSync(join(folder, 'index.html'), 'utf8')
  // Functions, so that nothing in the texts counts as a pattern.
  return html.replace('<!doctype html>', () => `<!doctype html>\n<!-- The charts are those of uPlot.\n\n${licence.trim()}\n-->`).replace('/* style */', () => style.trim()).replace('/* script */', () => script.text.trim().replaceAll('</script', '<\\/script'))
}

await main(import.meta.url, 'cannot compile', () => compile(join(root, 'dist')))
