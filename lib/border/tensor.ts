import { inspect, type InspectOptions } from 'node:util'

import type { NativeView } from '#binding'

import { binding } from '../loading/binding.js'
import type { PendingView } from './cache-handle.js'
import { arrayLength, asBits, count, known, type Names, optional, sizes, typedArray, whole } from './check.js'
import { readDevice } from './device.js'
import { checkDType, dtypeRow, type DType, type Float16ArrayLike, type TensorData } from './dtype.js'
import { invalid, isKvTideError } from './errors.js'
import { meta, readArray, type HostArray } from './host-array.js'
import { checkInternal, INTERNAL, nativeArgument, nativeOf, nativeThis, Owner } from './owner.js'
import type { AsyncOptions } from './async-options.js'
import { TensorStorage } from './tensor-storage.js'

const OPTIONS: Names<TensorOptions> = { dtype: 0, device: 0 }

/** What a tensor is made with besides its data and shape. */
export interface TensorOptions {
  /** The element type. A `Uint16Array` needs one, for other arrays it follows. */
  readonly dtype?: DType
  /** Where it lives, `'cpu'` unless said otherwise. */
  readonly device?: string
}

/**
 * Numbers with a shape, in native memory: a copy of an array of yours, or a view of a cache's own memory.
 *
 * A view copies nothing. When the cache later overwrites a slot that the view shows, reading the view throws `STALE_VIEW` instead
 * of returning wrong numbers. `toArray()` makes a copy to keep.
 *
 * @example
 * ```ts
 * import { Tensor } from 'kvtide'
 *
 * using tensor = Tensor.from(new Float32Array([1, 2, 3, 4, 5, 6]), [2, 3])
 * console.log(tensor.narrow(1, 1, 2).toArray()) // Float32Array [2, 3, 5, 6]
 * ```
 */
export class Tensor extends Owner {
  /** @internal */
  constructor(token: unknown, storage: unknown) {
    checkInternal(token, 'Tensor', 'Tensor.from(data, shape) instead')
    super(token, storage as TensorStorage, Tensor)
  }

  /**
   * Copies `data` into a new tensor.
   *
   * @param data the elements, row-major; half floats as bits in a `Uint16Array`, with a `dtype`
   * @param shape the sizes; their product has to be the length of `data`
   */
  static from(data: TensorData | Float16ArrayLike, shape: readonly number[], options: TensorOptions = {}): Tensor {
    const { dtype, device } = known<TensorOptions>('options', options, OPTIONS)
    const on = readDevice(device)
    const named = optional(checkDType, 'dtype', dtype)
    const read = readArray('data', data, sizes('shape', shape), named)
    return tensorOf(binding.tensorFromHost(read.describe(meta, 0), meta, on))
  }

  /** The sizes, one for each axis. */
  get shape(): readonly number[] {
    return own(this).shape
  }

  /** The element type. */
  get dtype(): DType {
    return own(this).dtype
  }

  /** Where it lives: `'cpu'`, `'cuda:0'`. */
  get device(): string {
    return own(this).view.device()
  }

  /** For each axis, how many elements lie from one index to the next. Within a run: see {@link keyPositions}. */
  get strides(): readonly number[] {
    return own(this).view.strides()
  }

  /** Number of elements. */
  get length(): number {
    return own(this).length
  }

  /** True when a slot that the view shows was overwritten since the view was made. Reading it then throws `STALE_VIEW`. */
  get isStale(): boolean {
    return own(this).view.isStale()
  }

  /** True when the elements lie in one piece, in order. */
  get isContiguous(): boolean {
    return own(this).view.isContiguous()
  }

  /**
   * For a view of a cache, the position of the first token of each run. That is one number, or two once tokens between the sinks
   * and the window were dropped.
   */
  get keyPositions(): readonly number[] {
    return own(this).view.keyPositions()
  }

  /**
   * The elements where they lie, without a copy; for f16 and bf16 their bits.
   *
   * The array is raw memory of the cache. It does not go stale: after the next change of the cache it may show other tokens, and
   * writing to it writes into the cache. Use {@link toArray} or {@link readInto} for a copy.
   *
   * @throws KvTideError `NOT_CONTIGUOUS` for two runs; `DEVICE_MISMATCH` in the memory of a GPU
   */
  get data(): TensorData {
    return own(this).data
  }

  /** The part from `start` to `start + length` along dimension `dim`, without a copy. */
  narrow(dim: number, start: number, length: number): Tensor {
    const { view } = own(this)
    const at = [count('dim', dim), whole('start', start), whole('length', length)] as const
    return tensorOf(view.narrow(...at))
  }

  /** The same elements in another shape: without a copy when they are contiguous, otherwise as a copy. */
  reshape(shape: readonly number[]): Tensor {
    const { view } = own(this)
    return tensorOf(view.reshape(Float64Array.from(sizes('shape', shape))))
  }

