// The elements behind a tensor. A cache that returns a view writes a few numbers instead of making a native object, because an object with a finalizer costs
// V8 microseconds. A native view is made only when it is first read. A buffer is freed when neither its cache nor a tensor uses it.
import type { NativeBuffer, NativeView } from '#binding'

import { binding } from '../loading/binding.js'
import { known, type Names } from '../errors/check.js'
import { KvTideError } from '../errors/errors.js'
import { type DType, dtypeOfCode, dtypeRow, HostArray, meta, room, SHOWN, type TensorData } from './host-array.js'
import { type AsyncOptions, StopSignal } from './stop-signal.js'

/** The kinds of answers of the addon: a buffer to keep, a buffer for this result only, no buffer. Any other number means the buffer that was kept last. */
const KEEP = 1
const ONCE = 2
const NOTHING = 3

/**
 * A buffer that a cache returned. It is freed as soon as neither the cache uses it nor a tensor needs it. The garbage collector would
 * free it too, but late, when memory may already be short.
 */
class SharedBuffer {
  readonly native: NativeBuffer
  #users = 0

  constructor(native: NativeBuffer) {
    this.native = native
  }

  hold(): void {
    this.#users += 1
  }

  release(): void {
    this.#users -= 1
    if (this.#users === 0) this.native.dispose()
  }
}

/**
 * A contiguous cache's native object, and the buffer that it returned last. While the buffer stays the same, the cache answers with
 * numbers only: a native object with a finalizer for each answer would cost more than the answer.
 */
export class CacheHandle<N extends { dispose(): void; letGo(): boolean }> {
  readonly native: N
  #buffer: SharedBuffer | undefined

  constructor(native: N) {
    this.native = native
  }

  /** Runs a call that may replace the cache's buffer and returns no view. */
  change<R>(call: (native: N) => R): R {
    const answer = call(this.native)
    this.changed()
    return answer
  }

  /** Releases a buffer that the cache no longer has. */
  changed(): void {
    if (this.#buffer !== undefined && this.native.letGo()) this.#keep(undefined)
  }

  dispose(): void {
    this.native.dispose()
    this.#keep(undefined)
  }

  /** The view that the last call returned; `buffer` is the answer of that call. */
  view(buffer: NativeBuffer | null): PendingView {
    const kind = meta[SHOWN]
    if (kind === ONCE) {
      this.changed()
      return new PendingView(new SharedBuffer(buffer as NativeBuffer))
    }
    if (kind === KEEP && buffer !== null) this.#keep(new SharedBuffer(buffer))
    return new PendingView(this.#buffer as SharedBuffer)
  }

  /** As {@link view}; `null` if the call returned none. */
  viewOrNull(buffer: NativeBuffer | null): PendingView | null {
    return meta[SHOWN] === NOTHING ? null : this.view(buffer)
  }

  #keep(buffer: SharedBuffer | undefined): void {
    buffer?.hold()
    this.#buffer?.release()
    this.#buffer = buffer
  }
}

/** Views of a cache's buffer, kept as numbers. Native views are made when a view is first read. */
export class PendingView {
  readonly #buffer: SharedBuffer
  /** Two runs, the position behind the last token, the time of the call, and the window of the cache. */
  readonly #numbers: readonly (number | undefined)[]

  constructor(buffer: SharedBuffer) {
    this.#buffer = buffer
    // An array of a few numbers costs less than a typed array, and most of them are never read.
    const at = SHOWN + 1
    this.#numbers = [
      meta[at],
      meta[at + 1],
      meta[at + 2],
      meta[at + 3],
      meta[at + 4],
      meta[at + 5],
      meta[at + 6],
      meta[at + 7],
      meta[at + 8],
      meta[at + 9],
    ]
  }

  /** Makes the native view of one tensor of the buffer: its only one, or K (0) and V (1). */
  make(tensor: number): NativeView {
    return this.#buffer.native.view(tensor, Float64Array.from(this.#numbers as readonly number[]))
  }

  /** Writes the description of one tensor to `into`, starting at `at`. Returns the buffer, which crosses to the addon. */
  describe(tensor: number, into: Float64Array, at: number): object {
    into[at] = tensor
    for (let place = 0; place < this.#numbers.length; place++) into[at + 1 + place] = this.#numbers[place] as number
    return this.#buffer.native
  }

  hold(): void {
    this.#buffer.hold()
  }

  release(): void {
    this.#buffer.release()
  }
}

const OPTIONS: Names<AsyncOptions> = { signal: 0 }

/**
 * The elements of a tensor: in a native view, in a cache's buffer without a native view yet, or in an array that a call returned. The
 * last two become a native view when a call needs one.
 */
export class TensorStorage {
  /** The tensor of a pending view: the only one, or K (0) or V (1). */
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

  /** The object that represents this tensor in a call. */
  get argument(): NativeView | HostArray | TensorStorage {
    return this.#view ?? this.#host ?? this
  }

  /** Writes the description of a pending view to `into`, starting at `at`. Returns the object that crosses to the addon. */
  describe(into: Float64Array, at: number): object {
    // A getter of another argument may have made the native view meanwhile.
    if (this.#pending === undefined) return this.view
    return this.#pending.describe(this.#tensor, into, at)
  }

  /** The array, while its elements are not in native memory yet. */
  get #array(): TensorData | undefined {
    return this.#host?.array as TensorData | undefined
  }

  get view(): NativeView {
    if (this.#view !== undefined) return this.#view
    if (this.#host !== undefined) this.#view = binding.tensorFromHost(this.#host.describe(meta, 0), meta, 'cpu')
    else if (this.#pending !== undefined) this.#view = this.#pending.make(this.#tensor)
    else throw new KvTideError('DISPOSED', 'the Tensor was disposed of', { object: 'Tensor' })
    this.#host = undefined
    this.#release()
    return this.#view
  }

  /** Returns a copy of the elements, row-major. */
  toArray(): TensorData {
    const array = this.#array
    if (array !== undefined) return room(array.byteLength, () => array.slice())
    const out = dtypeRow(this.dtype).make(this.length)
    this.view.readInto(out)
    return out
  }

  /** Copies the elements into an array of the same kind and length. */
  readInto(out: TensorData): void {
    const array = this.#array
    if (array === undefined) this.view.readInto(out)
    else out.set(array)
  }

  /** Returns a copy of the elements, made off the main thread; as 32-bit floats with `asFloats`. */
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

  /** The number of elements. */
  get length(): number {
    return this.shape.reduce((product, size) => product * size, 1)
  }

  /** The elements in place, without a copy. */
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
