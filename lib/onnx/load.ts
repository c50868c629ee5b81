import { createHash } from 'node:crypto'

import type { NativeOnnxGraph, NativeOnnxRewritten } from '#binding'

import { invalid, isKvTideError, type KvTideError } from '../border/errors.js'
import { threads as allThreads } from '../border/process.js'
import { binding } from '../loading/binding.js'
import type { ModelLayer } from '../sequences/model-description.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'
import type { ModelCacheOptions } from '../sequences/options.js'
import type { Backend, BackendName } from './backend.js'
import { configBeside, configWindows, readText } from './config.js'
import { GraphBackend } from './graph.js'
import { type OnnxCacheOptions, readLoad, readModelSource } from './options.js'
import { plainLayers } from './plain.js'
import { SessionBackend } from './session-backend.js'

/** Why a model is not run in a way. */
export interface BackendRefusal {
  readonly backend: BackendName
  readonly error: KvTideError
}

const SEQUENCES = 32
const MEMORY_BYTES = 2 ** 30

/** What a `config.json` says, as far as it is used. */
interface Config {
  readonly windows: (number | null)[] | undefined
  readonly numKvHeads: number | undefined
  readonly headDim: number | undefined
}

const NO_CONFIG: Config = { windows: undefined, numKvHeads: undefined, headDim: undefined }

/** @internal Loads a model in the first way that works. */
export async function loadModel(model: unknown, options: unknown) {
  const source = readModelSource(model)
  const { config, cache: given, threads = allThreads(), backends, maxStepTokens } = readLoad(options)
  const declared = readConfig(source, config)
  const graph = typeof source === 'string' ? await binding.NativeOnnxGraph.open(source) : await binding.NativeOnnxGraph.of(source)
  const refusals: BackendRefusal[] = []
  const rewritten = await refusing(() => graph.rewrite(true, declared.windows))
  const namespace = await fingerprint(graph)
  for (const backend of backends) {
    if (backend !== 'plain' && rewritten.refusal !== undefined) {
      refusals.push({ backend, error: rewritten.refusal })
      continue
    }
    const cache = new PagedKvCache({ ...defaults(given, maxStepTokens), namespace, ...given, ...layersOf(graph, rewritten.value, declared) } as ModelCacheOptions)
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
async function refusing<T>(call: () => Promise<T>): Promise<{ readonly value: T; readonly refusal?: undefined } | { readonly value?: undefined; readonly refusal: KvTideError }> {
  try {
    return { value: await call() }
  } catch (error) {
    if (!isKvTideError(error)) throw error
    return { refusal: error }
  }
}

/** The cache's layers, and the dtype that goes into it. */
function layersOf(graph: NativeOnnxGraph, rewritten: NativeOnnxRewritten | undefined, declared: Config): Pick<ModelCacheOptions, 'model' | 'dtype'> {
  if (rewritten === undefined) {
    const { windows, numKvHeads, headDim } = declared
    const layers = plainLayers(graph, { ...(windows === undefined ? {} : { windows }), ...(numKvHeads === undefined ? {} : { numKvHeads }), ...(headDim === undefined ? {} : { headDim }) })
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

/** What the config that was given declares, or the one beside the model; one of a family that is not known declares nothing unless it was given. */
function readConfig(source: string | Uint8Array, config: unknown): Config {
  const beside = typeof source === 'string' ? configBeside(source) : undefined
  const file = typeof config === 'string' ? config : config === undefined ? beside : undefined
  if (config === undefined && file === undefined) return NO_CONFIG
  try {
    const json = file === undefined ? JSON.stringify(config) : readText('config', file)
    const fields = JSON.parse(json) as Record<string, number | undefined>
    const headDim = fields['head_dim'] ?? (fields['hidden_size'] as number) / (fields['num_attention_heads'] as number)
    return { windows: configWindows(json), numKvHeads: fields['num_key_value_heads'], headDim: Number.isInteger(headDim) ? headDim : undefined }
  } catch (error) {
    if (config === undefined) return NO_CONFIG
    if (isKvTideError(error)) throw error
    throw invalid('config', config, 'a config.json of Hugging Face')
  }
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
