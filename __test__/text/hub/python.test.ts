// The cache folder beside huggingface_hub: each finds the other's files. KVTIDE_HUB_PYTHON names a python that has the package.
import { execFileSync, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import { folderOf } from '../../support/folder.js'
import { HubServer } from '../../support/hub.js'
import { checkSnapshot, communityFiles, DEFAULT_FILES, findOn, withoutVariables } from '../../support/hub-repository.js'
import { needing } from '../../support/needing.js'

withoutVariables()

const python = process.env['KVTIDE_HUB_PYTHON']

function missing(): string | undefined {
  if (python === undefined) return 'huggingface_hub: KVTIDE_HUB_PYTHON names no python that has it'
  try {
    execFileSync(python, ['-c', 'import huggingface_hub'], { stdio: 'ignore' })
    return undefined
  } catch {
    return `huggingface_hub: ${python} does not have it`
  }
}

const withPython = needing(missing())

/** Runs a program of Python, and returns the last line that it prints, as JSON. */
async function run(program: string, variables: Readonly<Record<string, string>>): Promise<unknown> {
  const child = spawn(python as string, ['-c', `import json, os, huggingface_hub as hub\n${program}`], {
    env: { ...process.env, HF_HUB_DISABLE_PROGRESS_BARS: '1', HF_HUB_DISABLE_XET: '1', ...variables },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let printed = ''
  child.stdout.on('data', piece => (printed += String(piece)))
  await new Promise(resolve => child.on('close', resolve))
  return JSON.parse(printed.trim().split('\n').at(-1) as string)
}

withPython('huggingface_hub finds what kvtide downloaded, without a network', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('to python')]
  const commit = server.add('org/name', files)
  const { folder } = await findOn(server, cache)
  const found = (await run(
    `
names = ${JSON.stringify([...DEFAULT_FILES, 'onnx/model_fp16.onnx'])}
print(json.dumps({
  'snapshot': hub.snapshot_download('org/name'),
  'commit': hub.snapshot_download('org/name', revision='${commit}'),
  'files': {name: hub.try_to_load_from_cache('org/name', name) for name in names},
  'file': hub.hf_hub_download('org/name', 'onnx/model_q4.onnx_data'),
  'scanned': [[repo.repo_id, repo.nb_files, [r.commit_hash for r in repo.revisions], [str(w) for w in report.warnings]] for report in [hub.scan_cache_dir()] for repo in report.repos],
}))`,
    { HF_HUB_CACHE: cache, HF_HUB_OFFLINE: '1' },
  )) as Readonly<Record<string, unknown>>
  t.is(found['snapshot'], folder)
  t.is(found['commit'], folder)
  t.is(found['file'], join(folder, 'onnx', 'model_q4.onnx_data'))
  t.deepEqual(found['files'], {
    ...Object.fromEntries(DEFAULT_FILES.map(path => [path, join(folder, ...path.split('/'))])),
    'onnx/model_fp16.onnx': null,
  })
  t.deepEqual(found['scanned'], [['org/name', DEFAULT_FILES.length, [commit], []]])
})

withPython('kvtide finds what huggingface_hub downloaded, without a network', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('from python')]
  const commit = server.add('org/name', files)
  const allowed = ['*.json', '*.jinja', 'onnx/model_q4.onnx*', 'onnx/model_fp16.onnx']
  const folder = await run(
    `print(json.dumps(hub.snapshot_download('org/name', allow_patterns=${JSON.stringify(allowed)})))`,
    { HF_HUB_CACHE: cache, HF_ENDPOINT: server.endpoint },
  )
  const before = server.requests.length
  t.true(before > 0)
  const found = await findOn(server, cache, 'org/name', { isOffline: true })
  t.deepEqual(found, {
    folder: folder as string,
    graph: join(folder as string, 'onnx', 'model_q4.onnx'),
    dtype: 'q4',
    commit,
  })
  t.is((await findOn(server, cache, 'org/name', { revision: commit, dtype: 'f16' })).dtype, 'f16')
  t.is(server.requests.length, before, 'neither asks for anything')
  checkSnapshot(t, cache, commit, files, [...DEFAULT_FILES, 'onnx/model_fp16.onnx'].toSorted())
  await findOn(server, cache, 'org/name', { dtype: 'q8' })
  checkSnapshot(
    t,
    cache,
    commit,
    files,
    [...DEFAULT_FILES, 'onnx/model_fp16.onnx', 'onnx/model_quantized.onnx'].toSorted(),
  )
})

withPython('both download the same model at the same time', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('at once', 300_000)]
  const commit = server.add('org/name', files)
  server.fault = ({ isStorage, method }) => (isStorage && method === 'GET' ? { slow: 4000 } : undefined)
  const program = `print(json.dumps(hub.snapshot_download('org/name', allow_patterns=['*.json', '*.jinja', 'onnx/model_q4.onnx*'])))`
  const theirs = run(program, { HF_HUB_CACHE: cache, HF_ENDPOINT: server.endpoint })
  while (!server.requests.some(({ isStorage }) => isStorage)) await new Promise(resolve => setTimeout(resolve, 5))
  const ours = await findOn(server, cache)
  t.is(await theirs, ours.folder)
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  t.is(readFileSync(join(cache, 'models--org--name', 'refs', 'main'), 'utf8'), commit)
})
