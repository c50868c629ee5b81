import type { NativeBuffer, NativeView } from '#binding'

import { binding } from '../loading/binding.js'
import { dtypeOfCode, dtypeRow, room, type DType, type TensorData } from './dtype.js'
import { KvTideError } from './errors.js'
import { HostArgument, meta, put, SHOWN, type TensorArgument } from './host-tensor.js'

/** How the addon says which buffer it shows. */
const KEEP = 1
const ONCE = 2
const NOTHING = 3

/**
 * The memory of what a cache showed, given back as soon as neither the cache shows it nor a tensor may still look at it: the collector
 * of garbage would do so too, but late, and memory may be short by then.
 */
class ShownBuffer {
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
 * A cache's native object, and the buffer that it showed last. A cache answers with numbers alone as long as its buffer is
 * the same: an object with a finalizer for each answer would cost more than the answer.
 */
export class Shower<N extends { dispose(): void }> {
  readonly native: N
  #buffer: ShownBuffer | undefined

  constructor(native: N) {
    this.native = native
  }

  dispose(): void {
    this.native.dispose()
    this.#keep(undefined)
  }

  /** What the last call has shown, whose answer was `buffer`; `null` when it was nothing. */
  shown(buffer: NativeBuffer | null): Shown | null {
    const kind = meta[SHOWN]
    if (kind === NOTHING) return null
    if (kind === ONCE) return new Shown(new ShownBuffer(buffer as NativeBuffer))
    if (kind === KEEP && buffer !== null) this.#keep(new ShownBuffer(buffer))
    return new Shown(this.#buffer as ShownBuffer)
  }

  #keep(buffer: ShownBuffer | undefined): void {
    buffer?.hold()
    this.#buffer?.release()
    this.#buffer = buffer
  }
}

/** What a cache showed, until someone looks at it. */
export class Shown {
  readonly #buffer: ShownBuffer
  /** The numbers behind the kind: two runs, the position behind the last token, when it was, and the window of the cache. */
  readonly #numbers: readonly (number | undefined)[]

  constructor(buffer: ShownBuffer) {
    this.#buffer = buffer
    // An array of a few numbers costs less than a typed one, and most are never looked at.
    const at = SHOWN + 1
    this.#numbers = [
      meta[at], meta[at + 1], meta[at + 2], meta[at + 3], meta[at + 4], meta[at + 5], meta[at + 6], meta[at + 7], meta[at + 8], meta[at + 9],
    ]
  }

  /** One part of it: the only one, or K (0) and V (1). */
  view(part: number): NativeView {
    return this.#buffer.native.view(part, Float64Array.from(this.#numbers as readonly number[]))
  }

  /** Writes down which part of the buffer is meant, and answers the buffer. */
  describe(part: number, into: Float64Array, at: number): object {
    into[at] = part
    for (let place = 0; place < this.#numbers.length; place++) into[at + 1 + place] = this.#numbers[place] as number
    return this.#buffer.native
  }

  /** Keeps its memory for one tensor more. */
  hold(): void {
    this.#buffer.hold()
  }

  /** A tensor needs it no more: it has a view, or has ended. */
  release(): void {
    this.#buffer.release()
  }
}

/**
 * What a tensor is made of: a native view; or what a cache showed, or an array that a call has answered, of which a view is
 * made when someone looks.
 */
export class Part {
  readonly #part: number
  #view: NativeView | undefined
  #host: HostArgument | undefined
  #shown: Shown | undefined
  #shape: readonly number[] | undefined
  #dtype: DType | undefined
  #data: TensorData | undefined

  constructor(source: NativeView | HostArgument | undefined, shown?: Shown, part = 0) {
    if (source instanceof HostArgument) this.#host = source
    else this.#view = source
    this.#shown = shown
    this.#part = part
    shown?.hold()
  }

  /** What stands for it in a call. */
  get argument(): TensorArgument {
    return this.#view ?? this.#host ?? this
  }

  /** Writes down in `into` from `at` on which part of what a cache showed it is, and answers the buffer. */
  describe(into: Float64Array, at: number): object {
    // A getter of another argument may have looked at it meanwhile.
    if (this.#shown === undefined) return this.view
    return this.#shown.describe(this.#part, into, at)
  }

  /** The array that it still is: not yet in native memory. */
  get #array(): TensorData | undefined {
    return this.#host?.array as TensorData | undefined
  }

  /** The native view. */
  get view(): NativeView {
    if (this.#view !== undefined) return this.#view
    if (this.#host !== undefined) this.#view = binding.tensorFromHost(put(this.#host, 0), meta, 'cpu')
    else if (this.#shown !== undefined) this.#view = this.#shown.view(this.#part)
    else throw disposed()
    this.#host = undefined
    this.#letGo()
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

  /** Its sizes. */
  get shape(): readonly number[] {
    if (this.#host !== undefined) return (this.#shape ??= Object.freeze([...this.#host.dims]))
    const { view } = this
    return (this.#shape ??= Object.freeze(view.shape()))
  }

  /** Its element type. */
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
    this.#letGo()
    this.#shape = undefined
    this.#dtype = undefined
    this.#data = undefined
  }

  #letGo(): void {
    this.#shown?.release()
    this.#shown = undefined
  }
}

function disposed(): KvTideError<'DISPOSED'> {
  return new KvTideError('DISPOSED', 'the Tensor was disposed of', { object: 'Tensor' })
}
