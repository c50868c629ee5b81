import { count, flag, float, floats, integers, known, type Names, optional } from '../border/check.js'
import { invalid } from '../border/errors.js'
import type { AsyncOptions } from '../border/stop-signal.js'
import { HostArray } from '../border/host-array.js'
import { readTensor, type TensorArgument, type TokenSource } from '../border/host-tensor.js'

const OPTIONS: Names<AttendOptions & AsyncOptions> = { scale: 0, causal: 0, window: 0, sinks: 0, sinkLogits: 0, softcap: 0, mask: 0, tree: 0, treeOffsets: 0, starts: 0, positions: 0, qOffsets: 0, returnLse: 0, threads: 0, signal: 0 }

/** How queries see keys. Every field has a default. */
export interface AttendOptions {
  /** What products are multiplied with, `1 / sqrt(headDim)` unless said otherwise. */
  readonly scale?: number
  /** A query sees keys up to its own position; true unless said otherwise. */
  readonly causal?: boolean
  /**
   * A query sees so many positions back, its own among them: all unless said otherwise, over a cache with a window that one. A
   * query that would see what such a cache has let go of is refused. A copy of what a cache showed, as `toArray()` gives, is no
   * cache: it has no window. Where a draft was given parents and the call has a `mask`, but no `tree`, the mask alone says what is seen.
   */
  readonly window?: number
  /** Positions at the start that this window does not hide; with the window of a cache, its own. Not together with `starts`. */
  readonly sinks?: number
  /** One number for each query head that takes part in the softmax and has no value: finite, or -Infinity for a head that has none. */
  readonly sinkLogits?: Float32Array | readonly number[]
  /** Bends scores to `softcap * tanh(score / softcap)`. */
  readonly softcap?: number
  /** f32 numbers that are added to the scores, of a shape that broadcasts to `[batch, query heads, n, keys]`. */
  readonly mask?: TokenSource
  /**
   * The parents of draft trees' nodes, which are the queries and the last keys of each sequence: one tree for all of them, or one
   * for each, one behind the other as their queries are. -1 follows the last key before the tree. A node sees itself, its ancestors
   * and what came before the tree; positions go by depth.
   *
   * Unless it or `mask` is given, sequences of paged caches and steps bring the trees of their open transactions along.
   */
  readonly tree?: Int32Array | readonly number[]
  /**
   * Where the tree of each sequence begins in `tree`, and where the last one ends. Its nodes are the last keys, and need not be as
   * many as the queries: those are the last nodes, or more tokens than the tree has.
   */
  readonly treeOffsets?: Int32Array | readonly number[]
  /** The first slot that each row of the batch may see: what lies before is padding. */
  readonly starts?: Int32Array | readonly number[]
  /** The position of each query, for every sequence alike or for all of them; unless given, the queries are the last tokens. */
  readonly positions?: Int32Array | readonly number[]
  /** Where the queries of each sequence begin in `[tokens, heads, headDim]`, and where the last ones end; unless given, each has one. */
  readonly qOffsets?: Int32Array | readonly number[]
  /** Answers the logarithm of each row's sum of exponentials as well, for {@link mergeAttention}. */
  readonly returnLse?: boolean
  /** The most threads to use, {@link threads} unless said otherwise. */
  readonly threads?: number
}

/** @internal Options that were read; what was left out is as the addon wants it. */
export interface Settings {
  readonly scale: number
  readonly causal: boolean
  readonly window: number
  readonly sinks: number
  readonly softcap: number
  readonly threads: number
  readonly returnLse: boolean
  readonly sinkLogits: Float32Array | undefined
  readonly starts: Int32Array | undefined
  readonly positions: Int32Array | undefined
  readonly qOffsets: Int32Array | undefined
  readonly tree: Int32Array | undefined
  readonly treeOffsets: Int32Array | undefined
  readonly mask: TensorArgument | undefined
  /** Not checked yet: calls that do not wait have none. */
  readonly signal: unknown
}

/** @internal Reads options, each of them once. */
export function readSettings(options: unknown): Settings {
  const given = known<AttendOptions & AsyncOptions>('options', options, OPTIONS)
  const { scale, causal, window, sinks, sinkLogits, softcap, mask, tree, treeOffsets, starts, positions, qOffsets, returnLse, threads, signal } = given
  return {
    scale: optional(float, 'scale', scale) ?? NaN,
    causal: optional(flag, 'causal', causal) ?? true,
    window: optional(atLeastOne, 'window', window) ?? 0,
    sinks: optional(count, 'sinks', sinks) ?? 0,
    softcap: optional(positive, 'softcap', softcap) ?? 0,
    threads: optional(atLeastOne, 'threads', threads) ?? 0,
    returnLse: optional(flag, 'returnLse', returnLse) ?? false,
    sinkLogits: optional(logits, 'sinkLogits', sinkLogits),
    starts: optional(integers, 'starts', starts),
    positions: optional(integers, 'positions', positions),
    qOffsets: optional(integers, 'qOffsets', qOffsets),
    tree: optional(integers, 'tree', tree),
    treeOffsets: optional(integers, 'treeOffsets', treeOffsets),
    mask: optional(readMask, 'mask', mask),
    signal,
  }
}

const atLeastOne = (argument: string, value: unknown): number => count(argument, value, 1)
const positive = (argument: string, value: unknown): number => float(argument, value, number => number > 0, 'a finite number over 0')

const logit = (argument: string, value: unknown): number =>
  value === -Infinity ? value : float(argument, value, undefined, 'a finite number, or -Infinity for a head that has none')
const logits = (argument: string, value: unknown): Float32Array => floats(argument, value, logit)

function readMask(argument: string, value: unknown): TensorArgument {
  const mask = readTensor(argument, value)
  if (mask instanceof HostArray && mask.range !== undefined) throw invalid('mask.range', mask.range, 'none: a mask is read whole')
  return mask
}
