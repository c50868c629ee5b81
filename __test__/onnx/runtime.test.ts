// onnxruntime-node as the project has it: found, loaded first, and refused where it cannot be used.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test from 'ava'

import { checkWhole } from '../../lib/onnx/graph-session.js'
import { libraryFiles, onnxLibrary, onnxRuntime, versionProblem } from '../../lib/onnx/runtime.js'
import { binding } from '../../lib/loading/binding.js'
import { startWorker } from '../support/worker.js'
import { ABSENT, onnxTest, PLATFORM } from '../support/onnx/available.js'
import { references } from '../support/llama/references.js'
import { graphFile, PagedGraph } from '../support/onnx/paged-graph.js'
import { throwsCode } from '../support/throws.js'

onnxTest('the library is the one that onnxruntime-node has loaded, of its version', t => {
  const { version, folder, module } = onnxRuntime()
  const wanted =
    process.env['KVTIDE_ONNXRUNTIME_VERSION'] ??
    (createRequire(import.meta.url)('onnxruntime-node/package.json') as { version: string }).version
  t.is(version, wanted)
  t.is(typeof module.InferenceSession.create, 'function')
  const library = onnxLibrary()
  t.is(library.version, version)
  t.true(library.file.startsWith(folder))
  t.is(library.takesFolder, Number(version.split('.')[1]) >= 21)
  if (process.platform === 'linux') t.true(readFileSync('/proc/self/maps', 'latin1').includes(library.file))
  t.is(onnxLibrary(), library)
})

test('versions before 1.17 are refused with what to do', t => {
  for (const version of ['1.17.0', '1.30.0', '2.0.0']) t.is(versionProblem(version), undefined)
  for (const version of ['1.16.3', '1.9.0', '0.1.0', 'nonsense'])
    t.regex(
      versionProblem(version) ?? '',
      /its version is .*, at least 1\.17 is needed: run `(ONNXRUNTIME_NODE_INSTALL=skip )?npm install onnxruntime-node@latest`/,
    )
})

test('libraries are found by the names that each system and version has', t => {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-onnxruntime-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  const put = (version: string, system: string, arch: string, names: readonly string[]): void => {
    const at = join(folder, 'bin', version, system, arch)
    mkdirSync(at, { recursive: true })
    for (const name of names) writeFileSync(join(at, name), '')
  }
  put('napi-v3', 'linux', 'x64', [
    'libonnxruntime.so.1.17.3',
    'libonnxruntime_providers_shared.so',
    'onnxruntime_binding.node',
  ])
  put('napi-v6', 'linux', 'x64', ['libonnxruntime.so.1'])
  put('napi-v6', 'darwin', 'arm64', [
    'libonnxruntime.1.30.0.dylib',
    'libonnxruntime.1.dylib',
    'onnxruntime_binding.node',
  ])
  put('napi-v6', 'win32', 'arm64', ['DirectML.dll', 'onnxruntime.dll', 'onnxruntime_binding.node'])
  const found = (system: string, arch: string): string[] =>
    libraryFiles(folder, system, arch).map(file => file.slice(folder.length + 5).replaceAll('\\', '/'))
  t.deepEqual(found('linux', 'x64'), [
    'napi-v3/linux/x64/libonnxruntime.so.1.17.3',
    'napi-v6/linux/x64/libonnxruntime.so.1',
  ])
  t.deepEqual(found('darwin', 'arm64'), [
    'napi-v6/darwin/arm64/libonnxruntime.1.30.0.dylib',
    'napi-v6/darwin/arm64/libonnxruntime.1.dylib',
  ])
  t.deepEqual(found('win32', 'arm64'), ['napi-v6/win32/arm64/onnxruntime.dll'])
  t.deepEqual(found('linux', 'arm64'), [])
  t.deepEqual(libraryFiles(join(folder, 'nowhere')), [])
})

onnxTest('what is not loaded in this process is not loaded by us', t => {
  onnxRuntime()
  const refused = throwsCode(t, 'RUNTIME_UNAVAILABLE', () => binding.onnxLibrary(['/nowhere/libonnxruntime.so.1']))
  t.is(refused.details.runtime, 'onnxruntime-node')
  t.regex(refused.details.reason, /another onnxruntime is loaded/)
})

onnxTest('a library that is none is refused by its file', t => {
  // Our own addon is loaded, and has no function of onnxruntime's.
  const { sharedObjects } = process.report.getReport() as unknown as { readonly sharedObjects: readonly string[] }
  const addon = sharedObjects.find(file => /kvtide.*\.node$/.test(file))
  const refused = throwsCode(t, 'RUNTIME_UNAVAILABLE', () => binding.onnxLibrary([addon ?? 'the addon is not listed']))
  t.regex(refused.details.reason, /is not a library of onnxruntime/)
})

onnxTest('three worker threads and the main thread run models at once', async t => {
  const support = new URL('../support/onnx/paged-graph.ts', import.meta.url).href
  const source = `
    const { PagedGraph } = await import(${JSON.stringify(support)})
    const model = await PagedGraph.open(workerData.file)
    const chosen = []
    for (let round = 0; round < 3; round++) {
      const sequence = model.cache.openSequence()
      chosen.push(await model.greedy(sequence, workerData.prompt, 16))
      sequence.dispose()
    }
    model[Symbol.dispose]()
    parentPort.postMessage(chosen)`
  const prompt = references.prompts['p33'] as readonly number[]
  const wanted = (references.greedy['p33'] as readonly number[]).slice(0, 16)
  const answers = [0, 1, 2].map(() => {
    const worker = startWorker(source, { file: graphFile('onnx'), prompt })
    return new Promise<unknown>((resolve, reject) => worker.once('message', resolve).once('error', reject))
  })
  using model = await PagedGraph.open(graphFile('onnx'))
  using sequence = model.cache.openSequence()
  t.deepEqual(await model.greedy(sequence, prompt, 16), wanted)
  for (const answer of await Promise.all(answers)) t.deepEqual(answer, [wanted, wanted, wanted])
})

if (ABSENT) {
  test(`${PLATFORM}: onnxruntime-node has nothing for it, and that is what is said`, t => {
    const refused = throwsCode(t, 'RUNTIME_UNAVAILABLE', onnxLibrary)
    t.regex(refused.details.reason, new RegExp(`not installed|${PLATFORM}|${process.platform}-${process.arch}`))
  })
}

test('a model of more than 2 GiB in one piece is refused with a remedy', t => {
  const [library, old] = [
    { version: '1.22.0', takesFolder: true },
    { version: '1.20.1', takesFolder: false },
  ] as const
  t.notThrows(() => checkWhole(2 ** 31 - 1, library))
  const links = throwsCode(t, 'RUNTIME_UNAVAILABLE', () => checkWhole(2 ** 31, library))
  t.regex(links.message, /this one has 2147483648 bytes of weights: put its files into one folder$/)
  const version = throwsCode(t, 'RUNTIME_UNAVAILABLE', () => checkWhole(2 ** 31, old))
  t.regex(version.message, /update onnxruntime-node, which is 1\.20\.1, to 1\.21 or later$/)
})
