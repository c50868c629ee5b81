import { createHash } from 'node:crypto'

import type { NativeOnnxGraph, NativeOnnxRewritten } from '#binding'

import { invalid, isKvTideError, KvTideError } from '../border/errors.js'
import { threads as allThreads } from '../border/process.js'
import { binding } from '../loading/binding.js'
import type { ModelLayer } from '../sequences/model-description.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'
import type { ModelCacheOptions } from '../sequences/options.js'
import type { Backend, BackendName } from './backend.js'
import { configBeside, configSizes, configWindows, readText } from './config.js'
import { GraphBackend } from './graph.js'
import { type OnnxCacheOptions, readLoad, readModelSource } from './options.js'
import { type DeclaredLayers, pastLayers } from './past-layers.js'
import { plainPorts } from './plain.js'
import { SessionBackend } from './session-backend.js'

/**
 * Loads a model in the first way that works.
 *
 * ```text
 * file or bytes -> graph -> rewritten -> for each way: its layers -> a cache of them -> a backend
 * ```
 * A way that is refused leaves nothing behind, and the next one is tried; where none is left, the first refusal is thrown. What is wrong with the
 * options is thrown at once.
 */

/** Why a model is not run in a way. */
export interface BackendRefusal {
  readonly backend: BackendName
  readonly error: KvTideError
}

const SEQUENCES = 32
const MEMORY_BYTES = 2 ** 30

/** What a `config.json` says, as far as it is used. */
type Config = DeclaredLayers

const NO_CONFIG: Config = {}

/** @internal Loads a model in the first way that works. */
export async function loadModel(model: unknown, options: unknown) {
  const source = readModelSource(model)
  const { config, cache: given, threads = allThreads(), backends, maxStepTokens } = readLoad(options)
  const declared = readConfig(source, config)
  const graph = typeof source === 'string' ? await binding.NativeOnnxGraph.open(source) : await binding.NativeOnnxGraph.of(source)
  checkFolder(graph)
  const refusals: BackendRefusal[] = []
  const rewritten = await refusing(() => graph.rewrite(true, declared.windows))
  const namespace = await fingerprint(graph)
  for (const backend of backends) {
    if (backend !== 'plain' && rewritten.refusal !== undefined) {
      refusals.push({ backend, error: rewritten.refusal })
      continue
    }
    const layers = await refusing(() => layersOf(backend, graph, rewritten.value, declared))
    if (layers.value === undefined) {
      refusals.push({ backend, error: layers.refusal })
      continue
    }
    const cache = new PagedKvCache({ ...defaults(given, maxStepTokens), namespace, ...given, ...layers.value } as ModelCacheOptions)
    const made = await refusing(() => make(backend, graph, rewritten.value, cache, threads))
    if (made.value !== undefined) {
      const limits = { stepTokens: maxStepTokens, sequences: given.maxSequences ?? SEQUENCES }
      return { cache, backend: made.value, refusals, vocabulary: rewritten.value?.inspect().vocabulary ?? vocabularyOf(graph), limits }
    }
    cache.dispose()
    refusals.push({ backend, error: made.refusal as KvTideError })
  }
  throw (refusals[0] as BackendRefusal).error
}

async function make(backend: BackendName, graph: NativeOnnxGraph, rewritten: NativeOnnxRewritten | undefined, cache: PagedKvCache, threads: number): Promise<Backend> {
  if (backend === 'graph') return GraphBackend.of(graph, rewritten as NativeOnnxRewritten, { threads })
  if (backend === 'parts') return SessionBackend.parts(graph, rewritten as NativeOnnxRewritten, threads)
  return SessionBackend.plain(graph, cache, threads)
}

/** What a call gives, or why it is refused. */
async function refusing<T>(call: () => T | Promise<T>): Promise<{ readonly value: T; readonly refusal?: undefined } | { readonly value?: undefined; readonly refusal: KvTideError }> {
  try {
    return { value: await call() }
  } catch (error) {
    if (!isKvTideError(error)) throw error
    return { refusal: error }
  }
}

/** The cache's layers, and the dtype that goes into it. A graph that is run as it is sees what it saw, whatever a config declares. */
function layersOf(backend: BackendName, graph: NativeOnnxGraph, rewritten: NativeOnnxRewritten | undefined, declared: Config): Pick<ModelCacheOptions, 'model' | 'dtype'> {
  if (backend === 'plain' || rewritten === undefined) {
    const layers = pastLayers(plainPorts(graph), { ...declared, found: rewritten?.layers() })
    return { model: { layers }, dtype: graph.inputs().find(({ element }) => element === 'f16') === undefined ? 'f32' : 'f16' }
  }
  const found = rewritten.layers()
  const layers = found.map(({ window, numKvHeads, headDim, valueHeadDim }): ModelLayer => {
    const sizes = { numKvHeads, headDim, valueHeadDim }
    return window === undefined ? { kind: 'full', ...sizes } : { kind: 'sliding', window, ...sizes }
  })
  const [first] = found
  const attention = { numQueryHeads: first?.numHeads ?? 1, sinkLogits: found.some(layer => layer.sinks !== undefined) }
  return { model: { layers, attention }, dtype: (first?.element ?? 'f32') as 'f32' }
}

function defaults(given: OnnxCacheOptions, maxStepTokens: number): Pick<ModelCacheOptions, 'memoryBytes' | 'maxSequences' | 'maxPrefillTokens'> {
  if (given.capacity !== undefined) return {}
  return { memoryBytes: MEMORY_BYTES, maxSequences: SEQUENCES, maxPrefillTokens: maxStepTokens }
}

/** What the config that was given declares, or the one beside the model, which is passed over where it is none. */
function readConfig(source: string | Uint8Array, config: unknown): Config {
  const beside = typeof source === 'string' ? configBeside(source) : undefined
  const file = typeof config === 'string' ? config : config === undefined ? beside : undefined
  if (config === undefined && file === undefined) return NO_CONFIG
  try {
    const json = file === undefined ? JSON.stringify(config) : readText('config', file)
    return { ...configSizes(json), windows: configWindows(json, config !== undefined) }
  } catch (error) {
    if (config === undefined) return NO_CONFIG
    if (isKvTideError(error)) throw error
    throw invalid('config', config, 'a config.json of Hugging Face')
  }
}

/** Refuses weights beside a model that is given as bytes: they would be looked for where the process happens to run. */
function checkFolder(graph: NativeOnnxGraph): void {
  const [beside] = graph.path === null ? graph.externalFiles() : []
  if (beside === undefined) return
  const { file } = beside
  const expected = 'the path of the model, not its bytes, which do not say where it lies'
  throw new KvTideError('INVALID_GRAPH', `weights in ${file}: expected ${expected}`, { file, expected })
}

/** How many tokens the graph's logits tell apart. */
function vocabularyOf(graph: NativeOnnxGraph): number | undefined {
  const last = graph.outputs().find(({ name }) => name === 'logits')?.dims.at(-1) ?? ''
  return /^\d+$/.test(last) ? Number(last) : undefined
}

/** A name for the graph: of its nodes, and of where its weights lie and how many they are. */
async function fingerprint(graph: NativeOnnxGraph): Promise<string> {
  const bytes = await graph.model('weights')
  return createHash('sha256').update(bytes).update(JSON.stringify(graph.externalFiles())).digest('hex')
}
