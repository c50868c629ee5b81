// Downloads from a server with the Hub's routes: the layout, the choice of files, the cache, offline mode, progress, abortion.
import { existsSync, lstatSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { findModel } from '../../../lib/text/hub/hub.js'
import type { DownloadProgress } from '../../../lib/text/hub/settings.js'
import { folderOf } from '../../support/folder.js'
import { HubServer, sha256 } from '../../support/hub.js'
import {
  bytesOf,
  checkSnapshot,
  communityFiles,
  DEFAULT_FILES,
  findOn,
  listed,
  stateOf,
  withoutVariables,
} from '../../support/hub-repository.js'
import { rejected } from '../../support/throws.js'

withoutVariables()

test('a model is downloaded into the layout of the Hub, and only what it needs', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const commit = server.add('org/name', files)
  const found = await findOn(server, cache)
  const snapshot = join(cache, 'models--org--name', 'snapshots', commit)
  t.deepEqual(found, { folder: snapshot, graph: join(snapshot, 'onnx', 'model_q4.onnx'), dtype: 'q4', commit })
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  t.is(readFileSync(join(cache, 'models--org--name', 'refs', 'main'), 'utf8'), commit)
  t.true(lstatSync(found.graph as string).isSymbolicLink())
  const left = listed(cache).filter(({ path }) => /incomplete|lock/.test(path))
  t.deepEqual(left, [], 'nothing is left behind')
  t.true(server.requests.every(({ headers }) => headers['user-agent']?.startsWith('kvtide/')))
})

test('another dtype is added to the same snapshot', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const commit = server.add('org/name', files)
  await findOn(server, cache)
  const before = server.requests.length
  const found = await findOn(server, cache, 'org/name', { dtype: 'f32' })
  t.is(found.dtype, 'f32')
  checkSnapshot(t, cache, commit, files, [...DEFAULT_FILES, 'onnx/model.onnx', 'onnx/model.onnx_data'].toSorted())
  const asked = server.requests.slice(before).flatMap(({ file }) => file ?? [])
  t.deepEqual(
    [...new Set(asked)].toSorted(),
    ['onnx/model.onnx', 'onnx/model.onnx_data'],
    'nothing is downloaded twice',
  )
  t.is((await findOn(server, cache)).dtype, 'q4', 'the default stays what it is')
})

test('a model that is complete costs a request for a branch, none for a commit, and no write', async t => {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  const commit = server.add('org/name', communityFiles())
  await findOn(server, cache)
  const [before, state] = [server.requests.length, stateOf(cache)]
  await findOn(server, cache)
  t.deepEqual(
    server.requests.slice(before).map(({ path }) => path),
    ['/api/models/org/name/revision/main'],
  )
  await findOn(server, cache, 'org/name', { revision: commit })
  await findOn(server, cache, `org/name@${commit}`)
  await findOn(server, cache, 'org/name', { isOffline: true })
  t.is(server.requests.length, before + 1)
  t.is(stateOf(cache), state)
})

test('a new commit of a branch shares the files that are the same', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const first = server.add('org/name', files)
  await findOn(server, cache)
  const changed = { ...files, 'config.json': '{"changed":true}' }
  const second = server.add('org/name', changed)
  const before = server.requests.length
  t.is((await findOn(server, cache)).commit, second)
  t.deepEqual(
    server.requests.slice(before).flatMap(({ file }) => file ?? []),
    ['config.json'],
  )
  checkSnapshot(t, cache, second, changed, DEFAULT_FILES)
  checkSnapshot(t, cache, first, files, DEFAULT_FILES)
  t.is((await findOn(server, cache, 'org/name', { isOffline: true })).commit, second)
  t.is((await findOn(server, cache, 'org/name', { isOffline: true, revision: first })).commit, first)
})

