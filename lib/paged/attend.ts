// Attention from queries to keys and values in place: in a cache, in pages, or in the caller's memory. Nothing is gathered, and no score matrix is made.
import { count, fields, integers, isArray } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { nativeArgument } from '../border/owner.js'
import type { AsyncOptions } from '../border/stop-signal.js'
import { readTensor, type DTypeOfSource, type Tensor, type TokenSource } from '../border/tensor.js'
import { PagedKvCache } from './paged-kv-cache.js'
import { readIds, type SequenceList } from '../sequences/sequence-batch.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import type { StepArrays } from '../sequences/step-batch.js'
import {
  AttendCall,
  type Attended,
  type AttendedWithLse,
  type AttendOptions,
  type AttendOut,
  type WithLse,
  type KvLayer,
  type KvTensors,
} from '../attention/attend-call.js'

/** Keys and values in tensors: views of a cache, or memory of your own. */
interface TensorKv {
  /**
   * The keys: `[batch, kvHeads, n, headDim]` for sequences of one length, `[tokens, kvHeads, headDim]` for concatenated sequences of any
   * lengths.
   */
  readonly k: TokenSource
  /** The values, in the same order. Their head dimension may differ from that of the keys. */
  readonly v: TokenSource
  /** The start of each sequence's tokens, and the end of the last ones. Required for concatenated sequences. */
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

/** Pages given by block tables. */
interface TablesKv extends LayerKv {
  /**
   * One row of block indices for each sequence; all rows have the same length. Entries behind a sequence's last block are not read.
   * -1 stands for a block that has left the window of the cache.
   */
  readonly blockTables: Int32Array
  /** The number of tokens of each sequence. */
  readonly lengths: Int32Array
  /** The start of each sequence's queries, and the end of the last ones. `qOffsets` of the call takes precedence; without either, each sequence has one query. */
  readonly queryOffsets?: Int32Array
  /** The tables of each group of layers. If given, those of the layer's group are read. */
  readonly groups?: readonly StepArrays[]
}

/**
 * The keys and values that attention reads: tensors `{ k, v, kvOffsets? }`, or the pages of a layer, given by sequences
 * `{ cache, layer, sequences }` or by block tables `{ cache, layer, blockTables, lengths }`. Pass a {@link StepBatch} as it is:
 * `{ cache, layer, ...batch }`.
 *
 * Over pages, `q` is `[tokens, heads, headDim]`, and the rules of the cache's model apply unless the call overrides them. Slots that
 * were never written are read as zeros. If such a slot still holds tokens of another sequence, the first read overwrites them with
 * zeros; that read is refused with `BUSY` while `attendAsync` reads the cache.
 */
export type AttendKv = TensorKv | SequencesKv | TablesKv

function readKv(kv: unknown): KvTensors | KvLayer {
  const given = fields<TensorKv & SequencesKv & TablesKv>('kv', kv)
  const { cache } = given
  if (cache !== undefined) return readPages(cache, given)
  const { k, v, kvOffsets } = given
  const offsets = kvOffsets === undefined ? undefined : integers('kvOffsets', kvOffsets)
  return { k: readTensor('k', k), v: readTensor('v', v), offsets }
}

/** Arguments that describe pages, not checked yet. */
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
  if (sequences !== undefined)
    return { ...pages, sequences: Float64Array.from(readIds(shared, 'sequences', sequences)) }
  const { blockTables, lengths, queryOffsets } = groups === undefined ? given : tablesOf(shared, layer, groups)
  if (blockTables === undefined) throw invalid('sequences', sequences, 'sequences, or blockTables and lengths')
  return {
    ...pages,
    tables: integers('blockTables', blockTables),
    lengths: integers('lengths', lengths),
    queryOffsets: queryOffsets === undefined ? undefined : integers('queryOffsets', queryOffsets),
  }
}

function tablesOf(shared: SharedCache, layer: number, groups: unknown): GivenPages {
  const group = shared.groupOf(layer)
  if (!isArray(groups) || group >= groups.length)
    throw invalid('groups', groups, 'an array of tables, one for each group of layers')
  return fields<StepArrays>(`groups[${group}]`, groups[group])
}

