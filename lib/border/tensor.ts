// Tensors: `Tensor`, the numbers that this package returns, and `HostTensor`, the caller's own memory as an argument. Reading an argument may run the caller's
// getters, so all arguments of a call are read before the first of them is written for the addon.
import { inspect, type InspectOptions } from 'node:util'
import type { NativeView } from '#binding'

import { binding } from '../loading/binding.js'
import {
  arrayKind,
  arrayLength,
  asBits,
  count,
  fields,
  isArray,
  known,
  list,
  type Names,
  optional,
  sizes,
  typedArray,
  whole,
} from '../errors/check.js'
import { invalid, isKvTideError } from '../errors/errors.js'
import {
  type ArrayOf,
  checkDType,
  type DType,
  type DTypeOf,
  dtypeRow,
  type Float16ArrayLike,
  HostArray,
  meta,
  META,
  readArray,
  type TensorData,
} from './host-array.js'
import { checkInternal, INTERNAL, nativeArgument, nativeOf, nativeThis, Owner } from './owner.js'
import { readDevice } from './process.js'
import type { AsyncOptions } from './stop-signal.js'
import { type PendingView, TensorStorage } from './tensor-storage.js'

const OPTIONS: Names<TensorOptions> = { dtype: 0, device: 0 }

/** Options of {@link Tensor.from}. */
export interface TensorOptions<D extends DType = DType> {
  /** The element type. Required for a `Uint16Array`; other arrays determine it. */
  readonly dtype?: D
  /** The device, `'cpu'` by default. */
  readonly device?: string
}

/**
 * Numbers with a shape, in native memory: a copy of your array, or a view of a cache's own memory.
 *
 * A view copies nothing. When the cache later overwrites a slot of the view, reading the view throws `STALE_VIEW` instead of returning
 * wrong numbers. `toArray()` makes a copy to keep.
 *
 * @example
 * ```ts
 * import { Tensor } from 'kvtide'
 *
 * using tensor = Tensor.from(new Float32Array([1, 2, 3, 4, 5, 6]), [2, 3])
 * console.log(tensor.narrow(1, 1, 2).toArray()) // Float32Array [2, 3, 5, 6]
 * ```
 */
export class Tensor<D extends DType = DType> extends Owner {
  /** @internal */
  constructor(token: unknown, storage: unknown) {
    checkInternal(token, 'Tensor', 'Tensor.from(data, shape) instead')
    super(token, storage as TensorStorage, Tensor)
  }

  /**
   * Copies `data` into a new tensor.
   *
   * @param data the elements, row-major; half floats as bits in a `Uint16Array`, with a `dtype`
   * @param shape the sizes; their product must be the length of `data`
   */
  static from<A extends TensorData | Float16ArrayLike, D extends DType = DTypeOf<A>>(
    data: A,
    shape: readonly number[],
    options: TensorOptions<D> = {},
  ): Tensor<D> {
    const { dtype, device } = known<TensorOptions>('options', options, OPTIONS)
    const on = readDevice(device)
    const named = optional(checkDType, 'dtype', dtype)
    const read = readArray('data', data, sizes('shape', shape), named)
    return tensorOf<D>(binding.tensorFromHost(read.describe(meta, 0), meta, on))
  }

  /** The sizes, one for each axis. */
  get shape(): readonly number[] {
    return own(this).shape
  }

  /** The element type. */
  get dtype(): D {
    return own(this).dtype as D
  }

  /** The device: `'cpu'`, `'cuda:0'`. */
  get device(): string {
    return own(this).view.device()
  }

  /** For each axis, the distance in elements from one index to the next, within a run: see {@link keyPositions}. */
  get strides(): readonly number[] {
    return own(this).view.strides()
  }

  /** The number of elements. */
  get length(): number {
    return own(this).length
  }

  /** True if a slot of the view was overwritten since the view was made. Reading it then throws `STALE_VIEW`. */
  get isStale(): boolean {
    return own(this).view.isStale()
  }

