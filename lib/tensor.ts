import { inspect, type InspectOptions } from 'node:util'

import { binding, type NativeView } from './binding.js'
import { count, fields, optional, sizes, text, typedArray, whole } from './check.js'
import { checkDType, dtypeRow, type DType, type Float16ArrayLike, type TensorData } from './dtype.js'
import { invalid, isKvTideError } from './errors.js'
import { describeData, meta } from './host-tensor.js'
import { checkInternal, INTERNAL, nativeArgument, nativeOf, nativeThis, Owner } from './owner.js'

/** What a tensor can be made with besides its data. */
export interface TensorOptions {
  /** The element type; a `Uint16Array` needs one, other arrays say it themselves. */
  readonly dtype?: DType
  /** Where it lives, `'cpu'` unless said otherwise. */
  readonly device?: string
}

/** A native view, and which part of it is meant. */
class Part {
  readonly view: NativeView
  readonly part: number
  shape: readonly number[] | undefined
  data: TensorData | undefined
  dtype: DType | undefined

  constructor(view: NativeView, part: number) {
    this.view = view
    this.part = part
  }
}

/**
 * Numbers with a shape, in native memory: made from an array of yours, or shown by a cache in its own memory.
 *
 * A tensor that a cache shows is a view: it costs nothing, and when the cache later overwrites what it shows, reading it
 * throws `STALE_VIEW` instead of wrong numbers. `toArray()` is a copy to keep.
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
  constructor(token: unknown, part: unknown) {
    checkInternal(token, 'Tensor', 'Tensor.from(data, shape) instead')
    super(part as Part, Tensor)
  }

  /** @internal */
  static of(view: NativeView, part = 0): Tensor {
    return new Tensor(INTERNAL, new Part(view, part))
  }

  /**
   * Copies `data` into a new tensor.
   *
   * @param data the elements, row-major; half floats as bits in a `Uint16Array`, with a `dtype`
   * @param shape its sizes; their product is the length of `data`
   */
  static from(data: TensorData | Float16ArrayLike, shape: readonly number[], options: TensorOptions = {}): Tensor {
    const { dtype, device } = fields<TensorOptions>('options', options)
    if (device !== undefined) binding.checkDevice(text('device', device))
    const named = optional(checkDType, 'dtype', dtype)
    const array = describeData('data', data, sizes('shape', shape), named, 0)
    return Tensor.of(binding.tensorFromHost(array, meta))
  }

  /** Its sizes. */
  get shape(): readonly number[] {
    const part = own(this)
    part.shape ??= Object.freeze(part.view.shape(part.part))
    return part.shape
  }

  /** Its element type. */
  get dtype(): DType {
    const part = own(this)
    part.dtype ??= part.view.dtype(part.part) as DType
    return part.dtype
  }

  /** Where it lives: `'cpu'`. */
  get device(): string {
    own(this)
    return 'cpu'
  }

  /** Elements from one index to the next, for each axis (within a run, see {@link keyPositions}). */
  get strides(): readonly number[] {
    const part = own(this)
    return part.view.strides(part.part)
  }

  /** Number of elements. */
  get length(): number {
    return this.shape.reduce((product, size) => product * size, 1)
  }

  /** True when a slot that it shows was overwritten since it was made: reading it throws `STALE_VIEW`. */
  get isStale(): boolean {
    const part = own(this)
    return part.view.isStale(part.part)
  }

  /** True when its elements lie in one piece, in order. */
  get isContiguous(): boolean {
    const part = own(this)
    return part.view.isContiguous(part.part)
  }

  /**
   * For a view of a cache, the position of the first token of each run: one number, or two once tokens between the sinks
   * and the window have been dropped.
   */
  get keyPositions(): readonly number[] {
    const part = own(this)
    return part.view.keyPositions(part.part)
  }

  /**
   * The elements where they lie, without a copy; for f16 and bf16 their bits.
   *
   * The array is raw memory of the cache. It cannot know when it goes stale: after the next change of the cache it may show
   * other tokens, and writing to it writes into the cache. Take {@link toArray} for a copy to keep, or {@link readInto}.
   */
  get data(): TensorData {
    const part = own(this)
    if (part.data !== undefined) {
      part.view.check(part.part)
      return part.data
    }
    const bytes = part.view.data(part.part)
    const row = dtypeRow(this.dtype)
    part.data = row.over(bytes.buffer, bytes.byteOffset, bytes.byteLength / row.bytes)
    return part.data
  }

  /**
   * The part `start` to `start + length` along dimension `dim`, without a copy.
   */
  narrow(dim: number, start: number, length: number): Tensor {
    const part = own(this)
    const at = [count('dim', dim), whole('start', start), whole('length', length)] as const
    return Tensor.of(part.view.narrow(part.part, ...at))
  }

  /** The same elements in another shape: without a copy when they are contiguous, else in memory of their own. */
  reshape(shape: readonly number[]): Tensor {
    const part = own(this)
    return Tensor.of(part.view.reshape(part.part, Float64Array.from(sizes('shape', shape))))
  }

  /** A copy of the elements, row-major; for f16 and bf16 their bits. */
  toArray(): TensorData {
    const part = own(this)
    const out = dtypeRow(this.dtype).make(this.length)
    part.view.readInto(part.part, out)
    return out
  }

  /** A copy of the elements as 32-bit floats, whatever the dtype. */
  toFloat32Array(): Float32Array {
    const part = own(this)
    const out = new Float32Array(this.length)
    part.view.readFloatsInto(part.part, out)
    return out
  }

  /**
   * Copies the elements into an array of yours, row-major, and returns it: the fast way to read.
   *
   * @param out of the tensor's kind and length
   */
  readInto<T extends TensorData | Float16ArrayLike>(out: T): T {
    const part = own(this)
    const row = dtypeRow(this.dtype)
    const array = typedArray<TensorData | Float16ArrayLike>('out', out, row.arrays)
    if (array.length !== this.length) throw invalid('out', out, `${this.length} elements`)
    const bits = row.arrays.includes('Uint16Array')
    part.view.readInto(part.part, bits ? new Uint16Array(array.buffer, array.byteOffset, array.length) : array)
    return out
  }

  /** True when shape, dtype and every bit agree. */
  equals(other: Tensor): boolean {
    const part = own(this)
    const against = nativeArgument<Part>('other', other, Tensor)
    return part.view.equals(part.part, against.view, against.part)
  }

  /** Gives its memory back, as far as nothing else uses it. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    const part = own(this)
    part.view.dispose(part.part)
    part.shape = undefined
    part.dtype = undefined
    part.data = undefined
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    this.dispose()
  }
}

/** What `console.log` shows. */
function show(this: Tensor, _depth: number, options: InspectOptions): string {
  try {
    const values = this.isStale
      ? '(stale)'
      : inspect(Array.from(this.toFloat32Array()), { ...options, maxArrayLength: 6, breakLength: Infinity })
    return `Tensor ${this.dtype} [${this.shape.join(', ')}] ${values}`
  } catch (error) {
    return `Tensor (${isKvTideError(error) ? error.code : 'unreadable'})`
  }
}

Object.defineProperty(Tensor.prototype, inspect.custom, { value: show, configurable: true, writable: true })

function own(self: unknown): Part {
  return nativeThis<Part>(self, Tensor)
}

/** @internal Describes `value` at `at` in {@link meta} when it is a tensor, and returns its native view. */
export function describeTensor(value: unknown, at: number): NativeView | undefined {
  const part = nativeOf<Part>(value, Tensor)
  if (part === undefined) return undefined
  meta[at] = -1
  meta[at + 1] = part.part
  return part.view
}

/** Keys and values. */
export interface Kv {
  readonly k: Tensor
  readonly v: Tensor
}

/** @internal Both parts of a native view. */
export function kvOf(view: NativeView): Kv {
  return { k: Tensor.of(view, 0), v: Tensor.of(view, 1) }
}

/** @internal Both parts of a native view, or `null`. */
export function kvOrNull(view: NativeView | null): Kv | null {
  return view === null ? null : kvOf(view)
}

/** @internal A native view, or `null`. */
export function tensorOrNull(view: NativeView | null): Tensor | null {
  return view === null ? null : Tensor.of(view)
}