/**
 * Computes attention from `q` to keys and values in place: in a cache, in a window with its sinks, or in memory of your own.
 * Nothing is gathered, and no score matrix is made.
 *
 * `q` is `[batch, heads, n, headDim]`, or `[tokens, heads, headDim]` for concatenated sequences (`kvOffsets`) and for pages (`cache`).
 * Query heads that share a head of K and V are neighbours. The queries are the last tokens unless `positions` is given. The output of
 * a query that sees no key is zeros.
 * `out` may be an array to fill, of the queries' dtype and the output's length; it is returned as `out`.
 *
 * @example
 * ```ts
 * import { attend, KvCache } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 })
 * const token = (...data: number[]) => ({ data: new Float32Array(data), shape: [1, 1, data.length / 2, 2] })
 * const kv = cache.update(token(1, 0, 0, 1), token(10, 20, 30, 40))
 * console.log(attend(token(0, 0), kv).out.toArray()) // Float32Array [20, 30]
 * const { out, lse } = attend(token(0, 0), kv, { window: 1, returnLse: true }, new Float32Array(2))
 * console.log(out) // Float32Array [30, 40]
 * console.log(lse) // Float32Array [0]
 * ```
 */
export function attend<Q extends TokenSource>(
  q: Q,
  kv: AttendKv,
  options: WithLse<AttendOptions>,
): AttendedWithLse<Tensor<DTypeOfSource<Q>>>
export function attend<T extends AttendOut>(
  q: TokenSource,
  kv: AttendKv,
  options: WithLse<AttendOptions>,
  out: T,
): AttendedWithLse<T>
export function attend<Q extends TokenSource>(
  q: Q,
  kv: AttendKv,
  options?: AttendOptions,
): Attended<Tensor<DTypeOfSource<Q>>>
export function attend<T extends AttendOut>(
  q: TokenSource,
  kv: AttendKv,
  options: AttendOptions | undefined,
  out: T,
): Attended<T>
export function attend(
  q: TokenSource,
  kv: AttendKv,
  options: AttendOptions = {},
  out?: AttendOut,
): Attended<Tensor | AttendOut> {
  return new AttendCall(q, readKv(kv), options, out).run()
}

/**
 * As {@link attend}, off the main thread.
 *
 * Typed arrays are copied before the call returns. Caches are read in place: until the promise is settled, calls that would change
 * them throw `BUSY`, and reads still work. A cache may be disposed of meanwhile; its memory is freed when the work ends. `out` is
 * written at the end; do not detach its buffer before then.
 *
 * A wrong argument or an already aborted signal is refused before anything is copied or started. A later abort ends the work at its
 * next step: the promise is rejected with `ABORTED`, and the caches can be changed again.
 *
 * @example
 * ```ts
 * import { attendAsync, KvCache } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 })
 * const token = (...data: number[]) => ({ data: new Float32Array(data), shape: [1, 1, data.length / 2, 2] })
 * const kv = cache.update(token(1, 0, 0, 1), token(10, 20, 30, 40))
 * const { out } = await attendAsync(token(0, 0), kv, { signal: AbortSignal.timeout(60_000) })
 * console.log(out.toArray()) // Float32Array [20, 30]
 * ```
 */
export function attendAsync<Q extends TokenSource>(
  q: Q,
  kv: AttendKv,
  options: WithLse<AttendOptions & AsyncOptions>,
): Promise<AttendedWithLse<Tensor<DTypeOfSource<Q>>>>
export function attendAsync<T extends AttendOut>(
  q: TokenSource,
  kv: AttendKv,
  options: WithLse<AttendOptions & AsyncOptions>,
  out: T,
): Promise<AttendedWithLse<T>>
export function attendAsync<Q extends TokenSource>(
  q: Q,
  kv: AttendKv,
  options?: AttendOptions & AsyncOptions,
): Promise<Attended<Tensor<DTypeOfSource<Q>>>>
export function attendAsync<T extends AttendOut>(
  q: TokenSource,
  kv: AttendKv,
  options: (AttendOptions & AsyncOptions) | undefined,
  out: T,
): Promise<Attended<T>>
export async function attendAsync(
  q: TokenSource,
  kv: AttendKv,
  options: AttendOptions & AsyncOptions = {},
  out?: AttendOut,
): Promise<Attended<Tensor | AttendOut>> {
  return new AttendCall(q, readKv(kv), options, out).runLater()
}
