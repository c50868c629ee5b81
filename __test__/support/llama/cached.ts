import { attend, KvCache, type AttendKv, type AttendOptions, type HostTensor } from '../../../index.js'
import type { LayerAttention, Llama } from './llama.js'

/** Stores the keys and values of a layer, and returns those that its queries may attend to. */
export type Keep = (layer: number, k: HostTensor, v: HostTensor) => AttendKv

/** Attention over caches, for a batch whose rows follow each other in the list of tokens. */
export function cached(model: Llama, keep: Keep, options: AttendOptions = {}, batch = 1): LayerAttention {
  const { head_dim: dim } = model.config
  const rows = (data: Float32Array, heads: number): HostTensor => ({
    data,
    shape: [batch, data.length / batch / heads / dim, heads, dim],
    layout: 'bshd',
  })
  return (layer, q, k, v) => {
    const { num_attention_heads: heads, num_key_value_heads: kvHeads } = model.config
    const kv = keep(layer, rows(k, kvHeads), rows(v, kvHeads))
    return tokensFirst(attend(rows(q, heads), kv, options).out.toFloat32Array(), batch, heads, dim)
  }
}

/** `[batch, heads, n, dim]` as `[batch, n, heads, dim]`. */
export function tokensFirst(rows: Float32Array, batch: number, heads: number, dim: number): Float32Array {
  const tokens = rows.length / batch / heads / dim
  const out = new Float32Array(rows.length)
  for (let row = 0; row < batch * heads * tokens; row++) {
    const [token, head, of] = [row % tokens, Math.floor(row / tokens) % heads, Math.floor(row / tokens / heads)]
    out.set(rows.subarray(row * dim, (row + 1) * dim), ((of * tokens + token) * heads + head) * dim)
  }
  return out
}

/** A growing cache for each layer. */
export function kvCaches(model: Llama, batchSize = 1): KvCache[] {
  const { num_hidden_layers: layers, num_key_value_heads: numKvHeads, head_dim: headDim } = model.config
  return Array.from(
    { length: layers },
    () => new KvCache({ batchSize, numKvHeads, initialCapacity: 16, maxSeqLen: 256, headDim }),
  )
}
