// Reports which backends run a model, and what would help if one does not. No session is made, so weights are not read: a runtime may still refuse the graph.
import type { KvTideError } from '../errors/errors.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { ModelCacheOptions } from '../sequences/options.js'
import { type BackendName, BACKENDS } from './backend.js'
import { checkEmbeddings } from './embedder.js'
import { readLoad } from './options.js'
import { checkElements } from './parts.js'
import { carriedOf } from './plain.js'
import { type CacheLayers, layersFor, prepared, type PreparedModel, refusing } from './prepared.js'
import { onnxLibrary, onnxRuntime } from './runtime.js'

/** @internal The answer for a backend: it runs the model, or this is the reason why not. */
export interface BackendReport {
  readonly backend: BackendName
  readonly refusal: KvTideError | undefined
}

/** @internal Reports for each backend whether it runs the model in a file. `config` is a config in place of the one beside the model. */
export async function backendReports(file: string, config?: string): Promise<BackendReport[]> {
  const { value: model, refusal } = await refusing(() => prepared(file, readLoad({ config })))
  const reports: BackendReport[] = []
  for (const backend of BACKENDS)
    reports.push({ backend, refusal: model === undefined ? refusal : await refusalBy(model, backend) })
  return reports
}

async function refusalBy(model: PreparedModel, backend: BackendName): Promise<KvTideError | undefined> {
  const { graph, embeddings, rewritten } = model
  const layers = await layersFor(model, backend)
  if (layers.value === undefined) return layers.refusal
  const { refusal } = await refusing(() => {
    if (backend === 'graph') return void onnxLibrary()
    const { module } = onnxRuntime()
    if (embeddings !== undefined) checkEmbeddings({ graph: embeddings.graph, names: embeddings.names })
    if (rewritten.value !== undefined && backend === 'parts') return checkElements(rewritten.value)
    using cache = smallCache(layers.value)
    carriedOf(graph, cache, module, embeddings?.names)
  })
  return refusal
}

function smallCache(layers: CacheLayers): PagedKvCache {
  return new PagedKvCache({ capacity: 1, blockSize: 1, ...layers } as ModelCacheOptions)
}
