import { type BeginOptions, type Kv, type KvSource, type KvTransaction, PagedKvCache, type Sequence, Tensor, type TokenSource, type Transaction } from '../../index.js'
import { source, type Shape } from './properties.js'
import { showing, stacked } from './showing.js'

/** K and V of each layer, of tensors that have them where other caches have their batch. */
function layersOf(k: TokenSource, v: TokenSource): KvSource[] {
  if (!(k instanceof Tensor && v instanceof Tensor)) return [{ k, v }]
  return Array.from({ length: k.shape[0] as number }, (_, layer) => ({ k: k.narrow(0, layer, 1), v: v.narrow(0, layer, 1) }))
}

function append(to: Transaction, k: TokenSource, v: TokenSource, options: unknown = {}): void {
  to.append(typeof options === 'object' && options !== null ? { layers: layersOf(k, v), ...options } : (options as never))
}

/** A sequence of full layers alone in a model's cache: what is the batch of other caches are its layers. */
export class ModelSubject {
  readonly cache: PagedKvCache
  readonly sequence: Sequence
  readonly #shape: Shape

  constructor(shape: Shape) {
    const { device, batch, heads, dim, dtype } = shape
    this.#shape = shape
    const model = { layers: Array.from({ length: batch }, () => ({ kind: 'full', numKvHeads: heads, headDim: dim }) as const) }
    this.cache = new PagedKvCache({ model, dtype, device, capacity: 256, blockSize: 4 })
    this.sequence = this.cache.openSequence()
  }

  /** What it holds; `null` when that is nothing. */
  read(): Kv | null {
    this.cache.checkInvariants()
    return this.sequence.length === 0 ? null : this.shown()
  }

  /** All tokens, `[layers, heads, tokens, dim]`; none of a sequence that is empty. */
  shown(): Kv {
    const none = source(this.#shape, [], 0)
    return stacked(this.#shape, this.sequence.length, layer => this.sequence.kv(layer) ?? { k: none, v: none })
  }

  append(k: TokenSource, v: TokenSource): Kv {
    this.sequence.append({ layers: layersOf(k, v) })
    return this.shown()
  }

  readonly begin = (options?: BeginOptions): KvTransaction =>
    showing(this.sequence.begin(options), append, () => this.shown())

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
