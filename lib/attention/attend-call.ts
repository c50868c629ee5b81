import type { NativeAttendedView, NativeAttendRequest, NativeStop } from '#binding'

import type { Settings } from './attend-options.js'
import { binding } from '../loading/binding.js'
import { arrayKind, arrayLength, asBits, typedArray } from '../border/check.js'
import type { TensorData } from '../border/dtype.js'
import { invalid } from '../border/errors.js'
import { HostArray, META } from '../border/host-array.js'
import { put, readTensor, type TensorArgument } from '../border/host-tensor.js'
import { tensorOf, type Tensor } from '../border/tensor.js'

/** Where the numbers of a call begin: behind the descriptions of q, k, v and the mask. */
const AT = 4 * META

/** How many numbers a call has. Behind them the addon writes the answer's rank, dtype and sizes. */
const SHAPE = AT + 11

/** How K and V lie. */
const BATCHED = 0
const RAGGED = 1

/** The arrays that an output may go to, in the order of their numbers from 1 on. */
const KINDS = ['Float32Array', 'Uint16Array', 'Float16Array']

/** Keys and values in tensors. */
export interface KvTensors {
  readonly k: TensorArgument
  readonly v: TensorArgument
  readonly offsets: Int32Array | undefined
}

/** Keys and values of one layer of a cache, or of a step. The cache makes the call. */
export interface KvLayer {
  readonly layer: number
  /** Whether the model has learned a logit for each query head, which the call has to give. */
  readonly hasSinkLogits: boolean
  readonly sequences?: Float64Array
  readonly tables?: Int32Array
  readonly lengths?: Int32Array
  /** Where queries begin unless the call says so. */
  readonly queryOffsets?: Int32Array | undefined
  attend(q: object, call: Float64Array, out: object, lists: readonly unknown[] | undefined): unknown
  /** The same off the main thread, once the request is started. */
  request(q: object, call: Float64Array, lists: readonly unknown[] | undefined, stop: NativeStop | undefined): NativeAttendRequest
}

/** The descriptions and the numbers of one call. The addon reads them within the call, so one array serves all calls. */
export const numbers: Float64Array = new Float64Array(SHAPE + 6)

/** One call of attention: all of its arguments are read, and none of them is written down. */
export class AttendCall {
  readonly #q: TensorArgument
  readonly #kv: KvTensors | KvLayer
  readonly settings: Settings
  readonly #kind: number
  /** The caller's array for the output, as numbers or bits. */
  readonly out: object | undefined

  constructor(q: unknown, kv: KvTensors | KvLayer, settings: Settings, out: unknown) {
    if ('layer' in kv && kv.hasSinkLogits && settings.sinkLogits === undefined) {
      throw invalid('sinkLogits', undefined, 'those of the layer, one for each query head: the model has learned them')
    }
    this.#q = readTensor('q', q)
    this.#kv = kv
    this.settings = settings
    const array = out === undefined ? undefined : typedArray<TensorData>('out', out, KINDS)
    this.#kind = array === undefined ? 0 : 1 + KINDS.indexOf(arrayKind(array) as string)
    this.out = array !== undefined && this.#kind > 1 ? asBits(array) : array
  }

  /** Makes the call. */
  run(): unknown {
    const kv = this.#kv
    const [queries, lists] = this.#put()
    if ('layer' in kv) return kv.attend(queries, numbers, this.out as object, lists)
    return binding.attend(queries, put(kv.k, 1, numbers), put(kv.v, 2, numbers), numbers, this.out as object, lists)
  }

  /** Starts the call off the main thread. */
  start(stop: NativeStop | undefined): Promise<NativeAttendedView> {
    const kv = this.#kv
    const [queries, lists] = this.#put()
    if ('layer' in kv) return kv.request(queries, numbers, lists, stop).start()
    return binding.attendAsync(queries, put(kv.k, 1, numbers), put(kv.v, 2, numbers), numbers, lists, stop)
  }

  /** Writes the numbers down. Returns what crosses besides: q and the lists. */
  #put(): readonly [q: object, lists: readonly unknown[] | undefined] {
    const { settings, out } = this
    const kv = this.#kv
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
    const { sinkLogits, starts, positions, tree, treeOffsets, mask } = this.settings
    const kv = this.#kv
    const [offsets, pages]: readonly [Int32Array | undefined, Partial<KvLayer>] = 'layer' in kv ? [undefined, kv] : [kv.offsets, {}]
    const { sequences, tables, lengths } = pages
    const qOffsets = this.settings.qOffsets ?? pages.queryOffsets
    const some = offsets ?? sinkLogits ?? starts ?? positions ?? qOffsets ?? tree ?? treeOffsets ?? mask ?? sequences ?? tables
    if (some === undefined) return undefined
    return [offsets, sinkLogits, starts, positions, qOffsets, tree, treeOffsets, sequences, tables, lengths, mask && put(mask, 3, numbers)]
  }
}

/** The output that a call answered with: a view, or an array whose shape is behind the numbers of the call. */
export function outputOf(answer: unknown): Tensor {
  if (!ArrayBuffer.isView(answer)) return tensorOf(answer as never)
  const rank = numbers[SHAPE] as number
  const dims = Array.from({ length: rank }, (_, axis) => numbers[SHAPE + 2 + axis] as number)
  return tensorOf(new HostArray(answer, numbers[SHAPE + 1] as number, dims))
}
