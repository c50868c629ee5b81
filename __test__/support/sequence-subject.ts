import {
  type BeginOptions,
  type KvSource,
  type KvTransaction,
  PagedKvCache,
  type Sequence,
  Tensor,
  type TokenSource,
  type Transaction,
} from '../../index.js'
import { type Shape } from './properties.js'
import { type Seen, showing, stacked } from './showing.js'

/** K and V of each layer, from tensors whose first dimension (the batch of other caches) is the layer. */
function layersOf(k: TokenSource, v: TokenSource): KvSource[] {
  if (!(k instanceof Tensor && v instanceof Tensor)) return [{ k, v }]
  return Array.from({ length: k.shape[0] as number }, (_, layer) => ({
    k: k.narrow(0, layer, 1),
    v: v.narrow(0, layer, 1),
  }))
}

/** A sequence alone in its cache, of uniform layers or of a model. Its layers take the place of other caches' batch. */
export class SequenceSubject {
  readonly cache: PagedKvCache
  readonly sequence: Sequence
  readonly #shape: Shape
  readonly #ofModel: boolean

  constructor(shape: Shape, ofModel = false) {
    const { device, batch, heads, dim, dtype } = shape
    this.#shape = shape
    this.#ofModel = ofModel
    const pages = { capacity: 256, blockSize: 4, dtype, device }
    const layers = Array.from({ length: batch }, () => ({ kind: 'full', numKvHeads: heads, headDim: dim }) as const)
    this.cache = new PagedKvCache(
      ofModel ? { ...pages, model: { layers } } : { ...pages, numLayers: batch, numKvHeads: heads, headDim: dim },
    )
    this.sequence = this.cache.openSequence()
  }

  /** Returns its content; `null` if it is empty. */
  read(): Seen | null {
    this.cache.checkInvariants()
    return this.sequence.length === 0 ? null : this.shown()
  }

  /** All tokens, `[layers, heads, tokens, dim]`. */
  shown(): Seen {
    return stacked(this.#shape, this.sequence.length, layer =>
      this.#ofModel ? this.sequence.kv(layer) : this.cache.gather(this.sequence, layer),
    )
  }

  append(k: TokenSource, v: TokenSource): Seen {
    this.sequence.append(this.#tokens(k, v))
    return this.shown()
  }

  readonly begin = (options?: BeginOptions): KvTransaction =>
    showing(this.sequence.begin(options), this.#draft, () => this.shown())

  readonly #draft = (to: Transaction, k: TokenSource, v: TokenSource, options: unknown = {}): void =>
    to.append(
      typeof options === 'object' && options !== null ? { ...this.#tokens(k, v), ...options } : (options as never),
    )

  #tokens(
    k: TokenSource,
    v: TokenSource,
  ): { readonly k: TokenSource; readonly v: TokenSource } | { readonly layers: KvSource[] } {
    return this.#ofModel ? { layers: layersOf(k, v) } : { k, v }
  }

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
