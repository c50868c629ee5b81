import { attend, type HostTensor } from '../../../index.js'
import { narrow } from '../half.js'
import { best } from '../llama/decoder.js'
import type { LayerAttention, Llama } from '../llama/llama.js'
import { distance, references } from '../llama/references.js'
import { exact, pagesFor, type Form } from './form.js'

/** The reference model over pages of a form, compared with the model over f32 pages. */
export interface Agreement {
  /** The number of reference tokens that were compared, and of those that get the largest logit. */
  readonly tokens: number
  readonly agreed: number
  /** The largest difference of a logit. */
  readonly logitMax: number
}

/** Attention over the pages of a sequence. The tokens of each call are appended to it. */
function overPages(model: Llama, form: Form, tokens: number): { attention: LayerAttention; dispose: () => void } {
  const {
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    num_hidden_layers: numLayers,
  } = model.config
  const cache = pagesFor(form, tokens, { numLayers, numKvHeads: kvHeads, headDim })
  const { dtype } = cache
  const sequence = cache.createSequence()
  const written = Array.from({ length: numLayers }, () => 0)
  const attention: LayerAttention = (layer, q, k, v) => {
    const count = q.length / heads / headDim
    const rows = (data: Float32Array): HostTensor =>
      ({ data: narrow(dtype, data), shape: [count, kvHeads, headDim], dtype, layout: 'bshd' }) as HostTensor
    cache.writeTokens(sequence, layer, written[layer] as number, rows(k), rows(v))
    written[layer] = (written[layer] as number) + count
    const kv = { cache, layer, blockTables: blocks, lengths: Int32Array.of(written[layer]) }
    return attend({ data: q, shape: [count, heads, headDim] }, kv, { qOffsets: [0, count] }).out.toFloat32Array()
  }
  // The only sequence of a cache takes its blocks in order.
  const blocks = Int32Array.from({ length: cache.totalCount }, (_, block) => block)
  return { attention, dispose: () => cache.dispose() }
}

/** The logits of each token of a continuation, which is followed regardless of the model's choice. */
function forced(model: Llama, form: Form, prompt: readonly number[], continuation: readonly number[]): Float32Array[] {
  const { attention, dispose } = overPages(model, form, prompt.length + continuation.length)
  const positions = prompt.map((_, at) => at)
  const rows: Float32Array[] = [model.forward(prompt, positions, attention).slice(-model.config.vocab_size)]
  for (const [step, token] of continuation.slice(0, -1).entries())
    rows.push(model.forward([token], [prompt.length + step], attention))
  dispose()
  return rows
}

/** The agreement of every form along the reference continuations of these prompts, by name. */
export function agreements(
  model: Llama,
  forms: readonly Form[],
  prompts: readonly string[],
): ReadonlyMap<string, Agreement> {
  const sums = new Map(forms.map(({ name }) => [name, { tokens: 0, agreed: 0, logitMax: 0 }]))
  for (const name of prompts) {
    const [prompt, continuation] = [
      references.prompts[name] as readonly number[],
      references.greedy[name] as readonly number[],
    ]
    const wanted = forced(model, exact, prompt, continuation)
    for (const form of forms) {
      const sum = sums.get(form.name) as { tokens: number; agreed: number; logitMax: number }
      for (const [step, logits] of forced(model, form, prompt, continuation).entries()) {
        sum.tokens += 1
        sum.agreed += best(logits) === continuation[step] ? 1 : 0
        sum.logitMax = Math.max(sum.logitMax, distance(logits, wanted[step] as Float32Array))
      }
    }
  }
  return sums
}

/** The median gap between the best two logits over all tokens, and the largest logit. */
export function logitScale(
  model: Llama,
  prompts: readonly string[],
): { readonly gap: number; readonly largest: number } {
  const gaps: number[] = []
  let largest = 0
  for (const name of prompts) {
    for (const logits of forced(
      model,
      exact,
      references.prompts[name] as readonly number[],
      references.greedy[name] as readonly number[],
    )) {
      const sorted = logits.toSorted()
      gaps.push((sorted.at(-1) as number) - (sorted.at(-2) as number))
      largest = logits.reduce((most, logit) => Math.max(most, Math.abs(logit)), largest)
    }
  }
  return { gap: gaps.toSorted((one, other) => one - other)[Math.floor(gaps.length / 2)] as number, largest }
}
