import { PagedKvCache, Tensor, type BeginOptions, type DraftOptions, type Kv, type KvTransaction, type PagedSequence, type TensorData, type TokenSource } from '../../index.js'
import { bytes } from './tokens.js'
import type { Shape } from './properties.js'

/** A sequence alone in its cache: what is the batch of other caches are its layers. */
export class SequenceSubject {
  readonly cache: PagedKvCache
  readonly sequence: PagedSequence
  readonly #shape: Shape

  constructor(shape: Shape) {
    const { batch, heads, dim, dtype } = shape
    this.#shape = shape
    this.cache = new PagedKvCache({ capacity: 256, blockSize: 4, numLayers: batch, numKvHeads: heads, headDim: dim, dtype })
    this.sequence = this.cache.openSequence()
  }

  /** What it holds; `null` when that is nothing. */
  read(): Kv | null {
    this.cache.checkInvariants()
    return this.sequence.length === 0 ? null : this.shown()
  }

  /** All tokens, `[layers, heads, tokens, dim]`. */
  shown(): Kv {
    const { batch, heads, dim, dtype } = this.#shape
    const layers = Array.from({ length: batch }, (_, layer) => this.cache.gather(this.sequence, layer))
    const whole = (part: 'k' | 'v'): Tensor => {
      const { buffer } = Uint8Array.from(Buffer.concat(layers.map(layer => bytes(layer[part]))))
      const data: TensorData = dtype === 'f32' ? new Float32Array(buffer) : new Uint16Array(buffer)
      return Tensor.from(data, [batch, heads, this.sequence.length, dim], { dtype })
    }
    return { k: whole('k'), v: whole('v') }
  }

  append(k: TokenSource, v: TokenSource): Kv {
    this.sequence.append({ k, v })
    return this.shown()
  }

  readonly begin = (options?: BeginOptions): KvTransaction => showing(this.sequence.begin(options), () => this.shown())

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

/** A transaction whose appends show what others' do. */
function showing(open: KvTransaction<void>, shown: () => Kv): KvTransaction {
  const own = {
    append(k: TokenSource, v: TokenSource, options?: DraftOptions): Kv {
      open.append(k, v, options)
      return shown()
    },
    begin: (options?: BeginOptions) => showing(open.begin(options), shown),
  }
  return new Proxy(open, {
    get(_, name) {
      const value = Reflect.get(name in own ? own : open, name, name in own ? own : open) as unknown
      return typeof value === 'function' ? value.bind(name in own ? own : open) : value
    },
  }) as unknown as KvTransaction
}
