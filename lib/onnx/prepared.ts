// A model before a backend is chosen: its graph, the graphs beside it, what its config declares, and the layers of a cache for each backend. No session is made.
import { basename } from 'node:path'

import type { NativeOnnxGraph, NativeOnnxLayer, NativeOnnxRewritten } from '#binding'

import { isKvTideError, type KvTideError } from '../errors/errors.js'
import type { ModelDescription, ModelLayer } from '../sequences/model-description.js'
import type { ModelCacheOptions } from '../sequences/options.js'
import type { BackendName } from './backend.js'
import { isSlid } from './carried.js'
import { type Declared, readDeclared } from './declared.js'
import { type Embeddings, openEmbeddings } from './embeddings.js'
import { type EncoderParts, encoderInput, encoderParts } from './encoder-parts.js'
import { openSource } from './graph-source.js'
import type { readLoad } from './options.js'
import { pastLayers, windowsOf } from './past-layers.js'
import { plainPorts } from './plain.js'
import { refusedPort } from './refused-node.js'

/** @internal The layers of a cache for a backend, and the dtype of appended tokens. */
export type CacheLayers = Pick<ModelCacheOptions, 'model' | 'dtype'>

/** @internal A model before a backend is chosen. */
export interface PreparedModel {
  readonly declared: Declared
  readonly graph: NativeOnnxGraph
  readonly embeddings: Embeddings | undefined
  readonly encoder: EncoderParts | undefined
  /** The graph for `graph` and `parts`, or the reason why there is none. */
  readonly rewritten: Refused<NativeOnnxRewritten>
  readonly positionRows: 1 | 3
}

/** @internal Opens a model, and rewrites its graph. */
export async function prepared(
  source: string | Uint8Array,
  read: Pick<ReturnType<typeof readLoad>, 'config' | 'accuracyLevel' | 'embeddings' | 'encoder' | 'crossCacheBytes'>,
): Promise<PreparedModel> {
  const declared = readDeclared(source, read.config)
  const graph = await openSource(source, read.accuracyLevel)
  const embeddings = await openEmbeddings(graph, read.embeddings)
  const encoder = await encoderParts(graph, read)
  const rewritten = await refusing(() => graph.rewrite(true, declared.windows, [...(embeddings?.names ?? [])]))
  return { declared, graph, embeddings, encoder, rewritten, positionRows: rowsOfPositions(graph) }
}

/** @internal The layers of a cache for a backend, or the reason why it does not run the model. */
export async function layersFor(
  { declared, graph, embeddings, encoder, rewritten }: PreparedModel,
  backend: BackendName,
): Promise<Refused<CacheLayers>> {
  if (backend !== 'plain' && rewritten.refusal !== undefined) return rewritten
  const encoded = encoderInput(graph)
  return refusing(async () => {
    if (backend !== 'plain' && encoded !== undefined && encoder === undefined)
      throw refusedPort(encoded, 'input', 'this form of a decoder is not known', 'encoder')
    if (backend === 'plain') await checkWindows(graph, declared, embeddings?.names)
    return layersOf(backend, graph, rewritten.value, declared, embeddings?.names)
  })
}

/** @internal A result, or the error of its refusal. */
export type Refused<T> =
  | { readonly value: T; readonly refusal?: undefined }
  | { readonly value?: undefined; readonly refusal: KvTideError }

/** @internal The result of a call, or its refusal. */
export async function refusing<T>(call: () => T | Promise<T>): Promise<Refused<T>> {
  try {
    return { value: await call() }
  } catch (error) {
    if (!isKvTideError(error)) throw error
    return { refusal: error }
  }
}

