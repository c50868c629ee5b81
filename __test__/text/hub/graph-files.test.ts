// Real graphs from the server: weights whose names only the graph tells, embeddings and encoders beside it, and models that run from the cache folder.
import { readdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

import test from 'ava'

import { renamedWeights } from '../../../lib/onnx/renamed-weights.js'
import { type BackendName, OnnxModel } from '../../../onnx.js'
import { folderOf } from '../../support/folder.js'
import { HubServer } from '../../support/hub.js'
import { findOn, listed, withoutVariables } from '../../support/hub-repository.js'
import { onnxTest } from '../../support/onnx/available.js'
import { graphFile } from '../../support/onnx/graphs.js'
import { rejected } from '../../support/throws.js'

withoutVariables()

const CONFIGS = { 'config.json': '{}', 'tokenizer.json': '{}' }
const GRAPH = graphFile('llama/onnx-gqa-f32-ext')
const WEIGHTS = readFileSync(`${GRAPH}.data`)

/** The graph with its weights in a file of this name. */
const graphOver = (file: string): Buffer =>
  Buffer.from(renamedWeights(readFileSync(GRAPH), new Map([['model.onnx.data', file]])))

/** All files of a fixture, below a folder of a repository. */
function fixture(name: string, folder: string): Record<string, Buffer> {
  const from = fileURLToPath(new URL(`../../fixtures/${name}/`, import.meta.url))
  return Object.fromEntries(readdirSync(from).map(file => [`${folder}/${file}`, readFileSync(join(from, file))]))
}

test('weights whose names only the graph tells are downloaded', async t => {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  const files = {
    ...CONFIGS,
    'onnx/model_q4.onnx': graphOver('weights of layers'),
    'onnx/weights of layers': WEIGHTS,
    'onnx/other': WEIGHTS.subarray(1),
  }
  const commit = server.add('org/name', files)
  const { folder } = await findOn(server, cache)
  const snapshot = join('models--org--name', 'snapshots', commit)
  t.deepEqual(
    listed(join(cache, snapshot)).map(({ path }) => path),
    ['config.json', 'onnx/model_q4.onnx', 'onnx/weights of layers', 'tokenizer.json'],
  )
  rmSync(join(folder, 'onnx', 'weights of layers'))
  await rejected(findOn(server, cache, 'org/name', { isOffline: true }), 'HUB_UNAVAILABLE')
  await findOn(server, cache, 'org/name', { revision: commit })
  await findOn(server, cache, 'org/name', { isOffline: true })
  t.true(readFileSync(join(folder, 'onnx', 'weights of layers')).equals(WEIGHTS))
})

test('a graph that names a file outside its folder brings nothing', async t => {
  const [server, cache] = [await HubServer.start(t), await folderOf(t)]
  const files = { ...CONFIGS, 'onnx/model_q4.onnx': graphOver('../secret'), secret: WEIGHTS }
  server.add('org/name', files)
  const { graph } = await findOn(server, cache)
  t.deepEqual(
    server.requests.filter(({ file }) => file === 'secret'),
    [],
  )
  await rejected(OnnxModel.load(graph as string), 'INVALID_GRAPH')
})

test('a decoder of embeddings brings its own, and one with an encoder that', async t => {
  for (const [name, file] of [
    ['vision/qwen2-vl', 'embed_tokens.onnx'],
    ['encoder-decoder/t5', 'encoder_model.onnx'],
  ] as const) {
    const [server, cache] = [await HubServer.start(t), await folderOf(t)]
    server.add('org/name', { ...CONFIGS, ...fixture(name, 'onnx') })
    const { folder } = await findOn(server, cache)
    const there = listed(folder)
      .map(({ path }) => path)
      .filter(path => path.endsWith('.onnx'))
    t.deepEqual(there, [`onnx/decoder_model_merged.onnx`, `onnx/${file}`].toSorted())
    await findOn(server, cache, 'org/name', { isOffline: true })
    rmSync(join(folder, 'onnx', file))
    await rejected(findOn(server, cache, 'org/name', { isOffline: true }), 'HUB_UNAVAILABLE')
  }
})

async function greedy(file: string, backend: BackendName): Promise<number[]> {
  await using model = await OnnxModel.load(file, { backend, threads: 1, cache: { memoryBytes: 2 ** 22 } })
  const tokens: number[] = []
  for await (const token of model.generate(model.open({ tokens: [1, 5, 9, 14] }), { maxTokens: 8 })) tokens.push(token)
  return tokens
}

for (const backend of ['graph', 'parts', 'plain'] as const)
  onnxTest(`a model with weights in another file runs from the cache folder on ${backend}`, async t => {
    const [server, cache] = [await HubServer.start(t), await folderOf(t)]
    const genai = readFileSync(join(GRAPH, '..', 'genai_config.json'))
    server.add('org/name', {
      ...CONFIGS,
      'genai_config.json': genai,
      'model.onnx': readFileSync(GRAPH),
      'model.onnx.data': WEIGHTS,
    })
    const { graph } = await findOn(server, cache)
    t.deepEqual(await greedy(graph as string, backend), await greedy(GRAPH, backend))
  })
