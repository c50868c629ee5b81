import type { GenerateOptions, OnnxModel, OnnxSequence } from '../../../onnx.js'
import { references } from '../llama/references.js'

/** A prompt of the references, and the 64 tokens that follow it. */
export const promptOf = (name: string): number[] => [...(references.prompts[name] as readonly number[])]
export const greedyOf = (name: string): number[] => [...(references.greedy[name] as readonly number[])]

/** Returns all tokens of a generation. */
export async function read(
  model: OnnxModel,
  sequence: OnnxSequence,
  maxTokens: number,
  options: GenerateOptions = {},
): Promise<number[]> {
  const tokens: number[] = []
  for await (const token of model.generate(sequence, { maxTokens, ...options })) tokens.push(token)
  return tokens
}
