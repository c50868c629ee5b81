import type { NativeBuffer, NativeView } from '#binding'

import { meta, SHOWN } from './host-array.js'

/** How the addon says which buffer it shows: one to keep, one for this result alone, none. Any other number is the buffer kept last. */
const KEEP = 1
const ONCE = 2
const NOTHING = 3

/**
 * A buffer that a cache showed. Its memory is given back as soon as neither the cache shows it nor a tensor needs it. The garbage
 * collector would do so too, but late, when memory may be short already.
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
 * A contiguous cache's native object, and the buffer that it showed last. As long as its buffer is the same, the cache answers with
 * numbers alone: an object with a finalizer for each answer would cost more than the answer.
 */
export class CacheHandle<N extends { dispose(): void }> {
  readonly native: N
  #buffer: SharedBuffer | undefined

  constructor(native: N) {
    this.native = native
  }

  dispose(): void {
    this.native.dispose()
    this.#keep(undefined)
  }

  /** What the cache shows; `buffer` is the answer of the call that showed it. */
  view(buffer: NativeBuffer | null): PendingView {
    const kind = meta[SHOWN]
    if (kind === ONCE) return new PendingView(new SharedBuffer(buffer as NativeBuffer))
    if (kind === KEEP && buffer !== null) this.#keep(new SharedBuffer(buffer))
    return new PendingView(this.#buffer as SharedBuffer)
  }

  /** As {@link view}; `null` when the cache shows nothing. */
  viewOrNull(buffer: NativeBuffer | null): PendingView | null {
    return meta[SHOWN] === NOTHING ? null : this.view(buffer)
  }

  #keep(buffer: SharedBuffer | undefined): void {
    buffer?.hold()
    this.#buffer?.release()
    this.#buffer = buffer
  }
}

/** Views of a cache's buffer that are still numbers: native ones are made when someone looks. */
export class PendingView {
  readonly #buffer: SharedBuffer
  /** Two runs, the position behind the last token, the time of the call, and the window of the cache. */
  readonly #numbers: readonly (number | undefined)[]

  constructor(buffer: SharedBuffer) {
    this.#buffer = buffer
    // An array of a few numbers costs less than a typed one, and most are never looked at.
    const at = SHOWN + 1
    this.#numbers = [
      meta[at], meta[at + 1], meta[at + 2], meta[at + 3], meta[at + 4], meta[at + 5], meta[at + 6], meta[at + 7], meta[at + 8], meta[at + 9],
    ]
  }

  /** The native view of one tensor of the buffer: its only one, or K (0) and V (1). */
  make(tensor: number): NativeView {
    return this.#buffer.native.view(tensor, Float64Array.from(this.#numbers as readonly number[]))
  }

  /** Writes the description of one tensor to `into` from `at` on. Returns the buffer, which crosses to the addon. */
  describe(tensor: number, into: Float64Array, at: number): object {
    into[at] = tensor
    for (let place = 0; place < this.#numbers.length; place++) into[at + 1 + place] = this.#numbers[place] as number
    return this.#buffer.native
  }

  /** Keeps the buffer for one tensor more. */
  hold(): void {
    this.#buffer.hold()
  }

  /** One tensor less needs the buffer. */
  release(): void {
    this.#buffer.release()
  }
}
