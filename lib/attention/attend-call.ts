// One call of attention: reads all arguments, writes them as numbers into one array that all calls share, and calls the addon. The keys and values are
// tensors, or pages of a cache or of a step. A call allocates little besides its result.
import type { NativeAttendedView, NativeAttendRequest, NativeStop } from '#binding'

import {
  arrayKind,
  arrayLength,
  asBits,
  count,
  flag,
  float,
  floats,
  integers,
  known,
  type Names,
  optional,
  typedArray,
} from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { type Float16ArrayLike, HostArray, META, type TensorData } from '../border/host-array.js'
import { type AsyncOptions, StopSignal } from '../border/stop-signal.js'
import { put, readTensor, type Tensor, type TensorArgument, tensorOf, type TokenSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'

const OPTIONS: Names<AttendOptions & AsyncOptions> = {
  scale: 0,
  causal: 0,
  window: 0,
  sinks: 0,
  sinkLogits: 0,
  alibiSlopes: 0,
  softcap: 0,
  mask: 0,
  tree: 0,
  treeOffsets: 0,
  starts: 0,
  positions: 0,
  qOffsets: 0,
  returnLse: 0,
  threads: 0,
  signal: 0,
}

/** Options of attention: which keys a query sees, and how scores are computed. All fields are optional. */
export interface AttendOptions {
  /** Scores are multiplied by this; `1 / sqrt(headDim)` by default. */
  readonly scale?: number
  /** True if a query sees only keys up to its own position; true by default. */
  readonly causal?: boolean
  /**
   * The number of positions that a query sees, counting back from its own and including it. The default is the window of the cache, or
   * all positions. A query is refused if it would see tokens that a cache's window has dropped. Copies made by `toArray()` have no window.
   * If tokens were drafted with `parents` and the call has a `mask` but no `tree`, the mask alone decides which keys are seen.
   */
  readonly window?: number
  /** Positions at the start that `window` does not hide. If the window comes from the cache, so do the sinks. Not together with `starts`. */
  readonly sinks?: number
  /** One learned number for each query head that takes part in the softmax without a value: finite, or -Infinity for a head without a sink logit. */
  readonly sinkLogits?: Float32Array | readonly number[]
  /**
   * ALiBi: a slope for each query head. `slope * (key position - query position)` is added to the scores. Nodes of a draft tree have the
   * positions that follow from their depths, so a `mask` over a tree needs `tree` as well.
   */
  readonly alibiSlopes?: Float32Array | readonly number[]
  /** Limits scores to `softcap * tanh(score / softcap)`. */
  readonly softcap?: number
  /** Added to the scores: f32, of a shape that broadcasts to `[batch, query heads, n, keys]`. */
  readonly mask?: TokenSource
  /**
   * Draft trees, as the parent of each node: an earlier node, or -1 for the last key before the tree. The nodes are the queries, and
   * the last keys of each sequence. Give one tree for all sequences, or one for each, in the order of their queries. A node sees
   * itself, its ancestors, and all keys before the tree. Its position follows from its depth.
   *
   * Without `tree` and `mask`, sequences of paged caches and steps use the trees of their open transactions.
   */
  readonly tree?: Int32Array | readonly number[]
  /**
   * The start of each sequence's tree in `tree`, and the end of the last one. The nodes of a tree are the last keys of its sequence.
   * If there are fewer queries than nodes, the queries are the last nodes. If there are more, the first queries come before the tree.
   */
  readonly treeOffsets?: Int32Array | readonly number[]
  /** The first slot that each row of the batch may see. Slots before it are padding. */
  readonly starts?: Int32Array | readonly number[]
  /** The position of each query: one list that all sequences use, or the lists of all sequences. By default the queries are the last tokens. */
  readonly positions?: Int32Array | readonly number[]
  /** The start of each sequence's queries in `[tokens, heads, headDim]`, and the end of the last ones. By default each sequence has one query. */
  readonly qOffsets?: Int32Array | readonly number[]
  /** Also returns the logarithm of each row's sum of exponentials (`lse`), for {@link mergeAttention}. */
  readonly returnLse?: boolean
  /** The maximum number of threads; {@link threads} by default. */
  readonly threads?: number
}

/** Options of a call that also returns `lse`. */
export type WithLse<Options> = Options & { readonly returnLse: true }

/** Arrays that can receive an output: 32-bit floats, half floats, or the bits of half floats. */
export type AttendOut = Float32Array | Uint16Array | Float16ArrayLike

/** The result of attention. */
export interface Attended<Out = Tensor> {
  /** The output, in the dtype and shape of the queries and the head dimension of the values: a tensor, or the array that was given. */
  readonly out: Out
  /** With `returnLse`, the natural logarithm of each row's sum of exponentials, `[tokens, query heads]`; -Infinity for a row that saw no key. */
  readonly lse?: Float32Array
}

/** The result of attention with `returnLse`. */
export interface AttendedWithLse<Out = Tensor> extends Attended<Out> {
  readonly lse: Float32Array
}

/** Options after they were checked. An omitted option has the value that stands for it in the addon. */
interface Settings {
  readonly scale: number
  readonly causal: boolean
  readonly window: number
  readonly sinks: number
  readonly softcap: number
  readonly threads: number
  readonly returnLse: boolean
  readonly sinkLogits: Float32Array | undefined
  readonly alibiSlopes: Float32Array | undefined
  readonly starts: Int32Array | undefined
  readonly positions: Int32Array | undefined
  readonly qOffsets: Int32Array | undefined
  readonly tree: Int32Array | undefined
  readonly treeOffsets: Int32Array | undefined
  readonly mask: TensorArgument | undefined
  /** Not checked yet: only asynchronous calls have one. */
  readonly signal: unknown
}

function readSettings(options: unknown): Settings {
  const given = known<AttendOptions & AsyncOptions>('options', options, OPTIONS)
  const {
    scale,
    causal,
    window,
    sinks,
    sinkLogits,
    alibiSlopes,
    softcap,
    mask,
    tree,
    treeOffsets,
    starts,
    positions,
    qOffsets,
    returnLse,
    threads,
    signal,
  } = given
  return {
    scale: optional(float, 'scale', scale) ?? NaN,
    causal: optional(flag, 'causal', causal) ?? true,
    window: optional(atLeastOne, 'window', window) ?? 0,
    sinks: optional(count, 'sinks', sinks) ?? 0,
    softcap: optional(positive, 'softcap', softcap) ?? 0,
    threads: optional(atLeastOne, 'threads', threads) ?? 0,
    returnLse: optional(flag, 'returnLse', returnLse) ?? false,
    sinkLogits: optional(logits, 'sinkLogits', sinkLogits),
    alibiSlopes: optional(slopes, 'alibiSlopes', alibiSlopes),
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
const positive = (argument: string, value: unknown): number =>
  float(argument, value, number => number > 0, 'a finite number over 0')

const logit = (argument: string, value: unknown): number =>
  value === -Infinity
    ? value
    : float(argument, value, undefined, 'a finite number, or -Infinity for a head without a sink logit')
const logits = (argument: string, value: unknown): Float32Array => floats(argument, value, logit)
const slope = (argument: string, value: unknown): number => float(argument, value)
const slopes = (argument: string, value: unknown): Float32Array => floats(argument, value, slope)

function readMask(argument: string, value: unknown): TensorArgument {
  const mask = readTensor(argument, value)
  if (mask instanceof HostArray && mask.range !== undefined)
    throw invalid('mask.range', mask.range, 'no range: a mask is always read whole')
  return mask
}

/** The place of a call's first number: behind the descriptions of q, k, v and the mask. */
const AT = 4 * META

/** The place behind the numbers of a call. The addon writes the answer's rank, dtype and sizes there. */
const SHAPE = AT + 11

/** The layouts of K and V. */
const BATCHED = 0
const RAGGED = 1

/** The arrays that can receive an output, in the order of their numbers, which begin at 1. */
const KINDS = ['Float32Array', 'Uint16Array', 'Float16Array']

/** @internal Keys and values in tensors. */
export interface KvTensors {
  readonly k: TensorArgument
  readonly v: TensorArgument
  readonly offsets: Int32Array | undefined
}

/** @internal A layer of a cache. */
export interface CacheLayer {
  readonly layer: number
  /** True if the model has learned sink logits, which the call then has to give. */
  readonly hasSinkLogits: boolean
}

/** @internal Keys and values of one layer of a cache or of a step. The cache makes the call. */
export interface KvLayer extends CacheLayer {
  readonly sequences?: Float64Array
  readonly tables?: Int32Array
  readonly lengths?: Int32Array
  /** The start of each sequence's queries, unless the call gives it. */
  readonly queryOffsets?: Int32Array | undefined
  attend(q: object, call: Float64Array, out: object, lists: readonly unknown[] | undefined): unknown
  /** As `attend`, off the main thread, once the request is started. */
  request(
    q: object,
    call: Float64Array,
    lists: readonly unknown[] | undefined,
    stop: NativeStop | undefined,
  ): NativeAttendRequest
}

/** @internal The descriptions and the numbers of one call. The addon reads them during the call, so all calls share one array. */
export const numbers: Float64Array = new Float64Array(SHAPE + 6)

/** @internal One call of attention. Its constructor reads all arguments and writes none to the shared array. */
export class AttendCall<Read extends KvTensors | CacheLayer = KvTensors | KvLayer> {
  readonly #q: TensorArgument
  readonly #kv: Read
  readonly #settings: Settings
  readonly #given: AttendOut | undefined
  /** The caller's array for the output, as numbers or bits. Its kind is in `#kind`. */
  readonly #out: object | undefined
  readonly #kind: number

  constructor(q: unknown, kv: Read, options: unknown, out: AttendOut | undefined) {
    this.#settings = readSettings(options)
    if ('layer' in kv && kv.hasSinkLogits && this.#settings.sinkLogits === undefined) {
      throw invalid(
        'sinkLogits',
        undefined,
        'the sink logits that the model has learned for the layer, one for each query head',
      )
    }
    this.#q = readTensor('q', q)
    this.#kv = kv
    this.#given = out
    const array = out === undefined ? undefined : typedArray<TensorData>('out', out, KINDS)
    this.#kind = array === undefined ? 0 : 1 + KINDS.indexOf(arrayKind(array) as string)
    this.#out = array !== undefined && this.#kind > 1 ? asBits(array) : array
  }

  /** Calls the addon with the arguments besides keys and values: q, the numbers and the lists. */
  cross<T>(call: (q: object, numbers: Float64Array, lists: readonly unknown[] | undefined) => T): T {
    const [queries, lists] = this.#put()
    return call(queries, numbers, lists)
  }

  run(this: AttendCall): Attended<Tensor | AttendOut> {
    const kv = this.#kv
    const [queries, lists] = this.#put()
    const out = this.#out as object
    const answer =
      'layer' in kv
        ? kv.attend(queries, numbers, out, lists)
        : binding.attend(queries, put(kv.k, 1, numbers), put(kv.v, 2, numbers), numbers, out, lists)
    if (!this.#settings.returnLse) return { out: this.#given ?? outputOf(answer) }
    const found = answer as { readonly out: unknown; readonly lse: Float32Array }
    return { out: this.#given ?? outputOf(found.out), lse: found.lse }
  }

  async runLater(this: AttendCall): Promise<Attended<Tensor | AttendOut>> {
    const out = this.#given
    return StopSignal.guard(this.#settings.signal, async stop => {
      const found = await this.#start(stop?.native)
      stop?.check()
      const view = tensorOf(found.out)
      const lse = found.lse === undefined ? {} : { lse: found.lse }
      if (out === undefined) return { out: view, ...lse }
      // Reading an output from a GPU's memory blocks, so it is read off the main thread.
      if (view.device === 'cpu') view.readInto(out)
      else await view.readIntoAsync(out)
      view.dispose()
      return { out, ...lse }
    })
  }

  #start(this: AttendCall, stop: NativeStop | undefined): Promise<NativeAttendedView> {
    const kv = this.#kv
    const [queries, lists] = this.#put()
    if ('layer' in kv) return kv.request(queries, numbers, lists, stop).start()
    return binding.attendAsync(queries, put(kv.k, 1, numbers), put(kv.v, 2, numbers), numbers, lists, stop)
  }

  /** Writes the numbers into the shared array. Returns the other arguments: q and the lists. */
  #put(): readonly [q: object, lists: readonly unknown[] | undefined] {
    const [settings, kv, out] = [this.#settings, this.#kv, this.#out]
    numbers[AT] = settings.scale
    numbers[AT + 1] = settings.causal ? 1 : 0
    numbers[AT + 2] = settings.window
    numbers[AT + 3] = settings.sinks
    numbers[AT + 4] = settings.softcap
    numbers[AT + 5] = settings.threads
    numbers[AT + 6] = 'offsets' in kv && kv.offsets !== undefined ? RAGGED : BATCHED
    numbers[AT + 7] = settings.returnLse ? 1 : 0
    numbers[AT + 8] = this.#kind
    numbers[AT + 9] = out === undefined ? 0 : arrayLength(out as Uint16Array)
    numbers[AT + 10] = 'layer' in kv ? kv.layer : 0
    return [put(this.#q, 0, numbers), this.#lists()]
  }

  /** The arrays that few calls have; `undefined` if there are none. */
  #lists(): readonly unknown[] | undefined {
    const { sinkLogits, alibiSlopes, starts, positions, tree, treeOffsets, mask } = this.#settings
    const kv = this.#kv
    const [offsets, pages]: readonly [Int32Array | undefined, Partial<KvLayer>] =
      'layer' in kv ? [undefined, kv] : [kv.offsets, {}]
    const { sequences, tables, lengths } = pages
    const qOffsets = this.#settings.qOffsets ?? pages.queryOffsets
    const some =
      offsets ??
      sinkLogits ??
      alibiSlopes ??
      starts ??
      positions ??
      qOffsets ??
      tree ??
      treeOffsets ??
      mask ??
      sequences ??
      tables
    if (some === undefined) return undefined
    return [
      offsets,
      sinkLogits,
      alibiSlopes,
      starts,
      positions,
      qOffsets,
      tree,
      treeOffsets,
      sequences,
      tables,
      lengths,
      mask && put(mask, 3, numbers),
    ]
  }
}

/** @internal The output of a call: a view, or an array whose shape stands behind the numbers of the call. */
export function outputOf(answer: unknown): Tensor {
  if (!ArrayBuffer.isView(answer)) return tensorOf(answer as never)
  const rank = numbers[SHAPE] as number
  const dims = Array.from({ length: rank }, (_, axis) => numbers[SHAPE + 2 + axis] as number)
  return tensorOf(new HostArray(answer, numbers[SHAPE + 1] as number, dims))
}
