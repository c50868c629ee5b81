import { readFileSync } from 'node:fs'

import { readSafetensors, type Stored } from './safetensors.js'

/** The folder with the model and its expected results. */
export const folder: URL = new URL('../../fixtures/llama/', import.meta.url)

interface Config {
  readonly head_dim: number
  readonly hidden_size: number
  readonly num_attention_heads: number
  readonly num_hidden_layers: number
  readonly num_key_value_heads: number
  readonly rms_norm_eps: number
  readonly rope_theta: number
  readonly vocab_size: number
}

/** Attention of one layer: `[tokens, heads, headDim]` each, keys and queries rotated; returns the output in the same form. */
export type LayerAttention = (layer: number, q: Float32Array, k: Float32Array, v: Float32Array) => Float32Array

/** A Llama without attention: a forward pass in plain loops. */
export class Llama {
  readonly config: Config = JSON.parse(readFileSync(new URL('hf/config.json', folder), 'utf8')) as Config
  readonly #weights = readSafetensors(new URL('hf/model.safetensors', folder))

  /** The logits of every token, `[tokens, vocabulary]`. */
  forward(tokens: readonly number[], positions: readonly number[], attention: LayerAttention): Float32Array {
    const { hidden_size: width, num_hidden_layers: layers } = this.config
    const embedded = this.#weight('model.embed_tokens.weight').data
    const hidden = new Float32Array(tokens.length * width)
    for (const [row, token] of tokens.entries())
      hidden.set(embedded.subarray(token * width, (token + 1) * width), row * width)
    for (let layer = 0; layer < layers; layer++) {
      const of = (name: string): Stored => this.#weight(`model.layers.${layer}.${name}.weight`)
      const seen = this.#norm(hidden, of('input_layernorm'))
      const [q, k, v] = ['q', 'k', 'v'].map(part => linear(seen, of(`self_attn.${part}_proj`))) as [
        Float32Array,
        Float32Array,
        Float32Array,
      ]
      this.#rotate(q, positions)
      this.#rotate(k, positions)
      add(hidden, linear(attention(layer, q, k, v), of('self_attn.o_proj')))
      const normed = this.#norm(hidden, of('post_attention_layernorm'))
      const gate = linear(normed, of('mlp.gate_proj'))
      const up = linear(normed, of('mlp.up_proj'))
      add(
        hidden,
        linear(
          gate.map((x, at) => (x / (1 + Math.exp(-x))) * (up[at] as number)),
          of('mlp.down_proj'),
        ),
      )
    }
    return linear(this.#norm(hidden, this.#weight('model.norm.weight')), this.#weight('lm_head.weight'))
  }

  #weight(name: string): Stored {
    const found = this.#weights.get(name)
    if (found === undefined) throw new Error(`the model has no ${name}`)
    return found
  }

  #norm(hidden: Float32Array, { data }: Stored): Float32Array {
    const { hidden_size: width, rms_norm_eps: epsilon } = this.config
    const out = new Float32Array(hidden.length)
    for (let row = 0; row < hidden.length; row += width) {
      let squares = 0
      for (let at = 0; at < width; at++) squares += (hidden[row + at] as number) ** 2
      const factor = 1 / Math.sqrt(squares / width + epsilon)
      for (let at = 0; at < width; at++) out[row + at] = (hidden[row + at] as number) * factor * (data[at] as number)
    }
    return out
  }

  /** Rotates pairs of elements, half a head apart, by an angle that grows with the position. */
  #rotate(rows: Float32Array, positions: readonly number[]): void {
    const { head_dim: dim, rope_theta: theta } = this.config
    const heads = rows.length / positions.length / dim
    for (let row = 0; row < rows.length / dim; row++) {
      const position = positions[Math.floor(row / heads)] as number
      for (let at = 0; at < dim / 2; at++) {
        const angle = position * theta ** ((-2 * at) / dim)
        const [low, high] = [row * dim + at, row * dim + at + dim / 2]
        const [x, y] = [rows[low] as number, rows[high] as number]
        rows[low] = x * Math.cos(angle) - y * Math.sin(angle)
        rows[high] = y * Math.cos(angle) + x * Math.sin(angle)
      }
    }
  }
}

/** `rows` times the transpose of a weight `[outputs, inputs]`. */
function linear(rows: Float32Array, { shape, data }: Stored): Float32Array {
  const [outputs, inputs] = shape as readonly [number, number]
  const count = rows.length / inputs
  const out = new Float32Array(count * outputs)
  for (let row = 0; row < count; row++) {
    for (let output = 0; output < outputs; output++) {
      let sum = 0
      for (let at = 0; at < inputs; at++)
        sum += (rows[row * inputs + at] as number) * (data[output * inputs + at] as number)
      out[row * outputs + output] = sum
    }
  }
  return out
}

function add(target: Float32Array, more: Float32Array): void {
  for (const [at, value] of more.entries()) target[at] = (target[at] as number) + value
}
