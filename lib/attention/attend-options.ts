import { count, flag, float, floats, integers, known, type Names, optional } from '../border/check.js'
import { invalid } from '../border/errors.js'
import type { AsyncOptions } from '../border/async-options.js'
import { HostArray } from '../border/host-array.js'
import { readTensor, type TensorArgument, type TokenSource } from '../border/host-tensor.js'

const OPTIONS: Names<AttendOptions & AsyncOptions> = { scale: 0, causal: 0, window: 0, sinks: 0, sinkLogits: 0, softcap: 0, mask: 0, tree: 0, treeOffsets: 0, starts: 0, positions: 0, qOffsets: 0, returnLse: 0, threads: 0, signal: 0 }

/** How queries see keys. Every field has a default. */
export interface AttendOptions {
  /** Scores are multiplied by this; `1 / sqrt(headDim)` unless said otherwise. */
  readonly scale?: number
  /** Whether a query sees only keys up to its own position; true unless said otherwise. */
  readonly causal?: boolean
  /**
   * How many positions a query sees back, its own among them. Unless given, it is the window of the cache that is read, or all
   * positions. A query that would see what a cache's window has dropped is refused. Copies, as `toArray()` makes them, have no window.
   * Where tokens were drafted with `parents` and the call has a `mask` but no `tree`, the mask alone decides what is seen.
   */
  readonly window?: number
  /** Positions at the start that `window` does not hide. The window of a cache brings the cache's own sinks. Not together with `starts`. */
  readonly sinks?: number
  /** For each query head a learned number that takes part in the softmax without a value: finite, or -Infinity for a head without one. */
  readonly sinkLogits?: Float32Array | readonly number[]
  /** Bends scores to `softcap * tanh(score / softcap)`. */
  readonly softcap?: number
  /** Added to the scores: f32, of a shape that broadcasts to `[batch, query heads, n, keys]`. */
  readonly mask?: TokenSource
  /**
   * Draft trees, as the parent of each node: an earlier node, or -1 for the last key before the tree. The nodes are the queries, and
   * the last keys of each sequence. Give one tree for all sequences, or one for each, in the order of their queries. A node sees
   * itself, its ancestors, and all keys before the tree. Its position follows from its depth.
   *
   * Without `tree` and `mask`, sequences of paged caches and steps bring the trees of their open transactions.
   */
  readonly tree?: Int32Array | readonly number[]
  /**
   * Where the tree of each sequence begins in `tree`, and where the last one ends. The nodes of a tree are the last keys of its
   * sequence. There may be fewer queries than nodes, which are then the last nodes, or more, which then begin before the tree.
   */
  readonly treeOffsets?: Int32Array | readonly number[]
  /** For each row of the batch, the first slot that it may see: slots before are padding. */
  readonly starts?: Int32Array | readonly number[]
  /** The position of each query, of one sequence for all alike, or of all sequences. Unless given, the queries are the last tokens. */
  readonly positions?: Int32Array | readonly number[]
  /** Where the queries of each sequence begin in `[tokens, heads, headDim]`, and where the last ones end. Unless given, each sequence has one query. */
  readonly qOffsets?: Int32Array | readonly number[]
  /** Returns the logarithm of each row's sum of exponentials (`lse`) too, for {@link mergeAttention}. */
  readonly returnLse?: boolean
  /** The most threads to use; {@link threads} unless said otherwise. */
  readonly threads?: number
}

/** @internal Options that were read. What was left out has the value that the addon takes for it. */
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

/** @internal Reads options, each once. */
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