  /** True if the elements are in one piece, in order. */
  get isContiguous(): boolean {
    return own(this).view.isContiguous()
  }

  /**
   * For a view of a cache, the position of the first token of each run: one number, or two once tokens between the sinks and the
   * window were dropped.
   */
  get keyPositions(): readonly number[] {
    return own(this).view.keyPositions()
  }

  /**
   * The elements in place, without a copy; for f16 and bf16 their bits.
   *
   * The array is raw memory of the cache. It does not become stale: after the next change of the cache it may show other tokens, and
   * writing to it writes into the cache. Use {@link toArray} or {@link readInto} for a copy.
   *
   * @throws KvTideError `NOT_CONTIGUOUS` for two runs; `DEVICE_MISMATCH` for a tensor in the memory of a GPU
   */
  get data(): ArrayOf<D> {
    return own(this).data as ArrayOf<D>
  }

  /** Returns a view from `start` to `start + length` along dimension `dim`, without a copy. */
  narrow(dim: number, start: number, length: number): Tensor<D> {
    const { view } = own(this)
    const at = [count('dim', dim), whole('start', start), whole('length', length)] as const
    return tensorOf(view.narrow(...at))
  }

  /** Returns the same elements in another shape: without a copy if they are contiguous, otherwise as a copy. */
  reshape(shape: readonly number[]): Tensor<D> {
    const { view } = own(this)
    return tensorOf(view.reshape(Float64Array.from(sizes('shape', shape))))
  }

  /** Returns a copy of the elements, row-major; for f16 and bf16 their bits. */
  toArray(): ArrayOf<D> {
    return own(this).toArray() as ArrayOf<D>
  }

  /** Returns a copy of the elements as 32-bit floats, for any dtype. */
  toFloat32Array(): Float32Array {
    const storage = own(this)
    if (storage.dtype === 'f32') return storage.toArray() as Float32Array
    const out = dtypeRow('f32').make(storage.length) as Float32Array
    storage.view.readFloatsInto(out)
    return out
  }

  /**
   * Copies the elements into your array, row-major, and returns that array. This is the fastest way to read.
   *
   * @param out an array of the tensor's kind and length
   */
  readInto<T extends TensorData | Float16ArrayLike>(out: T): T {
    const storage = own(this)
    storage.readInto(roomIn(out, storage.dtype, storage.length))
    return out
  }

  /**
   * As {@link toArray}, off the main thread, which would otherwise wait for a GPU. Until the promise is settled, changes of the cache that
   * the tensor shows throw `BUSY`. The tensor may be disposed of meanwhile.
   *
   * @throws KvTideError `ABORTED` if `signal` was aborted
   */
  async toArrayAsync(options: AsyncOptions = {}): Promise<ArrayOf<D>> {
    return (await own(this).readLater(false, options)) as ArrayOf<D>
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

  /** True if shape, dtype and all bits are equal. */
  equals(other: Tensor): boolean {
    const { view } = own(this)
    return view.equals(nativeArgument<TensorStorage>('other', other, Tensor).view)
  }
}

/** The output of `console.log`: at most six elements. The others are not copied. */
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
    for (const [axis, size] of tensor.shape.entries())
      first = first.narrow(axis, 0, axis === last ? Math.min(size, 6) : 1)
  }
  const values = Array.from(first.toFloat32Array().subarray(0, 6), value => inspect(value, options))
  const more = tensor.length - values.length
  return [...values, ...(more > 0 ? [`... ${more} more`] : [])].join(', ')
}

Object.defineProperty(Tensor.prototype, inspect.custom, { value: show, configurable: true, writable: true })

/** Checks the caller's array that receives the elements of a tensor. */
function roomIn(out: unknown, dtype: DType, length: number): TensorData {
  const row = dtypeRow(dtype)
  const array = typedArray<TensorData | Float16ArrayLike>('out', out, row.arrays)
  if (arrayLength(array) !== length) throw invalid('out', out, `${length} elements`)
  return (row.bytes === 2 ? asBits(array) : array) as TensorData
}

