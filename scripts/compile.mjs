// `npm run build:ts`: compiles the TypeScript of kvtide to dist/, and then that of each package in packages/ to its own.
//
// Editors read the documentation in the declarations, so it is removed from the JavaScript, which shrinks by a third. Declarations that callers
// can't reach from a public entry are removed as well. Each entry gets a file for `require` next to it.
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, resolve } from 'node:path'

import { build as bundle, transform } from 'esbuild'

import { main } from './refusal.mjs'
import { must, root } from './steps.mjs'

/** The declarations of the public entries. */
export const ENTRIES = ['index.d.ts', 'inspector.d.ts', 'onnx.d.ts', 'text.d.ts', 'transformers.d.ts']

/** Returns the declarations that a declaration imports, directly or through others. */
export function reachable(declarations, found = new Set()) {
  for (const file of declarations) {
    if (found.has(file)) continue
    found.add(file)
    const imported = [
      ...readFileSync(file, 'utf8').matchAll(/(?:from|import|import\(|require\() ?['"]([^'"]+)['"]/g),
    ].map(([, name]) => name)
    const internal = imported.find(name => name.startsWith('#'))
    if (internal !== undefined)
      throw new Error(
        `${file} is part of the package's types and imports ${internal}, which the package does not contain`,
      )
    const beside = imported
      .filter(name => name.startsWith('.'))
      .map(name => resolve(dirname(file), name.replace(/\.js$/, '.d.ts')))
    reachable(beside, found)
  }
  return found
}

/**
 * Returns the files of an entry for `require`. They load the same module as `import`, so that a process has each class once. Node 20.0 to 20.18
 * cannot require an ES module, and gets an error that says what to do. If `module` is node16, TypeScript reads declarations for `require` only
 * from a .d.cts.
 */
export function required(entry) {
  const name = entry === 'index' ? 'kvtide' : `kvtide/${entry}`
  return {
    [`${entry}.cjs`]: `try {
  module.exports = require('./${entry}.js')
} catch (cause) {
  if (cause?.code !== 'ERR_REQUIRE_ESM') throw cause
  const message = \`require('${name}') needs node 20.19, 22.12 or later, but this is \${process.versions.node}: use await import('${name}') instead\`
  throw Object.assign(new Error(message, { cause }), { code: cause.code })
}
`,
    [`${entry}.d.cts`]: `// @ts-ignore: if \`module\` is node16, TypeScript does not know that an ES module can be required.
import kvtide = require('./${entry}.js')
export = kvtide
`,
  }
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
  for (const entry of ENTRIES) {
    for (const [file, text] of Object.entries(required(entry.replace('.d.ts', '')))) writeFileSync(join(to, file), text)
  }
  writeFileSync(join(to, 'lib', 'inspector', 'page.html'), await inspectorPage())
}

/** The folders of the packages over kvtide that are compiled. They use its compiled entries, so it is compiled first. */
export const packageFolders = () =>
  readdirSync(join(root, 'packages'))
    .map(name => join(root, 'packages', name))
    .filter(folder => existsSync(join(folder, 'tsconfig.build.json')))

/** Compiles the packages over kvtide. */
export async function compilePackages() {
  for (const folder of packageFolders()) {
    rmSync(join(folder, 'dist'), { recursive: true, force: true })
    await must('tsc', ['-p', join(folder, 'tsconfig.build.json')])
  }
}

/** Returns a file of the package that draws charts. */
const packaged = name => readFileSync(createRequire(import.meta.url).resolve(`uplot/${name}`), 'utf8')

/** Writes the inspector's page, with its script, its style and those of the charts inlined. */
async function inspectorPage() {
  const folder = join(root, 'lib', 'inspector', 'page')
  const {
    outputFiles: [script],
  } = await bundle({
    entryPoints: [join(folder, 'main.ts')],
    bundle: true,
    minify: true,
    format: 'iife',
    target: 'es2022',
    write: false,
    tsconfigRaw: {},
  })
  const [charts, licence] = [packaged('dist/uPlot.min.css'), packaged('LICENSE')]
  const style = (
    await transform(`${charts}\n${readFileSync(join(folder, 'style.css'), 'utf8')}`, { loader: 'css', minify: true })
  ).code
  const html = readFileSync(join(folder, 'index.html'), 'utf8')
  // Replacements are functions, so that `$` in the texts has no special meaning.
  return html
    .replace('<!doctype html>', () => `<!doctype html>\n<!-- The charts are those of uPlot.\n\n${licence.trim()}\n-->`)
    .replace('/* style */', () => style.trim())
    .replace('/* script */', () => script.text.trim().replaceAll('</script', '<\\/script'))
}

await main(import.meta.url, 'cannot compile', async () => {
  await compile(join(root, 'dist'))
  await compilePackages()
})
