import {
  Tensor,
  type BeginOptions,
  type DraftOptions,
  type Kv,
  type KvTransaction,
  type TensorData,
  type TokenSource,
} from '../../index.js'
import type { Shape } from './properties.js'
import { bytes } from './tokens.js'

/** K and V, regardless of their owner. */
export type Seen = Pick<Kv, 'k' | 'v'>

/** K and V of `length` tokens of all layers. Layers take the place of other caches' batch: `[layers, heads, tokens, dim]`. */
export function stacked({ batch, heads, dim, dtype }: Shape, length: number, read: (layer: number) => Kv): Seen {
  const layers = Array.from({ length: batch }, (_, layer) => read(layer))
  const whole = (part: 'k' | 'v'): Tensor => {
    const { buffer } = Uint8Array.from(Buffer.concat(layers.map(layer => bytes(layer[part]))))
    const data: TensorData = dtype === 'f32' ? new Float32Array(buffer) : new Uint16Array(buffer)
    return Tensor.from(data, [batch, heads, length, dim], { dtype })
  }
  return { k: whole('k'), v: whole('v') }
}

/** A transaction whose appends return views, like those of the other caches. */
export function showing<T extends { begin(options?: BeginOptions): T }>(
  open: T,
  append: (to: T, k: TokenSource, v: TokenSource, options?: DraftOptions) => void,
  shown: () => Seen,
): KvTransaction {
  const own = {
    append(k: TokenSource, v: TokenSource, options?: DraftOptions): Seen {
      append(open, k, v, options)
      return shown()
    },
    begin: (options?: BeginOptions) => showing(open.begin(options), append, shown),
  }
  return new Proxy(open as object, {
    get(_, name) {
      const value = Reflect.get(name in own ? own : (open as object), name, name in own ? own : open) as unknown
      return typeof value === 'function' ? value.bind(name in own ? own : open) : value
    },
  }) as unknown as KvTransaction
}
