// Loads a model with the first backend that works.
//
//     file or bytes -> graph -> rewritten -> for each backend: its layers -> a cache of them -> the backend
//
// A backend that refuses the model leaves nothing behind, and the next one is tried. If all refuse, the first refusal is thrown. Wrong options are thrown at once.
import { createHash } from 'node:crypto'
import { basename } from 'node:path'

import type { NativeOnnxGraph, NativeOnnxLayer, NativeOnnxRewritten } from '#binding'

import { inLength, invalid, isKvTideError, type KvTideError } from '../errors/errors.js'
import { threads as allThreads } from '../border/process.js'
import type { ModelLayer } from '../sequences/model-description.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { ModelCacheOptions } from '../sequences/options.js'
import type { Backend, BackendForm, BackendName } from './backend.js'
import { isSlid } from './carried.js'
import { configBeside, type ConfigSizes, configSizes, configWindows, genaiSizes, readText } from './config.js'
import { smallest } from './context.js'
import type { CrossCache } from './cross-cache.js'
import { type Embeddings, openEmbeddings } from './embeddings.js'
import { crossCacheOf, encoderParts, hasEncoder } from './encoder-parts.js'
import { GraphBackend } from './graph.js'
import { openSource } from './graph-source.js'
import { type OnnxCacheOptions, readLoad, readModelSource } from './options.js'
import { type DeclaredLayers, pastLayers } from './past-layers.js'
import { plainPorts } from './plain.js'
import { refusedPort } from './ports.js'
import { SessionBackend } from './session-backend.js'

/** The reason why a backend does not run a model. */
export interface BackendRefusal {
  readonly backend: BackendName
  readonly error: KvTideError
}

const SEQUENCES = 32
const MEMORY_BYTES = 2 ** 30
/** The values of configs that are used here. */
type Config = DeclaredLayers & ConfigSizes

/** @internal Loads a model with the first backend that works. */
export async function loadModel(model: unknown, options: unknown) {
  const source = readModelSource('model', model)
  const read = readLoad(options)
  const { config, cache: given, threads = allThreads(), backends, maxStepTokens } = read
  const declared = readConfig(source, config)
  const graph = await openSource(source)
  const embeddings = await openEmbeddings(graph, read.embeddings)
  const parts = await encoderParts(graph, read)
  const refusals: BackendRefusal[] = []
  const rewritten = await refusing(() => graph.rewrite(true, declared.windows, [...(embeddings?.names ?? [])]))
  const namespace = await fingerprint(graph, embeddings)
  const positionRows = rowsOfPositions(graph)
  for (const backend of backends) {
    if (backend !== 'plain' && rewritten.refusal !== undefined) {
      refusals.push({ backend, error: rewritten.refusal })
      continue
    }
    const layers = await refusing(async () => {
      if (backend === 'plain') await checkWindows(graph, declared, embeddings?.names)
      return layersOf(backend, graph, rewritten.value, declared, embeddings?.names)
    })
    if (layers.value === undefined) {
      refusals.push({ backend, error: layers.refusal })
      continue
    }
    const cache = new PagedKvCache({
      ...defaults(given, maxStepTokens),
      namespace,
      ...given,
      ...formatsOf(given, backend === 'plain' ? [] : rewritten.value?.layers()),
      ...layers.value,
    } as ModelCacheOptions)
    const cross = parts === undefined ? undefined : crossCacheOf(cache, read.crossCacheBytes)
    const form = { threads, embeddings, positionRows }
    const made = await refusing(() =>
      backend === 'plain'
        ? SessionBackend.plain(graph, cache, form, { cross, encoder: parts?.graph })
        : make(backend, graph, rewritten.value, form),
    )
    if (made.value !== undefined) {
      // For a decoder with an encoder, there is no other backend.
      if (backend === 'plain' && parts === undefined) warnOfPlain(graph, namespace, refusals[0])
      const limits = { stepTokens: maxStepTokens, sequences: given.maxSequences ?? SEQUENCES }
      const vocabulary = rewritten.value?.inspect().vocabulary ?? vocabularyOf(graph)
      const contextLength = smallest([declared.contextLength, graph.contextLength() ?? undefined])
      const rope = (backend === 'plain' ? null : rewritten.value?.longRope()) ?? undefined
      const encoded = parts === undefined ? undefined : { ...parts, cross: cross as CrossCache }
      const width = embeddings?.width
      return { cache, backend: made.value, refusals, vocabulary, contextLength, limits, rope, width, encoded }
    }
    cache.dispose()
    refusals.push({ backend, error: made.refusal as KvTideError })
  }
  // Only `plain` runs a decoder with an encoder, so its refusal says what to change.
  throw (refusals.at(hasEncoder(graph) ? -1 : 0) as BackendRefusal).error
}

