import type { Llama, LayerAttention } from './llama.js'

/** Greedy tokens, and the logits from which each was chosen. */
export interface Decoded {
  readonly tokens: readonly number[]
  readonly logits: Float32Array
}

/** Computes a prompt in chunks, and returns the logits of all of its tokens. */
export function prefill(
  model: Llama,
  prompt: readonly number[],
  attention: LayerAttention,
  chunk: number = prompt.length,
  first = 0,
): Float32Array {
  const logits = new Float32Array(prompt.length * model.config.vocab_size)
  for (let from = 0; from < prompt.length; from += chunk) {
    const tokens = prompt.slice(from, from + chunk)
    logits.set(
      model.forward(
        tokens,
        tokens.map((_, at) => first + from + at),
        attention,
      ),
      from * model.config.vocab_size,
    )
  }
  return logits
}

/** Continues greedily from the logits of the last token, which is at position `last`. */
export function decode(
  model: Llama,
  logits: Float32Array,
  last: number,
  count: number,
  attention: LayerAttention,
): Decoded {
  const { vocab_size: vocabulary } = model.config
  const rows = new Float32Array(count * vocabulary)
  const tokens: number[] = []
  let row = logits.subarray(logits.length - vocabulary)
  for (let step = 0; step < count; step++) {
    rows.set(row, step * vocabulary)
    tokens.push(best(row))
    if (step + 1 < count) row = model.forward([tokens[step] as number], [last + 1 + step], attention)
  }
  return { tokens, logits: rows }
}

/** Returns the index of the largest number. */
export function best(row: Float32Array): number {
  return row.reduce((found, value, at) => (value > (row[found] as number) ? at : found), 0)
}