function own(self: unknown): TensorStorage {
  return nativeThis<TensorStorage>(self, Tensor)
}

/** @internal The storage of `value`; `undefined` if it is not a tensor. */
export function storageOf(value: unknown): TensorStorage | undefined {
  return nativeOf<TensorStorage>(value, Tensor)
}

/** @internal Makes a tensor of a native view, of an array that a call returned, or of one tensor of a pending view. */
export function tensorOf<D extends DType>(source: NativeView | HostArray | PendingView, tensor = 0): Tensor<D> {
  return new Tensor<D>(INTERNAL, new TensorStorage(source, tensor))
}

/** Keys and values. */
export interface Kv<D extends DType = DType> extends Disposable {
  readonly k: Tensor<D>
  readonly v: Tensor<D>
  /** Disposes of both. */
  dispose(): void
  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void
}

class KvPair<D extends DType> implements Kv<D> {
  readonly k: Tensor<D>
  readonly v: Tensor<D>

  constructor(k: Tensor<D>, v: Tensor<D>) {
    this.k = k
    this.v = v
  }

  dispose(): void {
    this.k.dispose()
    this.v.dispose()
  }

  [Symbol.dispose](): void {
    this.dispose()
  }
}

/** @internal K and V of a cache's buffer as tensors. */
export function kvOf<D extends DType>(view: PendingView): Kv<D> {
  return new KvPair<D>(tensorOf(view, 0), tensorOf(view, 1))
}

/** @internal As {@link kvOf}; `null` for `null`. */
export function kvOrNull(view: PendingView | null): Kv | null {
  return view === null ? null : kvOf(view)
}

/** @internal Two native views as K and V. */
export function kvOfViews<D extends DType>(views: readonly NativeView[]): Kv<D> {
  return new KvPair<D>(tensorOf(views[0] as NativeView), tensorOf(views[1] as NativeView))
}

/** An onnxruntime tensor, or an object with the same fields. */
export interface OnnxTensor {
  /** The elements. */
  readonly data: unknown
  /** The shape. */
  readonly dims: readonly number[]
  /** The element type: `float32`, `float16`, `bfloat16` or `uint8`. */
  readonly type: string
}

/**
 * A tensor in memory of your own, read in place. An onnxruntime tensor can be passed as it is; pass it as `data` to take only a range
 * of its tokens, or to give another order of axes.
 *
 * @example
 * ```ts
 * import { KvCache, type HostTensor } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 })
 * // the newest token of a `present` that holds three
 * const present = { data: new Float32Array([1, 2, 3, 4, 5, 6]), dims: [1, 1, 3, 2], type: 'float32' }
 * const newest: HostTensor = { data: present, range: [2, 3] }
 * const { k } = cache.update(newest, newest)
 * console.log(k.toArray()) // Float32Array [5, 6]
 * ```
 */
export interface HostTensor {
  /**
   * The elements, row-major in the order of `layout`. Half floats are bits in a `Uint16Array`, and need a `dtype`. An onnxruntime
   * tensor is accepted too, and brings its shape and dtype.
   */
  readonly data: TensorData | Float16ArrayLike | OnnxTensor
  /** The shape; `dims` means the same. */
  readonly shape?: readonly number[]
  /** The shape, under onnxruntime's name. */
  readonly dims?: readonly number[]
  /** The element type. `data` determines it unless it is a `Uint16Array`. */
  readonly dtype?: DType
  /** The element type, under onnxruntime's name: `float32`, `float16`, `bfloat16`, `uint8`. */
  readonly type?: string
  /** Takes only the tokens `[start, end)`. */
  readonly range?: readonly [start: number, end: number]
  /** The order of the axes in `data`: batch (b), heads (h), sequence (s), head dimension (d). `bhsd` by default. */
  readonly layout?: 'bhsd' | 'bshd'
}

