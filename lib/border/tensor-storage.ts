import type { NativeView } from '#binding'

import { binding } from '../loading/binding.js'
import { PendingView } from './cache-handle.js'
import { known, type Names } from './check.js'
import { dtypeOfCode, dtypeRow, room, type DType, type TensorData } from './dtype.js'
import { KvTideError } from './errors.js'
import { HostArray, meta } from './host-array.js'
import type { AsyncOptions } from './async-options.js'
import { StopSignal } from './stop-signal.js'

const OPTIONS: Names<AsyncOptions> = { signal: 0 }

/**
 * Where the elements of a tensor are: in a native view, in a cache's buffer of which no view was made yet, or in an array that a call
 * answered with. The last two become a native view when a call needs one.
 */
export class TensorStorage {
  /** Which tensor of a pending view it is: the only one, or K (0) and V (1). */
  readonly #tensor: number
  #view: NativeView | undefined
  #host: HostArray | undefined
  #pending: PendingView | undefined
  #shape: readonly number[] | undefined
  #dtype: DType | undefined
  #data: TensorData | undefined

  constructor(source: NativeView | HostArray | PendingView, tensor = 0) {
    this.#tensor = tensor
    if (source instanceof PendingView) {
      this.#pending = source
      source.hold()
    } else if (source instanceof HostArray) this.#host = source
    else this.#view = source
  }

  /** What stands for it in a call. */
  get argument(): NativeView | HostArray | TensorStorage {
    return this.#view ?? this.#host ?? this
  }

  /** Writes the description of a pending view to `into` from `at` on. Returns what crosses to the addon. */
  describe(into: Float64Array, at: number): object {
    // A getter of another argument may have made the view meanwhile.
    if (this.#pending === undefined) return this.view
    return this.#pending.describe(this.#tensor, into, at)
  }

  /** The array, while its elements are not yet in native memory. */
  get #array(): TensorData | undefined {
    return this.#host?.array as TensorData | undefined
  }

  /** The native view. */
  get view(): NativeView {
    if (this.#view !== undefined) return this.#view
    if (this.#host !== undefined) this.#view = binding.tensorFromHost(this.#host.describe(meta, 0), meta, 'cpu')
    else if (this.#pending !== undefined) this.#view = this.#pending.make(this.#tensor)
    else throw new KvTideError('DISPOSED', 'the Tensor was disposed of', { object: 'Tensor' })
    this.#host = undefined
    this.#release()
    return this.#view
  }

  /** A copy of the elements, row-major. */
  toArray(): TensorData {
    const array = this.#array
    if (array !== undefined) return room(array.byteLength, () => array.slice())
    const out = dtypeRow(this.dtype).make(this.length)
    this.view.readInto(out)
    return out
  }

  /** Copies the elements into an array of their kind and number. */
  readInto(out: TensorData): void {
    const array = this.#array
    if (array === undefined) this.view.readInto(out)
    else out.set(array)
  }

  /** A copy of the elements, made off the main thread; as 32-bit floats if they are to be. */
  async readLater(asFloats: boolean, options: unknown): Promise<TensorData> {
    const { signal } = known<AsyncOptions>('options', options, OPTIONS)
    const row = dtypeRow(asFloats ? 'f32' : this.dtype)
    return StopSignal.guard(signal, async stop => {
      const bytes = await this.view.readLater(asFloats, stop?.native)
      stop?.check()
      return row.over(bytes.buffer, bytes.byteOffset, bytes.byteLength / row.bytes)
    })
  }

  get shape(): readonly number[] {
    if (this.#host !== undefined) return (this.#shape ??= Object.freeze([...this.#host.dims]))
    const { view } = this
    return (this.#shape ??= Object.freeze(view.shape()))
  }

  get dtype(): DType {
    if (this.#host !== undefined) return (this.#dtype ??= dtypeOfCode(this.#host.dtype))
    const { view } = this
    return (this.#dtype ??= view.dtype() as DType)
  }

  /** Number of elements. */
  get length(): number {
    return this.shape.reduce((product, size) => product * size, 1)
  }

  /** The elements where they lie. */
  get data(): TensorData {
    const { view } = this
    if (this.#data !== undefined) {
      view.check()
      return this.#data
    }
    const row = dtypeRow(this.dtype)
    const bytes = room(this.length * row.bytes, () => view.data())
    this.#data = row.over(bytes.buffer, bytes.byteOffset, bytes.byteLength / row.bytes)
    return this.#data
  }

  dispose(): void {
    this.#view?.dispose()
    this.#view = undefined
    this.#host = undefined
    this.#release()
    this.#shape = undefined
    this.#dtype = undefined
    this.#data = undefined
  }

  #release(): void {
    this.#pending?.release()
    this.#pending = undefined
  }
}
