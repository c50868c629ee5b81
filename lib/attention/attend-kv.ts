// `attend.ts` and this file stand above the sequences, the other files of this folder below them: a step attends by itself.
import type { KvLayer, KvTensors } from './attend-call.js'
import { count, fields, integers, isArray } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { readTensor, type TokenSource } from '../border/host-tensor.js'
import { nativeArgument } from '../border/owner.js'
import { readIds, type SequenceList } from '../sequences/sequence-batch.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import { PagedKvCache } from '../sequences/paged-kv-cache.js'
import type { StepArrays } from '../sequences/step-batch.js'

/** Keys and values in tensors: what a cache shows, or memory of your own. */
interface TensorKv {
  /**
   * The keys: `[batch, kvHeads, n, headDim]` for sequences of one length, `[tokens, kvHeads, headDim]` for sequences of any
   * lengths, one behind the other.
   */
  readonly k: TokenSource
  /** The values, in the same order. Their head dimension may differ from that of the keys. */
  readonly v: TokenSource
  /** Where the tokens of each sequence begin, and where the last ones end. Given where sequences lie one behind the other. */
  readonly kvOffsets?: Int32Array | readonly number[] | undefined
}

/** The pages of one layer of a cache. */
interface LayerKv {
  /** The cache. */
  readonly cache: PagedKvCache
  /** The layer. */
  readonly layer: number
}

/** Pages of sequences of the cache. */
interface SequencesKv extends LayerKv {
  /** The sequences, in the order of their queries. */
  readonly sequences: SequenceList
}

/** Pages that block tables name. */
interface TablesKv extends LayerKv {
  /**
   * For each sequence a row of block indices; all rows have the same length. Entries behind a sequence's last block are not read.
   * -1 stands for a block that left the window of the cache.
   */
  readonly blockTables: Int32Array
  /** The tokens of each sequence. */
  readonly lengths: Int32Array
  /** Where the queries of each sequence begin, and where the last ones end. `qOffsets` of the call comes before it; without either, each sequence has one query. */
  readonly queryOffsets?: Int32Array
  /** The tables of each group of layers. Where they are given, those of the layer's group are read. */
  readonly groups?: readonly StepArrays[]
}

/**
 * What attention reads: tensors `{ k, v, kvOffsets? }`, or the pages of a layer, by sequences `{ cache, layer, sequences }` or by block
 * tables `{ cache, layer, blockTables, lengths }`. A {@link StepBatch} fits as it is: `{ cache, layer, ...batch }`.
 *
 * Over pages `q` is `[tokens, heads, headDim]`, and the rules of the cache's model hold unless the call names others. Slots that
 * nobody wrote are read as zeros. Where another sequence left its tokens in them, the first such read writes those zeros, and is
 * refused with `BUSY` while `attendAsync` reads the cache.
 */
export type AttendKv = TensorKv | SequencesKv | TablesKv

/** @internal Reads keys and values. */
export function readKv(kv: unknown): KvTensors | KvLayer {
  const given = fields<TensorKv & SequencesKv & TablesKv>('kv', kv)
  const { cache } = given
  if (cache !== undefined) return readPages(cache, given)
  const { k, v, kvOffsets } = given
  const offsets = kvOffsets === undefined ? undefined : integers('kvOffsets', kvOffsets)
  return { k: readTensor('k', k), v: readTensor('v', v), offsets }
}

/** What names pages, not checked yet. */
type GivenPages = { readonly [Name in keyof (SequencesKv & TablesKv)]?: unknown }

function readPages(cache: unknown, given: GivenPages): KvLayer {
  const shared = nativeArgument<SharedCache>('cache', cache, PagedKvCache)
  const layer = count('layer', given.layer)
  const pages: KvLayer = {
    layer,
    hasSinkLogits: shared.hasSinkLogits,
    attend: (q, call, out, lists) => shared.native.attendPages(q, call, out, lists),
    request: (q, call, lists, stop) => shared.native.attendPagesRequest(q, call, lists, stop),
  }
  const { sequences, groups } = given
  if (sequences !== undefined) return { ...pages, sequences: Float64Array.from(readIds(shared, 'sequences', sequences)) }
  const { blockTables, lengths, queryOffsets } = groups === undefined ? given : tablesOf(shared, layer, groups)
  if (blockTables === undefined) throw invalid('sequences', sequences, 'sequences, or blockTables and lengths')
  return {
    ...pages,
    tables: integers('blockTables', blockTables),
    lengths: integers('lengths', lengths),
    queryOffsets: queryOffsets === undefined ? undefined : integers('queryOffsets', queryOffsets),
  }
}

/** The tables of a layer's group. */
function tablesOf(shared: SharedCache, layer: number, groups: unknown): GivenPages {
  const group = shared.groupOf(layer)
  if (!isArray(groups) || group >= groups.length) throw invalid('groups', groups, 'an array of tables, one for each group of layers')
  return fields<StepArrays>(`groups[${group}]`, groups[group])
}
