// Loads a model with the first backend that works.
//
//     folder -> file, or bytes -> graph -> rewritten -> for each backend: its layers -> a cache of them -> the backend
//
// A backend that refuses the model leaves nothing behind, and the next one is tried. If all refuse, the first refusal is thrown. Wrong options are thrown at once.
import { createHash } from 'node:crypto'
import { basename, resolve } from 'node:path'

import type { NativeOnnxGraph, NativeOnnxLayer, NativeOnnxRewritten } from '#binding'

import { adviceOf, advised, inLength, invalid, type KvTideError } from '../errors/errors.js'
import { threads as allThreads } from '../border/process.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { ModelCacheOptions } from '../sequences/options.js'
import type { Backend, BackendForm, BackendName } from './backend.js'
import { smallest } from './context.js'
import type { CrossCache } from './cross-cache.js'
import type { EncoderBeside } from './crossings.js'
import type { Embeddings } from './embeddings.js'
import { crossCacheOf, hasEncoder } from './encoder-parts.js'
import { endOfSequence } from './end-of-sequence.js'
import { firstEncoding, type FirstSteps, firstSteps } from './first-steps.js'
import { GraphBackend } from './graph.js'
import type { LongRope } from './long-rope.js'
import { graphFile } from './model-folder.js'
import { type OnnxCacheOptions, readLoad, readModelSource, rotationOf } from './options.js'
import { layersFor, prepared, type PreparedModel, refusing } from './prepared.js'
import { isOfRuntime } from './runtime-refusal.js'
import { SessionBackend } from './session-backend.js'

/** The reason why a backend does not run a model. */
export interface BackendRefusal {
  readonly backend: BackendName
  readonly error: KvTideError
}

const SEQUENCES = 32
const MEMORY_BYTES = 2 ** 30

/** @internal Loads a model with the first backend that works. */
export async function loadModel(given: unknown, options: unknown) {
  const read = readLoad(options)
  const source = sourceOf(readModelSource('model', given), read)
  const { cache: cacheOptions, threads = allThreads(), backends, maxStepTokens } = read
  const model = await prepared(source, read)
  const { declared, graph, embeddings, encoder: parts, rewritten, positionRows } = model
  const refusals: BackendRefusal[] = []
  const namespace = await fingerprint(graph, embeddings)
  const tables = [graph.contextLength(), rewritten.value?.contextLength()]
  const contextLength = smallest([declared.contextLength, ...tables.map(rows => rows ?? undefined)])
  for (const backend of backends) {
    const layers = await layersFor(model, backend)
    if (layers.value === undefined) {
      refusals.push({ backend, error: layers.refusal })
      continue
    }
    const cache = new PagedKvCache({
      ...defaults(cacheOptions, maxStepTokens),
      namespace,
      ...cacheOptions,
      ...formatsOf(cacheOptions, backend === 'plain' ? [] : rewritten.value?.layers()),
      ...layers.value,
    } as ModelCacheOptions)
    const cross = parts === undefined ? undefined : crossCacheOf(cache, parts.facts, backend, read.crossCacheBytes)
    const beside = parts === undefined || cross === undefined ? undefined : { cross, encoder: parts.graph }
    const form = { threads, embeddings, positionRows }
    const steps = { layers: layers.value, pages: cache, stepTokens: maxStepTokens, contextLength }
    const made = await refusing(() => opened(backend, model, cache, { form, beside, steps }))
    if (made.value !== undefined) {
      if (backend === 'plain') warnOfPlain(graph, namespace, refusals[0])
      const limits = { stepTokens: maxStepTokens, sequences: cacheOptions.maxSequences ?? SEQUENCES }
      const vocabulary = rewritten.value?.inspect().vocabulary ?? vocabularyOf(graph)
      const rope = ropeOf(backend, rewritten.value)
      const encoded = parts === undefined ? undefined : { ...parts, cross: cross as CrossCache }
      const path = typeof source === 'string' ? resolve(source) : undefined
      const ends = endOfSequence(path, read.config, vocabulary)
      const facts = { path, ends, vocabulary, contextLength, width: embeddings?.width }
      return { cache, backend: made.value, refusals, limits, rope, encoded, ...facts }
    }
    cache.dispose()
    refusals.push({ backend, error: made.refusal as KvTideError })
  }
  const last = refusals.at(-1) as BackendRefusal
  // The first refusal says what a faster backend lacks, the last one what keeps the graph from running at all. More forms of decoders with an encoder run on `plain`.
  throw (hasEncoder(graph) || isOfRuntime(last.error) ? last : (refusals[0] as BackendRefusal)).error
}

