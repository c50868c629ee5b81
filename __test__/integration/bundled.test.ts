// An app bundled together with kvtide, with the addon beside it: it runs, and features that a bundle cannot have throw helpful errors.
import { copyFileSync, mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'

import type { ExecutionContext } from 'ava'
import { build } from 'esbuild'

import { onnxTest as test } from '../support/onnx/available.js'
import { graphFile } from '../support/onnx/graphs.js'
import { root, runNode } from '../support/packaging/child.js'
import { ADDON_FILE, addonPath } from '../support/packaging/package-copy.js'

const APP = `
  import { KvCache } from 'kvtide'
  import { OnnxModel } from 'kvtide/onnx'
  const cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 })
  const told = { seqLen: cache.seqLen }
  async function main() {
    for (const backend of ['graph', 'plain']) {
      try {
        const model = await OnnxModel.load(process.argv[2], { backend, threads: 1, cache: { memoryBytes: 2 ** 22 } })
        const tokens = []
        for await (const token of model.generate(model.open({ tokens: [1, 5, 9] }), { maxTokens: 3 })) tokens.push(token)
        await model.dispose()
        told[backend] = tokens.length
      } catch (error) {
        told[backend] = error.code + ': ' + error.message
      }
    }
    console.log(JSON.stringify(told))
  }
  main()
`

/** Bundles the app into one file in a temporary folder. */
async function bundled(t: ExecutionContext, format: 'esm' | 'cjs'): Promise<string> {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'kvtide-bundled-')))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  writeFileSync(
    join(folder, 'package.json'),
    JSON.stringify({ name: 'app', imports: { '#package': './package.json' } }),
  )
  mkdirSync(join(folder, 'node_modules'))
  symlinkSync(
    dirname(createRequire(import.meta.url).resolve('onnxruntime-node/package.json')),
    join(folder, 'node_modules', 'onnxruntime-node'),
  )
  const { warnings } = await build({
    stdin: { contents: APP, resolveDir: folder, loader: 'ts' },
    outfile: join(folder, `app.${format === 'esm' ? 'mjs' : 'cjs'}`),
    bundle: true,
    format,
    platform: 'node',
    target: 'node20',
    alias: { kvtide: join(root, 'index.ts'), 'kvtide/onnx': join(root, 'onnx.ts') },
    tsconfigRaw: {},
    logLevel: 'silent',
  })
  t.deepEqual(
    warnings.filter(({ id }) => id !== 'empty-import-meta').map(({ text }) => text),
    [],
  )
  return folder
}

async function run(t: ExecutionContext, folder: string, format: 'esm' | 'cjs'): Promise<Record<string, unknown>> {
  const { NAPI_RS_NATIVE_LIBRARY_PATH: _, ...env } = process.env
  const { out, err } = await runNode(
    [join(folder, `app.${format === 'esm' ? 'mjs' : 'cjs'}`), graphFile('llama/onnx')],
    { cwd: folder, env },
  )
  t.is(err, '')
  return JSON.parse(out === '' ? '{}' : out) as Record<string, unknown>
}

for (const format of ['esm', 'cjs'] as const) {
  test(`${format}: with the addon beside it, all runs that needs no thread of its own`, async t => {
    const folder = await bundled(t, format)
    copyFileSync(addonPath, join(folder, ADDON_FILE))
    const { plain, ...told } = await run(t, folder, format)
    t.deepEqual(told, { seqLen: 0, graph: 3 })
    t.regex(String(plain), /^RUNTIME_UNAVAILABLE: .*worker thread is not at .*keep kvtide out of the bundle/)
  })

  test(`${format}: with the package installed, its addon and its threads are found`, async t => {
    const folder = await bundled(t, format)
    symlinkSync(root, join(folder, 'node_modules', 'kvtide'))
    t.deepEqual(await run(t, folder, format), { seqLen: 0, graph: 3, plain: 3 })
  })
}

test('scripts of a command line have a __filename for all modules: where one is, it says itself', async t => {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'kvtide-here-')))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const outfile = join(folder, 'projects.mjs')
  await build({
    entryPoints: [join(root, 'lib/loading/projects.ts')],
    outfile,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    tsconfigRaw: {},
    logLevel: 'silent',
  })
  const url = pathToFileURL(outfile).href
  const show = `import(${JSON.stringify(url)}).then(({ here }) => console.log(here))`
  for (const script of [show, `new (require('node:worker_threads').Worker)(${JSON.stringify(show)}, { eval: true })`]) {
    t.is((await runNode(['--eval', script], { cwd: tmpdir() })).out.trim(), url, script)
  }
})
