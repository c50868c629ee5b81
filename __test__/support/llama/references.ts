import { readFileSync } from 'node:fs'

import { folder } from './llama.js'
import { readSafetensors } from './safetensors.js'

interface References {
  readonly prompts: Readonly<Record<string, readonly number[]>>
  readonly greedy: Readonly<Record<string, readonly number[]>>
  readonly batch_left_padded: {
    readonly order: readonly string[]
    readonly input_ids: readonly (readonly number[])[]
    readonly attention_mask: readonly (readonly number[])[]
    readonly position_ids: readonly (readonly number[])[]
    readonly greedy: readonly (readonly number[])[]
  }
  readonly masked: Readonly<
    Record<string, { readonly window: number; readonly sinks: number; readonly greedy: readonly number[] }>
  >
}

/** The model's expected results. */
export const references: References = JSON.parse(readFileSync(new URL('references.json', folder), 'utf8')) as References

const logits = readSafetensors(new URL('references.safetensors', folder))

/** Returns expected logits. */
export function referenceLogits(name: string): Float32Array {
  const found = logits.get(name)
  if (found === undefined) throw new Error(`there are no logits ${name}`)
  return found.data
}

/** The largest difference between two rows of logits. */
export function distance(found: Float32Array, wanted: Float32Array): number {
  return found.length === wanted.length
    ? found.reduce((most, value, at) => Math.max(most, Math.abs(value - (wanted[at] as number))), 0)
    : Infinity
}