/** @internal A tensor argument that was read: a native view, an array with its description, or a pending view. */
export type TensorArgument = NativeView | HostArray | TensorStorage

/**
 * @internal Reads a tensor of this package, or one in the caller's memory. That may run the caller's getters, which may call this
 * package in turn, so all arguments of a call are read before the first one is {@link put}.
 */
export function readTensor(argument: string, value: unknown): TensorArgument {
  return storageOf(value)?.argument ?? readHost(argument, value)
}

/** @internal Writes the description of an argument to `place` in `into`. Returns the object that crosses to the addon. */
export function put(argument: TensorArgument, place: number, into: Float64Array = meta): object {
  return argument instanceof HostArray || argument instanceof TensorStorage
    ? argument.describe(into, place * META)
    : argument
}

/** The names of an argument's fields in errors. */
interface FieldNames {
  readonly data: string
  readonly shape: string
  readonly dtype: string
}

/** Field names by argument, so that an append does not build them again. */
const namesOf = new Map<string, FieldNames>()

function fieldNames(argument: string): FieldNames {
  const built = namesOf.get(argument)
  if (built !== undefined) return built
  const names = { data: `${argument}.data`, shape: `${argument}.shape`, dtype: `${argument}.dtype` }
  namesOf.set(argument, names)
  return names
}

function readHost(argument: string, value: unknown): HostArray {
  if (typeof value !== 'object' || value === null || arrayKind(value) !== undefined) {
    throw invalid(argument, value, 'a Tensor or a HostTensor: { data, shape }')
  }
  // Each field is read once: a getter may return something else the next time.
  const names = fieldNames(argument)
  const { data: given, shape, dims, dtype, type, range, layout } = fields<HostTensor>(argument, value)
  const inside = isTensorLike(given) ? fields<OnnxTensor>(names.data, given) : undefined
  const outer = shape === undefined ? dims : shape
  const size = outer === undefined ? inside?.dims : outer
  const data = inside === undefined ? given : inside.data
  const typed = dtype === undefined ? type : dtype
  if (size === undefined) throw invalid(names.shape, size, 'the shape of its data (shape or dims)')
  const named = optional(checkDType, names.dtype, typed === undefined ? inside?.type : typed)
  const found = readArray(names.data, data, sizes(names.shape, size), named)
  if (layout !== undefined && layout !== 'bhsd' && layout !== 'bshd') {
    throw invalid(`${argument}.layout`, layout, 'bhsd or bshd')
  }
  found.bshd = layout === 'bshd'
  if (range !== undefined) {
    const [start, end] = isArray(range) ? list(`${argument}.range`, range, whole, 2) : []
    if (start === undefined || end === undefined) throw invalid(`${argument}.range`, range, '[start, end]')
    found.range = [start, end]
  }
  return found
}

/** True for an object that has data and dims, rather than for the data itself. */
function isTensorLike(value: unknown): boolean {
  if (typeof value !== 'object' || value === null || arrayKind(value) !== undefined) return false
  try {
    return 'dims' in value
  } catch {
    return false
  }
}

/** The dtype of a source of tokens, as far as its type tells. */
export type DTypeOfSource<S> =
  S extends Tensor<infer D>
    ? D
    : S extends { readonly dtype: infer D extends DType }
      ? D
      : S extends { readonly data: infer A extends Float32Array | Uint8Array }
        ? DTypeOf<A>
        : DType

/** Tokens for a cache: a tensor of this package, memory of your own, or an onnxruntime tensor. */
export type TokenSource = Tensor | HostTensor | OnnxTensor

/** Keys and values of tokens for a cache. */
export interface KvSource {
  /** The keys. */
  readonly k: TokenSource
  /** The values, for as many tokens. */
  readonly v: TokenSource
}
