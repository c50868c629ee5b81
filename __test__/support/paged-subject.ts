import { type BeginOptions, type Kv, type KvTransaction, PagedKvCache, type Sequence, type TokenSource, type Transaction } from '../../index.js'
import type { Shape } from './properties.js'
import { showing, stacked } from './showing.js'

const append = (to: Transaction, k: TokenSource, v: TokenSource, options: unknown = {}): void =>
  to.append(typeof options === 'object' && options !== null ? { k, v, ...options } : (options as never))

/** A sequence alone in its cache: what is the batch of other caches are its layers. */
export class SequenceSubject {
  readonly cache: PagedKvCache
  readonly sequence: Sequence
  readonly #shape: Shape

  constructor(shape: Shape) {
    const { device, batch, heads, dim, dtype } = shape
    this.#shape = shape
    this.cache = new PagedKvCache({ capacity: 256, blockSize: 4, numLayers: batch, numKvHeads: heads, headDim: dim, dtype, device })
    this.sequence = this.cache.openSequence()
  }

  /** What it holds; `null` when that is nothing. */
  read(): Kv | null {
    this.cache.checkInvariants()
    return this.sequence.length === 0 ? null : this.shown()
  }

  /** All tokens, `[layers, heads, tokens, dim]`. */
  shown(): Kv {
    return stacked(this.#shape, this.sequence.length, layer => this.cache.gather(this.sequence, layer))
  }

  append(k: TokenSource, v: TokenSource): Kv {
    this.sequence.append({ k, v })
    return this.shown()
  }

  readonly begin = (options?: BeginOptions): KvTransaction => showing(this.sequence.begin(options), append, () => this.shown())

  stats(): { readonly usedBytes: number } {
    return this.cache.stats()
  }

  dispose(): void {
    this.cache.dispose()
  }

  [Symbol.dispose](): void {
    this.cache.dispose()
  }
}
