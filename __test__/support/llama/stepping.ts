import type { HostTensor, PagedKvCache, Sequence, Step } from '../../../index.js'
import type { LayerAttention, Llama } from './llama.js'

/** Attention over a model's cache: each forward pass is a step of one sequence. `known` lists the ids of the sequence's first tokens. */
export function stepping(
  model: Llama,
  cache: PagedKvCache,
  sequence: Sequence,
  known: readonly number[] = [],
): LayerAttention {
  const {
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: dim,
    num_hidden_layers: layers,
  } = model.config
  let step: Step | undefined
  return (layer, q, k, v) => {
    const tokens = k.length / kvHeads / dim
    const rows = (data: Float32Array): HostTensor => ({ data, shape: [tokens, kvHeads, dim], layout: 'bshd' })
    if (layer === 0) step = cache.beginStep({ sequences: [sequence], offsets: [0, tokens] })
    const open = step as Step
    open.write(layer, rows(k), rows(v))
    const { out } = open.attend(layer, { data: q, shape: [tokens, heads, dim] })
    const ids = known.slice(sequence.length, sequence.length + tokens)
    if (layer + 1 === layers) open.commit(ids.length === tokens ? ids : undefined)
    return out.toFloat32Array()
  }
}
