import { count, fields, integers, isArray } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { readTensor, type TensorArgument, type TokenSource } from '../border/host-tensor.js'
import { nativeArgument } from '../border/owner.js'
import { readIds, type SequenceList } from '../sequences/batch.js'
import type { Engine } from '../sequences/engine.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'
import type { StepArrays } from '../sequences/step-batch.js'

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
 * Pages of a paged cache, in one layer: `q` is `[tokens, heads, headDim]`. Of a model, its rules hold unless the call names others. Slots that nobody wrote are read as zeros. Where
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

/**
 * Pages that block tables name: what an engine that keeps its own tables has at hand, or a {@link StepBatch} as it is:
 * `{ cache, layer, ...batch }`. A table is of the group that the layer belongs to.
 */
export interface BlockTableKv {
  /** The cache. */
  readonly cache: PagedKvCache
  /** The layer. */
  readonly layer: number
  /** For each sequence a row of block indices, as many in each; behind a sequence's last block anything may stand, and -1 where blocks left the window of the cache. */
  readonly blockTables: Int32Array
  /** The tokens of each sequence. */
  readonly lengths: Int32Array
  /** Where the queries of each sequence begin, and where the last ones end, unless `qOffsets` says so; left out, each has one. */
  readonly queryOffsets?: Int32Array
  /** Tables of each group of layers: those of the layer's group are taken instead. */
  readonly groups?: readonly StepArrays[]
}

/** What attention reads. */
export type AttendKv = BatchedKv | RaggedKv | PagedKv | BlockTableKv

/** @internal Keys and values that were read. */
export interface KvTensors {
  readonly k: TensorArgument
  readonly v: TensorArgument
  readonly offsets: Int32Array | undefined
}

/** @internal Pages that were read. */
export interface KvPages {
  readonly engine: Engine
  readonly layer: number
  readonly sequences: Float64Array | undefined
  readonly tables: Int32Array | undefined
  readonly lengths: Int32Array | undefined
  /** Where queries begin unless the call says so. */
  readonly queryOffsets: Int32Array | undefined
}

/** @internal Reads keys and values. */
export function readKv(kv: unknown): KvTensors | KvPages {
  const given = fields<RaggedKv & PagedKv & BlockTableKv>('kv', kv)
  const { cache } = given
  if (cache !== undefined) return readPages(cache, given)
  const { k, v, kvOffsets } = given
  const offsets = kvOffsets === undefined ? undefined : integers('kvOffsets', kvOffsets)
  return { k: readTensor('k', k), v: readTensor('v', v), offsets }
}

/** The fields of a {@link PagedKv} or a {@link BlockTableKv}, not checked yet. */
type GivenPages = { readonly [Name in keyof (PagedKv & BlockTableKv)]?: unknown }

function readPages(cache: unknown, given: GivenPages): KvPages {
  const engine = nativeArgument<Engine>('cache', cache, PagedKvCache)
  const layer = count('layer', given.layer)
  const none = { engine, layer, sequences: undefined, tables: undefined, lengths: undefined, queryOffsets: undefined }
  const { sequences, groups } = given
  if (sequences !== undefined) return { ...none, sequences: Float64Array.from(readIds(engine, 'sequences', sequences)) }
  const { blockTables, lengths, queryOffsets } = groups === undefined ? given : tablesOf(engine, layer, groups)
  if (blockTables === undefined) throw invalid('sequences', sequences, 'sequences, or blockTables and lengths')
  return {
    ...none,
    tables: integers('blockTables', blockTables),
    lengths: integers('lengths', lengths),
    queryOffsets: queryOffsets === undefined ? undefined : integers('queryOffsets', queryOffsets),
  }
}

/** The tables of a layer's group. */
function tablesOf(engine: Engine, layer: number, groups: unknown): GivenPages {
  const group = engine.groupOf(layer)
  if (!isArray(groups) || group >= groups.length) throw invalid('groups', groups, 'an array of tables, one for each group of layers')
  return fields<StepArrays>(`groups[${group}]`, groups[group])
}
