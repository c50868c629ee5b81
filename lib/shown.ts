import type { NativeBuffer, NativeView } from '#binding'

import { dtypeRow, room, type DType, type TensorData } from './dtype.js'
import { KvTideError } from './errors.js'
import { meta, SHOWN } from './host-tensor.js'

/** How the addon says which buffer it shows. */
const KEEP = 1
const ONCE = 2
const NOTHING = 3

/**
 * A cache's native object, and the buffer that it showed last. A cache answers with numbers alone as long as its buffer is
 * the same: an object with a finalizer for each answer would cost more than the answer.
 */
export class Shower<N extends { dispose(): void }> {
  readonly native: N
  buffer: NativeBuffer | undefined

  constructor(native: N) {
    this.native = native
  }

  dispose(): void {
    this.native.dispose()
    this.buffer = undefined
  }

  /** What the last call has shown, whose answer was `buffer`; `null` when it was nothing. */
  shown(buffer: NativeBuffer | null): Shown | null {
    const kind = meta[SHOWN]
    if (kind === NOTHING) return null
    if (kind === KEEP && buffer !== null) this.buffer = buffer
    return new Shown((kind === ONCE ? buffer : this.buffer) as NativeBuffer)
  }
}

/** What a cache showed, until someone looks at it. */
export class Shown {
  readonly #buffer: NativeBuffer
  /** The numbers behind the kind: two runs, the position behind the last token, and when it was. */
  readonly #numbers: readonly (number | undefined)[]

  constructor(buffer: NativeBuffer) {
    this.#buffer = buffer
    // An array of a few numbers costs less than a typed one, and most are never looked at.
    const at = SHOWN + 1
    this.#numbers = [meta[at], meta[at + 1], meta[at + 2], meta[at + 3], meta[at + 4], meta[at + 5], meta[at + 6]]
  }

  /** One part of it: the only one, or K (0) and V (1). */
  view(part: number): NativeView {
    return this.#buffer.view(part, Float64Array.from(this.#numbers as readonly number[]))
  }
}

/** What a tensor is made of: a native view, or what a cache showed, of which one is made when someone looks. */
export class Part {
  readonly #part: number
  #view: NativeView | undefined
  #shown: Shown | undefined
  #shape: readonly number[] | undefined
  #dtype: DType | undefined
  #data: TensorData | undefined

  constructor(view: NativeView | undefined, shown: Shown | undefined, part: number) {
    this.#view = view
    this.#shown = shown
    this.#part = part
  }

  /** The native view. */
  get view(): NativeView {
    if (this.#view !== undefined) return this.#view
    if (this.#shown === undefined) {
      throw new KvTideError('DISPOSED', 'the Tensor was disposed of', { object: 'Tensor' })
    }
    this.#view = this.#shown.view(this.#part)
    this.#shown = undefined
    return this.#view
  }

  /** Its sizes. */
  get shape(): readonly number[] {
    const { view } = this
    return (this.#shape ??= Object.freeze(view.shape()))
  }

  /** Its element type. */
  get dtype(): DType {
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
    this.#shown = undefined
    this.#shape = undefined
    this.#dtype = undefined
    this.#data = undefined
  }
}
