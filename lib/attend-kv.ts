import type { NativeModelCache, NativePagedKvCache } from '#binding'

import { count, fields, integers } from './check.js'
import { invalid } from './errors.js'
import { ModelCache } from './model-cache.js'
import type { ModelEngine } from './model-engine.js'
import type { ModelSequence } from './model-sequence.js'
import { nativeArgument, nativeOf } from './owner.js'
import { readIds, type SequenceList } from './paged-batch.js'
import type { PagedEngine, SequencesEngine } from './paged-engine.js'
import { PagedKvCache } from './paged-kv-cache.js'
import { readTensor, type TensorArgument, type TokenSource } from './host-tensor.js'

/**
 * Keys and values of sequences of one length, `[batch, kvHeads, n, headDim]` each: what a cache shows, or memory of your own.
 * The head dimension of the values may be another.
 */
export interface BatchedKv {
  /** The keys. */
  readonly k: TokenSource
  /** The values. */
  readonly v: TokenSource
  /** Only where sequences lie one behind the other. */
  readonly kvOffsets?: undefined
}

/** Keys and values of sequences of any lengths, one behind the other: `[tokens, kvHeads, headDim]` each. */
export interface RaggedKv {
  /** The keys. */
  readonly k: TokenSource
  /** The values. */
  readonly v: TokenSource
  /** Where the tokens of each sequence begin, and where the last ones end. */
  readonly kvOffsets: Int32Array | readonly number[]
}

/**
 * Pages of a paged cache, in one layer: `q` is `[tokens, heads, headDim]`. Slots that nobody wrote are read as zeros. Where
 * another sequence left its tokens in them, the first such read has to put zeros there, and is refused with `BUSY` while
 * `attendAsync` reads the cache.
 */
export interface PagedKv {
  /** The cache. */
  readonly cache: PagedKvCache
  /** The layer. */
  readonly layer: number
  /** The sequences, in the order of their queries. */
  readonly sequences: SequenceList
}

/** Pages of a model's cache in blocks, in one layer, as in {@link PagedKv}. The model's rules hold unless the call names others. */
export interface ModelPagedKv {
  /** The cache. */
  readonly cache: ModelCache
  /** The layer. */
  readonly layer: number
  /** The sequences, in the order of their queries. */
  readonly sequences: readonly (number | ModelSequence)[] | Float64Array
}

/**
 * Pages that a block table names: what an engine that keeps its own tables has at hand. Of a model's cache, in blocks, a table is of
 * the group that the layer belongs to, and the model's rules hold unless the call names others.
 */
export interface BlockTableKv {
  /** The cache. */
  readonly cache: PagedKvCache | ModelCache
  /** The layer. */
  readonly layer: number
  /** For each sequence a row of block indices, as many in each; behind a sequence's last block anything may stand, and -1 where blocks left the window of the cache. */
  readonly blockTables: Int32Array
  /** The tokens of each sequence. */
  readonly kvLengths: Int32Array
}

/** What attention reads. */
export type AttendKv = BatchedKv | RaggedKv | PagedKv | ModelPagedKv | BlockTableKv

/** @internal Keys and values that were read. */
export interface KvTensors {
  readonly k: TensorArgument
  readonly v: TensorArgument
  readonly offsets: Int32Array | undefined
}

/** @internal Pages that were read, of either kind of cache. */
export interface KvPages extends PageNames {
  readonly cache: NativePagedKvCache
}

/** @internal The same of a model's cache. */
export interface KvModelPages extends PageNames {
  readonly model: NativeModelCache
  /** Whether the model has learned logits, which a call has to bring. */
  readonly hasSinkLogits: boolean
}

/** Which pages. */
interface PageNames {
  readonly layer: number
  readonly sequences: Float64Array | undefined
  readonly tables: Int32Array | undefined
  readonly lengths: Int32Array | undefined
}

/** @internal Reads keys and values. */
export function readKv(kv: unknown): KvTensors | KvPages | KvModelPages {
  const given = fields<RaggedKv & PagedKv & BlockTableKv>('kv', kv)
  const { cache } = given
  if (cache !== undefined) return readPages(cache, given)
  const { k, v, kvOffsets } = given
  const offsets = kvOffsets === undefined ? undefined : integers('kvOffsets', kvOffsets)
  return { k: readTensor('k', k), v: readTensor('v', v), offsets }
}

/** The fields of a {@link PagedKv} or a {@link BlockTableKv}, not checked yet. */
type GivenPages = { readonly [Name in keyof (PagedKv & BlockTableKv)]?: unknown }

function readPages(cache: unknown, given: GivenPages): KvPages | KvModelPages {
  const model = nativeOf<ModelEngine>(cache, ModelCache)
  if (model !== undefined) return { model: model.native, hasSinkLogits: model.hasSinkLogits, ...readNames(model, given) }
  const engine = nativeArgument<PagedEngine>('cache', cache, PagedKvCache)
  return { cache: engine.native, ...readNames(engine, given) }
}

function readNames(engine: SequencesEngine, given: GivenPages): PageNames {
  const layer = count('layer', given.layer)
  const { sequences, blockTables, kvLengths } = given
  if (sequences !== undefined) {
    const ids = Float64Array.from(readIds(engine, 'sequences', sequences))
    return { layer, sequences: ids, tables: undefined, lengths: undefined }
  }
  if (blockTables === undefined) throw invalid('sequences', sequences, 'sequences, or blockTables and kvLengths')
  const tables = integers('blockTables', blockTables)
  return { layer, sequences: undefined, tables, lengths: integers('kvLengths', kvLengths) }
}