test('branches, tags and references have their own commits', async t => {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  const main = server.add('org/name', communityFiles('main'))
  const other = server.add('org/name', communityFiles('other'), { revision: 'refs/pr/1' })
  t.is((await findOn(server, cache, 'org/name@refs/pr/1')).commit, other)
  t.is(readFileSync(join(cache, 'models--org--name', 'refs', 'refs', 'pr', '1'), 'utf8'), other)
  t.is((await findOn(server, cache)).commit, main)
  t.is((await findOn(server, cache, 'org/name', { revision: 'refs/pr/1', isOffline: true })).commit, other)
})

test('the folder of a model for onnxruntime-genai is its own', async t => {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  const at = 'cpu_and_mobile/cpu-int4-rtn-block-32'
  const config = JSON.stringify({ model: { decoder: { filename: 'phi.onnx' } } })
  const own = (folder: string): Record<string, string | Buffer> => ({
    [`${folder}/genai_config.json`]: config,
    [`${folder}/phi.onnx`]: bytesOf(folder, 2000),
    [`${folder}/phi.onnx.data`]: bytesOf(`${folder} data`, 20_000),
    [`${folder}/other.onnx`]: bytesOf(`${folder} other`, 20_000),
    [`${folder}/tokenizer.json`]: '{}',
  })
  const files = {
    ...own(at),
    ...own(`${at}-acc-level-4`),
    ...own('cuda/cuda-int4'),
    'config.json': '{}',
    'README.md': 'read',
  }
  const commit = server.add('org/name', files)
  const snapshot = join(cache, 'models--org--name', 'snapshots', commit)
  const best = await findOn(server, cache)
  t.is(best.graph, join(snapshot, ...`${at}-acc-level-4/phi.onnx`.split('/')), 'the file that its config names')
  t.is(best.folder, join(snapshot, ...`${at}-acc-level-4`.split('/')))
  const given = await findOn(server, cache, `org/name/${at}`)
  t.is(given.folder, join(snapshot, ...at.split('/')))
  t.is((await findOn(server, cache, 'org/name', { folder: at, isOffline: true })).graph, given.graph)
  const names = ['genai_config.json', 'phi.onnx', 'phi.onnx.data', 'tokenizer.json']
  checkSnapshot(t, cache, commit, files, [
    'config.json',
    ...names.map(name => `${at}-acc-level-4/${name}`),
    ...names.map(name => `${at}/${name}`),
  ])
})

test('the tokenizer and the configs can be had without a graph', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const commit = server.add('org/name', files)
  const found = await findOn(server, cache, 'org/name', {}, { isText: true })
  t.deepEqual(found, {
    folder: join(cache, 'models--org--name', 'snapshots', commit),
    graph: undefined,
    dtype: undefined,
    commit,
  })
  checkSnapshot(
    t,
    cache,
    commit,
    files,
    DEFAULT_FILES.filter(path => !path.startsWith('onnx/')),
  )
  t.is((await findOn(server, cache, 'org/name', { isOffline: true }, { isText: true })).folder, found.folder)
  await rejected(findOn(server, cache, 'org/name', { isOffline: true }), 'HUB_UNAVAILABLE')
  await findOn(server, cache)
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
})

test('a long list of files comes in pages, through a mirror as well', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  server.pageLength = 3
  const commit = server.add('org/name', files)
  await findOn(server, cache)
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  t.true(server.requests.filter(({ path }) => path.includes('cursor=')).length > 4)
})

test('a repository that was renamed is found by its old name', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const commit = server.add('old/name', files)
  server.move('old/name', 'new/name')
  await findOn(server, cache, 'old/name')
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES, 'old/name')
})