/** The graphs whose warning was given. */
const warned = new Set<string>()

/** Warns once for each graph that it runs on the slow backend, unless that one was asked for. */
function warnOfPlain(graph: NativeOnnxGraph, namespace: string, refusal: BackendRefusal | undefined): void {
  if (refusal === undefined || warned.has(namespace)) return
  warned.add(namespace)
  const name = graph.path === null ? 'a model' : basename(graph.path)
  const text = `${name} runs on the slow backend plain, one sequence after the other: ${refusal.error.message}`
  process.emitWarning(inLength(text), { type: 'KvTideWarning', code: 'KVTIDE_PLAIN' })
}

async function make(
  backend: Exclude<BackendName, 'plain'>,
  graph: NativeOnnxGraph,
  rewritten: NativeOnnxRewritten | undefined,
  form: BackendForm,
): Promise<Backend> {
  if (backend === 'graph') return GraphBackend.of(graph, rewritten as NativeOnnxRewritten, form)
  return SessionBackend.parts(graph, rewritten as NativeOnnxRewritten, form)
}

/** The result of a call, or its refusal. */
async function refusing<T>(
  call: () => T | Promise<T>,
): Promise<
  { readonly value: T; readonly refusal?: undefined } | { readonly value?: undefined; readonly refusal: KvTideError }
> {
  try {
    return { value: await call() }
  } catch (error) {
    if (!isKvTideError(error)) throw error
    return { refusal: error }
  }
}

/** Refuses an unmodified graph that lacks a window of its config: it would see tokens that the other backends hide. */
async function checkWindows(graph: NativeOnnxGraph, { windows }: Config, given: readonly string[] = []): Promise<void> {
  if (windows === undefined || windows.every(window => window === null)) return
  const { value: own } = await refusing(() => graph.rewrite(false, undefined, [...given]))
  const ports = plainPorts(graph, given).layers
  for (const [place, layer] of own?.layers().entries() ?? []) {
    const declared = windows[place] ?? null
    const [key] = ports[place] ?? []
    if (declared === null || layer.window !== undefined || key === undefined || isSlid(key)) continue
    const reason = `the config declares a window of ${declared} for layer ${place}, which the graph itself does not have; graph and parts add it`
    throw refusedPort(key.past, 'input', reason)
  }
}

/** The cache's layers, and the dtype of appended tokens. An unmodified graph computes its own windows, whatever a config declares. */
function layersOf(
  backend: BackendName,
  graph: NativeOnnxGraph,
  rewritten: NativeOnnxRewritten | undefined,
  declared: Config,
  given?: readonly string[],
): Pick<ModelCacheOptions, 'model' | 'dtype'> {
  if (backend === 'plain' || rewritten === undefined) {
    const all = rewritten?.layers()
    const found = all?.filter(({ source }) => source === undefined)
    // Layers without keys and values of their own are the last ones, and have no pasts.
    const windows =
      declared.windows?.length === all?.length ? declared.windows?.slice(0, found?.length) : declared.windows
    const layers = pastLayers(plainPorts(graph, given), { ...declared, windows, found })
    return {
      model: { layers },
      dtype:
        graph.inputs().find(({ name, element }) => element === 'f16' && given?.includes(name) !== true) === undefined
          ? 'f32'
          : 'f16',
    }
  }
  const found = rewritten.layers()
  const layers = found.map(({ window, numKvHeads, headDim, valueHeadDim, source }): ModelLayer => {
    const sizes = { numKvHeads, headDim, valueHeadDim }
    if (source !== undefined) return { kind: 'shared', with: source, ...sizes }
    return window === undefined ? { kind: 'full', ...sizes } : { kind: 'sliding', window, ...sizes }
  })
  const [first] = found
  const attention = { numQueryHeads: first?.numHeads ?? 1, sinkLogits: found.some(layer => layer.sinks !== undefined) }
  return { model: { layers, attention }, dtype: (first?.element ?? 'f32') as 'f32' }
}