/** The tables of rotary factors. On `plain` the graph itself adds the offset to the positions of long sequences. */
function ropeOf(backend: BackendName, rewritten: NativeOnnxRewritten | undefined): LongRope | undefined {
  const rope = rewritten?.longRope() ?? undefined
  return rope === undefined || backend !== 'plain' ? rope : { ...rope, offset: 0 }
}

/** The path of the graph, or its bytes. */
function sourceOf(
  model: string | Uint8Array,
  { dtype }: Pick<ReturnType<typeof readLoad>, 'dtype'>,
): string | Uint8Array {
  if (typeof model === 'string') return graphFile(model, dtype)
  if (dtype !== undefined) throw invalid('dtype', dtype, 'no value: the model is given as bytes')
  return model
}

/** The graphs whose warning was given. */
const warned = new Set<string>()

/** The advice for a decoder with an encoder: other exporters make the same form. */
const NO_OTHER = "pass backend: 'plain' to load it without this warning"

/** Warns once for each graph that it runs on the slow backend, unless that one was asked for. */
function warnOfPlain(graph: NativeOnnxGraph, namespace: string, refusal: BackendRefusal | undefined): void {
  if (refusal === undefined || warned.has(namespace)) return
  warned.add(namespace)
  const name = graph.path === null ? 'a model' : basename(graph.path)
  const slow = `${name} runs on the slow backend plain, one sequence after the other`
  const advice = adviceOf(refusal.error)
  const isEncoded = hasEncoder(graph)
  const text =
    advice === undefined
      ? inLength(`${slow}: ${refusal.error.message}`)
      : advised(`${slow}: ${advice.place}`, isEncoded ? NO_OTHER : advice.help)
  process.emitWarning(text, { type: 'KvTideWarning', code: 'KVTIDE_PLAIN' })
}

/** Opens a backend, and computes its first steps. */
async function opened(
  backend: BackendName,
  { graph, rewritten, encoder }: PreparedModel,
  cache: PagedKvCache,
  {
    form,
    beside,
    steps,
  }: { readonly form: BackendForm; readonly beside: EncoderBeside | undefined; readonly steps: FirstSteps },
): Promise<Backend> {
  if (backend === 'plain') {
    const plain = await SessionBackend.plain(graph, cache, form, beside)
    return encoder === undefined ? firstSteps(plain, steps) : plain
  }
  const way = backend === 'graph' ? GraphBackend.of : SessionBackend.parts
  const made = await way(graph, rewritten.value as NativeOnnxRewritten, form, beside)
  if (encoder === undefined) return firstSteps(made, steps)
  const first = firstEncoding(encoder.facts)
  if (first !== undefined) await firstSteps(made, { ...steps, encoding: first })
  beside?.cross.reset()
  return made
}

/** The formats of pages: those of the caller, else those that follow from the pasts, if the graph quantises all of them. Pages have one format: the most accurate one. */
function formatsOf(
  given: OnnxCacheOptions,
  layers: readonly NativeOnnxLayer[] = [],
): Pick<ModelCacheOptions, 'keyFormat' | 'valueFormat' | 'valueHadamard'> {
  const bits = layers.filter(({ source }) => source === undefined).map(({ pastBits = 32 }) => pastBits)
  const most = Math.max(...bits)
  if (bits.length === 0 || most > 8) return rotationOf(given)
  const format = most > 4 ? 'q8' : 'q4'
  const formats = { keyFormat: given.keyFormat ?? format, valueFormat: given.valueFormat ?? format }
  return { ...formats, ...rotationOf({ ...given, ...formats }) }
}

function defaults(
  given: OnnxCacheOptions,
  maxStepTokens: number,
): Pick<ModelCacheOptions, 'memoryBytes' | 'maxSequences' | 'maxPrefillTokens'> {
  if (given.capacity !== undefined) return {}
  return { memoryBytes: MEMORY_BYTES, maxSequences: SEQUENCES, maxPrefillTokens: maxStepTokens }
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