test('progress counts the bytes that are missing', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  server.add('org/name', files)
  const told: DownloadProgress[] = []
  const onProgress = (progress: DownloadProgress): number => told.push(progress)
  await findOn(server, cache, 'org/name', { onProgress })
  const all = DEFAULT_FILES.reduce((sum, path) => sum + Buffer.from(files[path] as string).length, 0)
  t.true(
    told.every(
      ({ loaded, total, allLoaded, allTotal }) => loaded <= total && allLoaded <= allTotal && allTotal === all,
    ),
  )
  const last = told.at(-1) as DownloadProgress
  t.deepEqual([last.allLoaded, last.allTotal], [all, all])
  const ended = told.filter(({ loaded, total }) => loaded === total).map(({ file }) => file)
  t.deepEqual([...new Set(ended)].toSorted(), DEFAULT_FILES)
  told.length = 0
  await findOn(server, cache, 'org/name', { onProgress })
  t.deepEqual(told, [], 'nothing was missing')
})

test('an error of onProgress ends the download, and is the error of the call', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const commit = server.add('org/name', files)
  const own = new Error('mine')
  const onProgress = (): never => {
    throw own
  }
  t.is(await t.throwsAsync(findOn(server, cache, 'org/name', { onProgress })), own)
  t.false(existsSync(join(cache, 'models--org--name', 'snapshots')))
  await findOn(server, cache)
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
})

test('a download that was aborted is resumed by the next call', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('abort', 400_000)]
  const commit = server.add('org/name', files)
  server.fault = ({ file }) => (file?.endsWith('onnx_data') ? { slow: 5000 } : undefined)
  const stop = new AbortController()
  const onProgress = ({ file, loaded }: DownloadProgress): void => {
    if (file.endsWith('onnx_data') && loaded > 50_000) stop.abort(new Error('enough'))
  }
  const error = await rejected(findOn(server, cache, 'org/name', { onProgress, signal: stop.signal }), 'ABORTED')
  t.is((error.cause as Error).message, 'enough')
  t.false(existsSync(join(cache, 'models--org--name', 'snapshots')))
  server.fault = () => undefined
  const before = server.requests.length
  let first: DownloadProgress | undefined
  await findOn(server, cache, 'org/name', {
    onProgress: progress => (first ??= progress.file.endsWith('q4.onnx_data') ? progress : undefined),
  })
  const resumed = server.requests
    .slice(before)
    .find(({ file, isStorage }) => isStorage && file?.endsWith('q4.onnx_data'))
  t.regex(resumed?.headers.range ?? '', /^bytes=[1-9]\d+-$/)
  t.true((first?.loaded ?? 0) > 50_000, 'its progress starts where it was')
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  const aborted = AbortSignal.abort(new Error('before'))
  await rejected(findOn(server, await folderOf(t), 'org/name', { signal: aborted }), 'ABORTED')
})

test('an abort between the list of files and their download ends it before any of them', async t => {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  server.add('org/name', communityFiles('late'))
  const stop = new AbortController()
  const { signal } = stop
  // After the list of files was read, the next listener is that of the download.
  const listen = signal.addEventListener.bind(signal)
  signal.addEventListener = (...given: Parameters<typeof listen>): void => {
    if (server.requests.some(({ path }) => path.includes('/tree/'))) stop.abort(new Error('late'))
    listen(...given)
  }
  const error = await rejected(findOn(server, cache, 'org/name', { signal }), 'ABORTED')
  t.is((error.cause as Error).message, 'late')
  t.deepEqual(
    server.requests.flatMap(({ file }) => file ?? []),
    [],
  )
})