/** The formats of pages: those of the caller, else those that follow from the pasts, if the graph quantises all of them. Pages have one format: the most accurate one. */
function formatsOf(
  { keyFormat, valueFormat }: OnnxCacheOptions,
  layers: readonly NativeOnnxLayer[] = [],
): Pick<ModelCacheOptions, 'keyFormat' | 'valueFormat'> {
  const bits = layers.filter(({ source }) => source === undefined).map(({ pastBits = 32 }) => pastBits)
  const most = Math.max(...bits)
  if (bits.length === 0 || most > 8) return {}
  const format = most > 4 ? 'q8' : 'q4'
  return { keyFormat: keyFormat ?? format, valueFormat: valueFormat ?? format }
}

function defaults(
  given: OnnxCacheOptions,
  maxStepTokens: number,
): Pick<ModelCacheOptions, 'memoryBytes' | 'maxSequences' | 'maxPrefillTokens'> {
  if (given.capacity !== undefined) return {}
  return { memoryBytes: MEMORY_BYTES, maxSequences: SEQUENCES, maxPrefillTokens: maxStepTokens }
}

/**
 * Reads the config that was passed, or the one next to the model, which is ignored if it is invalid. Missing values are taken from
 * `genai_config.json`. If both files next to the model declare a context, the shorter one counts.
 */
function readConfig(source: string | Uint8Array, config: unknown): Config {
  const beside = typeof source === 'string' ? configBeside(source) : undefined
  const genai = typeof source === 'string' ? genaiSizes(source) : {}
  const file = typeof config === 'string' ? config : config === undefined ? beside : undefined
  if (config === undefined && file === undefined) return genai
  try {
    const json = file === undefined ? JSON.stringify(config) : readText('config', file)
    const { numKvHeads = genai.numKvHeads, headDim = genai.headDim, contextLength } = configSizes(json)
    const context =
      config === undefined ? smallest([contextLength, genai.contextLength]) : (contextLength ?? genai.contextLength)
    const windows = configWindows(json, config !== undefined) ?? genai.windows
    return { numKvHeads, headDim, windows, contextLength: context }
  } catch (error) {
    if (config === undefined) return genai
    if (isKvTideError(error)) throw error
    throw invalid('config', config, 'a Hugging Face config.json')
  }
}

/** The size of the vocabulary, from the shape of the graph's logits. */
function vocabularyOf(graph: NativeOnnxGraph): number | undefined {
  const last =
    graph
      .outputs()
      .find(({ name }) => name === 'logits')
      ?.dims.at(-1) ?? ''
  return /^\d+$/.test(last) ? Number(last) : undefined
}

/** A fingerprint of the graph and of its embeddings: their nodes, the places and sizes of their weights, and some bytes of each. */
async function fingerprint(graph: NativeOnnxGraph, embeddings: Embeddings | undefined): Promise<string> {
  const hash = createHash('sha256')
  for (const part of [graph, ...(embeddings === undefined ? [] : [embeddings.graph])]) {
    hash.update(await part.model('weights')).update(JSON.stringify(part.externalFiles()))
    hash.update(await part.samples())
  }
  return hash.digest('hex')
}

/** The rows of positions that a graph takes. Refused if they have another form. */
function rowsOfPositions(graph: NativeOnnxGraph): 1 | 3 {
  const { dims = [] } = graph.inputs().find(({ name }) => name === 'position_ids') ?? {}
  if (dims.length < 3) return 1
  if (dims.length === 3 && dims[0] === '3') return 3
  const reason = `its dimensions are [${dims.join(', ')}], expected [batch, tokens], or [3, batch, tokens]`
  throw refusedPort('position_ids', 'input', reason)
}