  /** A copy of the elements, row-major; for f16 and bf16 their bits. */
  toArray(): TensorData {
    return own(this).toArray()
  }

  /** A copy of the elements as 32-bit floats, whatever the dtype. */
  toFloat32Array(): Float32Array {
    const storage = own(this)
    if (storage.dtype === 'f32') return storage.toArray() as Float32Array
    const out = dtypeRow('f32').make(storage.length) as Float32Array
    storage.view.readFloatsInto(out)
    return out
  }

  /**
   * Copies the elements into an array of yours, row-major, and returns that array. The fastest way to read.
   *
   * @param out an array of the tensor's kind and length
   */
  readInto<T extends TensorData | Float16ArrayLike>(out: T): T {
    const storage = own(this)
    storage.readInto(roomIn(out, storage.dtype, storage.length))
    return out
  }

  /**
   * As {@link toArray}, off the main thread, which otherwise waits for a GPU. Until the promise is settled, changes of the cache that
   * the tensor shows throw `BUSY`. The tensor may be disposed of meanwhile.
   *
   * @throws KvTideError `ABORTED` when `signal` ended it
   */
  async toArrayAsync(options: AsyncOptions = {}): Promise<TensorData> {
    return own(this).readLater(false, options)
  }

  /** As {@link toFloat32Array}, off the main thread: see {@link toArrayAsync}. */
  async toFloat32ArrayAsync(options: AsyncOptions = {}): Promise<Float32Array> {
    return (await own(this).readLater(true, options)) as Float32Array
  }

  /** As {@link readInto}, off the main thread: see {@link toArrayAsync}. */
  async readIntoAsync<T extends TensorData | Float16ArrayLike>(out: T, options: AsyncOptions = {}): Promise<T> {
    const storage = own(this)
    const { dtype, length } = storage
    roomIn(out, dtype, length)
    const elements = await storage.readLater(false, options)
    // The caller's array may have lost its memory meanwhile.
    roomIn(out, dtype, length).set(elements)
    return out
  }

  /** True when shape, dtype and every bit agree. */
  equals(other: Tensor): boolean {
    const { view } = own(this)
    return view.equals(nativeArgument<TensorStorage>('other', other, Tensor).view)
  }
}

/** What `console.log` prints: at most six elements. The rest is not copied. */
function show(this: Tensor, _depth: number, options: InspectOptions): string {
  try {
    return `Tensor ${this.dtype} [${this.shape.join(', ')}] ${this.isStale ? '(stale)' : `[ ${head(this, options)} ]`}`
  } catch (error) {
    return `Tensor (${isKvTideError(error) ? error.code : 'unreadable'})`
  }
}

function head(tensor: Tensor, options: InspectOptions): string {
  let first = tensor
  if (tensor.length > 1024) {
    const last = tensor.shape.length - 1
    for (const [axis, size] of tensor.shape.entries()) first = first.narrow(axis, 0, axis === last ? Math.min(size, 6) : 1)
  }
  const values = Array.from(first.toFloat32Array().subarray(0, 6), value => inspect(value, options))
  const more = tensor.length - values.length
  return [...values, ...(more > 0 ? [`... ${more} more`] : [])].join(', ')
}

Object.defineProperty(Tensor.prototype, inspect.custom, { value: show, configurable: true, writable: true })

/** An array of the caller's that the elements of a tensor are copied to. */
function roomIn(out: unknown, dtype: DType, length: number): TensorData {
  const row = dtypeRow(dtype)
  const array = typedArray<TensorData | Float16ArrayLike>('out', out, row.arrays)
  if (arrayLength(array) !== length) throw invalid('out', out, `${length} elements`)
  return (row.bytes === 2 ? asBits(array) : array) as TensorData
}

function own(self: unknown): TensorStorage {
  return nativeThis<TensorStorage>(self, Tensor)
}

/** @internal The storage of `value`, when it is a tensor. */
export function storageOf(value: unknown): TensorStorage | undefined {
  return nativeOf<TensorStorage>(value, Tensor)
}

/** @internal A tensor of a native view, of an array that a call answered with, or of one tensor of a pending view. */
export function tensorOf(source: NativeView | HostArray | PendingView, tensor = 0): Tensor {
  return new Tensor(INTERNAL, new TensorStorage(source, tensor))
}

/** Keys and values. */
export interface Kv {
  readonly k: Tensor
  readonly v: Tensor
}

/** @internal K and V of a cache's buffer. */
export function kvOf(view: PendingView): Kv {
  return { k: tensorOf(view, 0), v: tensorOf(view, 1) }
}

/** @internal K and V of a cache's buffer; `null` of nothing. */
export function kvOrNull(view: PendingView | null): Kv | null {
  return view === null ? null : kvOf(view)
}