test('a Hub that is away: the cache is used, with a warning, and without it the error says what to do', async t => {
  // Tests of this file run side by side, and its warning is known by the commit: no other test has these files.
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles('away')]
  const commit = server.add('org/name', files)
  await findOn(server, cache)
  await server.stop()
  const warned: Error[] = []
  const listener = (warning: Error): number => warned.push(warning)
  process.on('warning', listener)
  const found = await findOn(server, cache)
  await new Promise(setImmediate)
  process.off('warning', listener)
  t.is(found.commit, commit)
  const own = warned.filter(({ message }) => message.includes(commit.slice(0, 12)))
  t.is(own.length, 1)
  t.regex(own[0]?.message ?? '', /ECONNREFUSED/)
  const away = await rejected(findOn(server, cache, 'org/name', { dtype: 'f16' }), 'HUB_UNAVAILABLE')
  t.regex(away.message, /^cannot get org\/name from http:.*ECONNREFUSED.*by hand: copy its files into /)
  t.deepEqual(
    { ...away.details, reason: '' },
    { model: 'org/name', endpoint: server.endpoint, reason: '', folder: join(cache, 'models--org--name') },
  )
  const offline = await rejected(findOn(server, cache, 'org/other', { isOffline: true }), 'HUB_UNAVAILABLE')
  t.regex(offline.message, /it is offline, and the cache has no main of it/)
  const part = await rejected(findOn(server, cache, 'org/name', { isOffline: true, dtype: 'f16' }), 'HUB_UNAVAILABLE')
  t.regex(part.message, /not all of a graph of f16/)
})

test('a model that vanished from the Hub is used from the cache', async t => {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  const commit = server.add('org/name', communityFiles())
  await findOn(server, cache)
  server.remove('org/name')
  t.is((await findOn(server, cache)).commit, commit)
})

test('offline, HF_HUB_OFFLINE and no network at all mean no request', async t => {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  server.add('org/name', communityFiles())
  await rejected(findOn(server, cache, 'org/name', { isOffline: true }), 'HUB_UNAVAILABLE')
  t.is(server.requests.length, 0)
  t.false(existsSync(join(cache, 'models--org--name')), 'and no folder')
})

test('a part of a snapshot does not count as the model', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const commit = server.add('org/name', files)
  const { folder, graph } = await findOn(server, cache)
  rmSync(join(folder, 'tokenizer.json'))
  await findOn(server, cache, 'org/name', { revision: commit })
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  rmSync(graph as string)
  await rejected(findOn(server, cache, 'org/name', { isOffline: true }), 'HUB_UNAVAILABLE')
  const blob = join(cache, 'models--org--name', 'blobs', sha256(Buffer.from(files['onnx/model_q4.onnx'] as Buffer)))
  await findOn(server, cache)
  rmSync(blob)
  await rejected(findOn(server, cache, 'org/name', { isOffline: true }), 'HUB_UNAVAILABLE')
  await findOn(server, cache, 'org/name', { revision: commit })
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  writeFileSync(blob, 'too short')
  await findOn(server, cache, 'org/name', { dtype: 'f16' })
  rmSync(graph as string)
  await findOn(server, cache)
  t.is(statSync(blob).size, 1500, 'a blob of another length is replaced')
})

test.serial('where links are refused, files are linked hard, and the next download finds them', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const commit = server.add('org/name', files)
  process.env['HF_HUB_DISABLE_SYMLINKS'] = '1'
  try {
    const { graph } = await findOn(server, cache)
    t.true(lstatSync(graph as string).isFile())
    t.is(statSync(graph as string).nlink, 2, 'without a second copy on the disk')
    checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
    // huggingface_hub moves the blobs away.
    rmSync(join(cache, 'models--org--name', 'blobs'), { recursive: true })
    const before = server.requests.length
    await findOn(server, cache, 'org/name', { dtype: 'f16' })
    t.deepEqual(
      new Set(server.requests.slice(before).flatMap(({ file }) => file ?? [])),
      new Set(['onnx/model_fp16.onnx']),
    )
    checkSnapshot(t, cache, commit, files, [...DEFAULT_FILES, 'onnx/model_fp16.onnx'].toSorted())
  } finally {
    delete process.env['HF_HUB_DISABLE_SYMLINKS']
  }
})

test('a link that leads elsewhere is replaced', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const commit = server.add('org/name', files)
  const snapshot = join(cache, 'models--org--name', 'snapshots', commit)
  mkdirSync(snapshot, { recursive: true })
  symlinkSync('/nowhere', join(snapshot, 'config.json'))
  writeFileSync(join(snapshot, 'tokenizer.json'), 'too short')
  writeFileSync(join(cache, 'other'), '{ }'.slice(0, 2))
  symlinkSync(join(cache, 'other'), join(snapshot, 'special_tokens_map.json'))
  await findOn(server, cache)
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
})