/** Refuses an unmodified graph that lacks a window of its config: it would see tokens that the other backends hide. */
async function checkWindows(
  graph: NativeOnnxGraph,
  { windows, windowsFile }: Declared,
  given: readonly string[] = [],
): Promise<void> {
  if (windows === undefined || windows.every(window => window === null)) return
  const { value: own } = await refusing(() => graph.rewrite(false, undefined, [...given]))
  const ports = plainPorts(graph, given)
  const ofLayers = ports.states.length === 0 ? windows : (windowsOf(ports, windows) ?? [])
  const layers = own?.layers() ?? []
  // A config with another number of layers is that of another model.
  const kind = ofLayers.length === layers.length ? 'added-window' : 'windows'
  for (const [place, layer] of layers.entries()) {
    const declared = ofLayers[place] ?? null
    const [key] = ports.layers[place] ?? []
    if (declared === null || layer.window !== undefined || key === undefined || isSlid(key)) continue
    const number = ports.numbers[place] as number
    const config = windowsFile === undefined ? 'the config' : basename(windowsFile)
    const reason = `${config} declares a window of ${declared} for layer ${number}, which the graph itself does not have`
    throw refusedPort(key.past, 'input', reason, kind)
  }
}

/** The cache's layers, and the dtype of appended tokens. An unmodified graph computes its own windows, whatever a config declares. */
function layersOf(
  backend: BackendName,
  graph: NativeOnnxGraph,
  rewritten: NativeOnnxRewritten | undefined,
  declared: Declared,
  given?: readonly string[],
): CacheLayers {
  if (backend === 'plain' || rewritten === undefined) {
    const all = rewritten?.layers()
    const found = all?.filter(({ source }) => source === undefined)
    // Layers without keys and values of their own are the last ones, and have no pasts.
    const windows =
      declared.windows?.length === all?.length ? declared.windows?.slice(0, found?.length) : declared.windows
    const ports = plainPorts(graph, given)
    const layers = pastLayers(ports, { ...declared, windows, found })
    const isHalf = ports.layers.some(([key]) => key.input.type === 'float16')
    return { model: { layers }, dtype: isHalf ? 'f16' : 'f32' }
  }
  return rewrittenLayers(rewritten)
}

/** The layers of a rewritten graph: keys and values, states, or both. */
function rewrittenLayers(rewritten: NativeOnnxRewritten): CacheLayers {
  const [found, states] = [rewritten.layers(), rewritten.states()]
  const attentions = new Map(found.map(layer => [layer.layer, layer]))
  const count = 1 + Math.max(...[...found, ...states].map(({ layer }) => layer))
  const layers = Array.from({ length: count }, (_, layer): ModelDescription['layers'][number] => {
    const own = states.filter(state => state.layer === layer)
    const tensors = own.map(({ name, shape, element }) => ({ name, shape, dtype: element as 'f32' }))
    const attention = attentions.get(layer)
    if (attention === undefined) return { kind: 'state', tensors }
    return tensors.length === 0 ? attentionLayer(attention) : { ...attentionLayer(attention), tensors }
  })
  const [first] = found
  if (first === undefined) return { model: { layers }, dtype: 'f32' }
  const attention = { numQueryHeads: first.numHeads, sinkLogits: found.some(layer => layer.sinks !== undefined) }
  return { model: { layers, attention }, dtype: first.element as 'f32' }
}

function attentionLayer({ window, numKvHeads, headDim, valueHeadDim, source }: NativeOnnxLayer): ModelLayer {
  const sizes = { numKvHeads, headDim, valueHeadDim }
  if (source !== undefined) return { kind: 'shared', with: source, ...sizes }
  return window === undefined ? { kind: 'full', ...sizes } : { kind: 'sliding', window, ...sizes }
}

/** The rows of positions that a graph takes. Refused if they have another form. */
function rowsOfPositions(graph: NativeOnnxGraph): 1 | 3 {
  const { dims = [] } = graph.inputs().find(({ name }) => name === 'position_ids') ?? {}
  if (dims.length < 3) return 1
  if (dims.length === 3 && dims[0] === '3') return 3
  const reason = `its dimensions are [${dims.join(', ')}], expected [batch, tokens], or [3, batch, tokens]`
  throw refusedPort('position_ids', 'input', reason, 'form')
}
