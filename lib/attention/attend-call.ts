import type { NativeAttendedView, NativeAttendRequest, NativeStop } from '#binding'

import { arrayKind, arrayLength, asBits, count, flag, float, floats, integers, known, type Names, optional, typedArray } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { type Float16ArrayLike, HostArray, META, type TensorData } from '../border/host-array.js'
import { type AsyncOptions, StopSignal } from '../border/stop-signal.js'
import { put, readTensor, type Tensor, type TensorArgument, tensorOf, type TokenSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'

const OPTIONS: Names<AttendOptions & AsyncOptions> = { scale: 0, causal: 0, window: 0, sinks: 0, sinkLogits: 0, softcap: 0, mask: 0, tree: 0, treeOffsets: 0, starts: 0, positions: 0, qOffsets: 0, returnLse: 0, threads: 0, signal: 0 }

/** How queries see keys. Every field has a default. */
export interface AttendOptions {
  /** Scores are multiplied by this; `1 / sqrt(headDim)` by default. */
  readonly scale?: number
  /** Whether a query sees only keys up to its own position; true by default. */
  readonly causal?: boolean
  /**
   * How many positions a query sees back, its own among them. By default it is the window of the cache that is read, or all
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
  /** The position of each query, of one sequence for all alike, or of all sequences. By default the queries are the last tokens. */
  readonly positions?: Int32Array | readonly number[]
  /** Where the queries of each sequence begin in `[tokens, heads, headDim]`, and where the last ones end. By default each sequence has one query. */
  readonly qOffsets?: Int32Array | readonly number[]
  /** Returns the logarithm of each row's sum of exponentials (`lse`) too, for {@link mergeAttention}. */
  readonly returnLse?: boolean
  /** The most threads to use; {@link threads} by default. */
  readonly threads?: number
}

/** Options of a call that returns sums too. */
export type WithLse<Options> = Options & { readonly returnLse: true }

/** Arrays that an output may be written to: 32-bit floats, half floats, or the bits of half floats. */
export type AttendOut = Float32Array | Uint16Array | Float16ArrayLike

/** The result of attention. */
export interface Attended<Out = Tensor> {
  /** The output, in the queries' dtype and shape, with the values' head dimension: a tensor, or the array that was given. */
  readonly out: Out
  /** With `returnLse`, the natural logarithm of each row's sum of exponentials, `[tokens, query heads]`; -Infinity for a row that saw nothing. */
  readonly lse?: Float32Array
}

/** The result of attention with `returnLse`. */
export interface AttendedWithLse<Out = Tensor> extends Attended<Out> {
  readonly lse: Float32Array
}

/** Options that were read. What was left out has the value that the addon takes for it. */
interface Settings {
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

function readSettings(options: unknown): Settings {
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

/** Where the numbers of a call begin: behind the descriptions of q, k, v and the mask. */
const AT = 4 * META

/** How many numbers a call has. Behind them the addon writes the answer's rank, dtype and sizes. */
const SHAPE = AT + 11

/** How K and V lie. */
const BATCHED = 0
const RAGGED = 1

/** The arrays that an output may go to, in the order of their numbers from 1 on. */
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
  /** Whether the model has learned a logit for each query head, which the call has to give. */
  readonly hasSinkLogits: boolean
}

/** @internal Keys and values of one layer of a cache, or of a step. The cache makes the call. */
export interface KvLayer extends CacheLayer {
  readonly sequences?: Float64Array
  readonly tables?: Int32Array
  readonly lengths?: Int32Array
  /** Where queries begin unless the call says so. */
  readonly queryOffsets?: Int32Array | undefined
  attend(q: object, call: Float64Array, out: object, lists: readonly unknown[] | undefined): unknown
  /** The same off the main thread, once the request is started. */
  request(q: object, call: Float64Array, lists: readonly unknown[] | undefined, stop: NativeStop | undefined): NativeAttendRequest
}

/** @internal The descriptions and the numbers of one call. The addon reads them within the call, so one array serves all calls. */
export const numbers: Float64Array = new Float64Array(SHAPE + 6)

/** @internal One call of attention: all of its arguments are read, and none of them is written down. */
export class AttendCall<Read extends KvTensors | CacheLayer = KvTensors | KvLayer> {
  readonly #q: TensorArgument
  readonly #kv: Read
  readonly #settings: Settings
  readonly #given: AttendOut | undefined
  /** The caller's array for the output, as numbers or bits, and its kind. */
  readonly #out: object | undefined
  readonly #kind: number

  constructor(q: unknown, kv: Read, options: unknown, out: AttendOut | undefined) {
    this.#settings = readSettings(options)
    if ('layer' in kv && kv.hasSinkLogits && this.#settings.sinkLogits === undefined) {
      throw invalid('sinkLogits', undefined, 'those of the layer, one for each query head: the model has learned them')
    }
    this.#q = readTensor('q', q)
    this.#kv = kv
    this.#given = out
    const array = out === undefined ? undefined : typedArray<TensorData>('out', out, KINDS)
    this.#kind = array === undefined ? 0 : 1 + KINDS.indexOf(arrayKind(array) as string)
    this.#out = array !== undefined && this.#kind > 1 ? asBits(array) : array
  }

  /** Makes a call of the addon, with what crosses beside keys and values: q, the numbers and the lists. */
  cross<T>(call: (q: object, numbers: Float64Array, lists: readonly unknown[] | undefined) => T): T {
    const [queries, lists] = this.#put()
    return call(queries, numbers, lists)
  }

  run(this: AttendCall): Attended<Tensor | AttendOut> {
    const kv = this.#kv
    const [queries, lists] = this.#put()
    const out = this.#out as object
    const answer = 'layer' in kv
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
      // An output in a GPU's memory is waited for off the main thread.
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

  /** Writes the numbers down. Returns what crosses beside them: q and the lists. */
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

  /** The arrays that few calls have; nothing when there is none. */
  #lists(): readonly unknown[] | undefined {
    const { sinkLogits, starts, positions, tree, treeOffsets, mask } = this.#settings
    const kv = this.#kv
    const [offsets, pages]: readonly [Int32Array | undefined, Partial<KvLayer>] = 'layer' in kv ? [undefined, kv] : [kv.offsets, {}]
    const { sequences, tables, lengths } = pages
    const qOffsets = this.#settings.qOffsets ?? pages.queryOffsets
    const some = offsets ?? sinkLogits ?? starts ?? positions ?? qOffsets ?? tree ?? treeOffsets ?? mask ?? sequences ?? tables
    if (some === undefined) return undefined
    return [offsets, sinkLogits, starts, positions, qOffsets, tree, treeOffsets, sequences, tables, lengths, mask && put(mask, 3, numbers)]
  }
}

/** @internal The output that a call answered with: a view, or an array whose shape is behind the numbers of the call. */
export function outputOf(answer: unknown): Tensor {
  if (!ArrayBuffer.isView(answer)) return tensorOf(answer as never)
  const rank = numbers[SHAPE] as number
  const dims = Array.from({ length: rank }, (_, axis) => numbers[SHAPE + 2 + axis] as number)
  return tensorOf(new HostArray(answer, numbers[SHAPE + 1] as number, dims))
}