test('no model, no revision, no graph: the error says what there is', async t => {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  const find = (name: string, options: object = {}): Promise<unknown> => findOn(server, cache, name, options)
  const messageOf = async (name: string, options: object = {}): Promise<string> =>
    (await rejected(find(name, options), 'MODEL_NOT_FOUND')).message
  server.add('org/name', communityFiles())
  server.add('org/python', { 'config.json': '{}', 'model.safetensors': bytesOf('python', 2000) })
  t.regex(
    await messageOf('org/none'),
    /^cannot use org\/none: there is no such model, or it is private: check the name, or set HF_TOKEN/,
  )
  t.regex(await messageOf('org/name', { revision: 'v9' }), /^cannot use org\/name at v9: there is no revision v9$/)
  t.regex(
    await messageOf('org/name', { dtype: 'uint8' }),
    /no graph of uint8, but q4 \(onnx\/model_q4\.onnx\), q8 \(onnx\/model_quantized\.onnx\)/,
  )
  t.regex(
    await messageOf('org/python'),
    /no ONNX graph of a decoder, only weights for Python: look for its name under onnx-community, or export it/,
  )
  t.regex(
    await messageOf('org/name', { folder: 'cuda' }),
    /no ONNX graph of a decoder in cuda, .*: it has q4 \(onnx\/model_q4\.onnx\)/,
  )
  t.false(existsSync(join(cache, 'models--org--none')))
})

test('a gated model needs a token, which is neither shown nor sent to the storage', async t => {
  const [server, cache, files] = [await HubServer.start(t), await folderOf(t), communityFiles()]
  const commit = server.add('org/name', files, { token: 'hf_right', isGated: true })
  server.add('org/private', files, { token: 'hf_right' })
  const errors = [
    await rejected(findOn(server, cache), 'MODEL_NOT_FOUND'),
    await rejected(findOn(server, cache, 'org/name', { token: 'hf_wrong' }), 'MODEL_NOT_FOUND'),
    await rejected(findOn(server, cache, 'org/private', { token: 'hf_wrong' }), 'MODEL_NOT_FOUND'),
  ]
  t.regex(
    errors[0]?.message ?? '',
    /it is gated: accept its terms at http:\/\/127\.0\.0\.1:\d+\/org\/name, and set HF_TOKEN/,
  )
  t.regex(
    errors[1]?.message ?? '',
    /it is gated: accept its terms at .*, and use a token of an account that may read it/,
  )
  await findOn(server, cache, 'org/name', { token: 'hf_right' })
  checkSnapshot(t, cache, commit, files, DEFAULT_FILES)
  for (const { isStorage, headers } of server.requests) t.true(!isStorage || headers.authorization === undefined)
  t.true(server.requests.some(({ headers }) => headers.authorization === 'Bearer hf_right'))
  const shown = errors
    .map(error => JSON.stringify([error.message, error.details, error.stack, String(error.cause)]))
    .join('')
  t.notRegex(shown, /hf_right|hf_wrong|signature/)
  t.true(
    listed(cache).every(({ path, about }) => !about.isFile() || !readFileSync(join(cache, path)).includes('hf_right')),
  )
})

test('wrong arguments are refused before anything is asked or written', async t => {
  await rejected(findModel('name', {}), 'INVALID_ARGUMENT')
  await rejected(findModel('org/name', { dtyp: 'q4' }), 'INVALID_ARGUMENT')
  await rejected(findModel('org/name', null), 'INVALID_ARGUMENT')
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  await rejected(findOn(server, cache, 'org/name', { dtype: 'q5' as 'q4' }), 'INVALID_ARGUMENT')
  t.is(server.requests.length, 0)
})
