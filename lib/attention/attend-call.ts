import type { NativeAttendedView, NativeAttendRequest, NativeStop } from '#binding'

import type { KvPages, KvTensors } from './attend-kv.js'
import type { Settings } from './attend-options.js'
import { binding } from '../loading/binding.js'
import { arrayKind, arrayLength, asBits, typedArray } from '../border/check.js'
import type { TensorData } from '../border/dtype.js'
import { invalid } from '../border/errors.js'
import { HostArgument, META, put, readTensor, type TensorArgument } from '../border/host-tensor.js'
import { tensorOf, type Tensor } from '../border/tensor.js'

/** Where the numbers of a call begin: behind the descriptions of q, k, v and the mask. */
const AT = 4 * META

/** How many numbers a call has; behind them the addon says the answer's rank, dtype and sizes. */
const SHAPE = AT + 11

/** How K and V lie. */
const BATCHED = 0
const RAGGED = 1

/** The arrays that an output may go to, in the order of their numbers from 1 on. */
const KINDS = ['Float32Array', 'Uint16Array', 'Float16Array']

/** What a call reads. */
type Kv = KvTensors | KvPages | KvLayer

/** Keys and values that a step has, in one layer. */
export interface KvLayer {
  readonly layer: number
  readonly offsets: undefined
  /** Makes the call: as `attend` of the addon, whose keys and values are known. */
  attend(q: object, call: Float64Array, out: object | undefined, lists: readonly unknown[] | undefined): unknown
  /** The same in the background, once it is started. */
  request(q: object, call: Float64Array, lists: readonly unknown[] | undefined, stop: NativeStop | undefined): NativeAttendRequest
}

/** The descriptions and the numbers of one call. They are read within a call, so that one array is enough. */
export const numbers: Float64Array = new Float64Array(SHAPE + 6)

/** One call of attention, all of its arguments read and none of them written down. */
export class AttendCall {
  readonly #q: TensorArgument
  readonly #kv: Kv
  readonly settings: Settings
  readonly #kind: number
  /** The caller's array for the output, as numbers or bits. */
  readonly out: object | undefined

  constructor(q: unknown, kv: Kv, settings: Settings, out: unknown) {
    if ('engine' in kv && kv.engine.hasSinkLogits) checkSinkLogits(settings)
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
    if ('attend' in kv) return kv.attend(queries, numbers, this.out, lists)
    if ('engine' in kv) return binding.attendPages(queries, kv.engine.native, numbers, this.out as object, lists)
    return binding.attend(queries, put(kv.k, 1, numbers), put(kv.v, 2, numbers), numbers, this.out as object, lists)
  }

  /** Starts the call in the background. */
  start(stop: NativeStop | undefined): Promise<NativeAttendedView> {
    const kv = this.#kv
    const [queries, lists] = this.#put()
    if ('attend' in kv) return kv.request(queries, numbers, lists, stop).start()
    if ('engine' in kv) return binding.attendPagesRequest(queries, kv.engine.native, numbers, lists, stop).start()
    return binding.attendAsync(queries, put(kv.k, 1, numbers), put(kv.v, 2, numbers), numbers, lists, stop)
  }

  /** Writes the numbers down, and answers what crosses besides: q and the lists. */
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

  /** The arrays that a call seldom has; nothing when there is none. */
  #lists(): readonly unknown[] | undefined {
    const { sinkLogits, starts, positions, tree, treeOffsets, mask } = this.settings
    const kv = this.#kv
    const qOffsets = this.settings.qOffsets ?? ('engine' in kv ? kv.queryOffsets : undefined)
    const [offsets, sequences, tables, lengths] =
      'tables' in kv ? [undefined, kv.sequences, kv.tables, kv.lengths] : [kv.offsets]
    const some = offsets ?? sinkLogits ?? starts ?? positions ?? qOffsets ?? tree ?? treeOffsets ?? mask ?? sequences ?? tables
    if (some === undefined) return undefined
    return [offsets, sinkLogits, starts, positions, qOffsets, tree, treeOffsets, sequences, tables, lengths, mask && put(mask, 3, numbers)]
  }
}

/** Refuses a call without the logits that a model has learned. */
export function checkSinkLogits({ sinkLogits }: Settings): void {
  if (sinkLogits === undefined) throw invalid('sinkLogits', undefined, 'those of the layer, one for each query head: the model has learned them')
}

/** The output that a call has answered: an array whose shape it has written down, or a view. */
export function outputOf(answer: unknown): Tensor {
  if (!ArrayBuffer.isView(answer)) return tensorOf(answer as never)
  const rank = numbers[SHAPE] as number
  const dims = Array.from({ length: rank }, (_, axis) => numbers[SHAPE + 2 + axis] as number)
  return tensorOf(new HostArgument(answer, numbers[SHAPE + 1] as number, dims))
}
