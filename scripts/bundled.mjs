// Bundles the TypeScript tests into target/tests, and is ava's configuration for them. A test process that loads bundles starts a second earlier
// than one in which tsx compiles each source.
import { readdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'

import { build } from 'esbuild'

import { repository, root } from './steps.mjs'

const FOLDER = join('target', 'tests')

/** This file, as an option of ava. */
export const bundled = ['--config', join('scripts', 'bundled.mjs')]

/** The bundle of a test, or an option as it is. */
export const bundleOf = test => (test.endsWith('.test.ts') ? join(FOLDER, test.replace(/ts$/, 'js')) : test)

/** Bundles all tests. What several of them import is in files of its own, so that no module is loaded twice. */
export async function bundleTests() {
  rmSync(join(root, FOLDER), { recursive: true, force: true })
  const tests = ['__test__', 'bench/tests'].flatMap(folder =>
    readdirSync(join(root, folder), { recursive: true })
      .filter(file => file.endsWith('.test.ts'))
      .map(file => join(root, folder, file)),
  )
  await build({
    absWorkingDir: root,
    entryPoints: tests,
    outdir: FOLDER,
    outbase: '.',
    bundle: true,
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    packages: 'external',
    keepNames: true,
    sourcemap: 'linked',
    logLevel: 'warning',
    define: { 'import.meta': 'kvtideMeta' },
    banner: { js: 'const kvtideResolve = import.meta.resolve' },
    plugins: [{ name: 'sources', setup: ({ onLoad }) => onLoad({ filter: /\.m?[jt]s$/ }, ({ path }) => source(path)) }],
  })
}

/** A source in which `import.meta` is that of the source, not of the bundle. */
function source(path) {
  const contents = readFileSync(path, 'utf8')
  const loader = path.endsWith('ts') ? 'ts' : 'js'
  if (!contents.includes('import.meta')) return { contents, loader }
  const meta = { url: pathToFileURL(path).href, filename: path, dirname: dirname(path) }
  return { contents: `const kvtideMeta = { ...${JSON.stringify(meta)}, resolve: kvtideResolve }; ${contents}`, loader }
}

export default {
  ...repository.ava,
  files: [join(FOLDER, '**', '*.test.js')],
  extensions: ['js'],
  nodeArguments: repository.ava.nodeArguments.filter(argument => !argument.includes('tsx')),
}
