import { OnnxModel } from '../../../onnx.js'
import { references } from '../llama/references.js'

/** The logits of many rows, few and one: of all tokens of some prompts in one step, and of a token behind each, together and alone. */
export async function logitsOf(
  model: Uint8Array,
  backend: 'graph' | 'parts',
  threads: number,
): Promise<Float32Array[]> {
  await using loaded = await OnnxModel.load(model, { backend, threads, cache: { memoryBytes: 2 ** 23, blockSize: 4 } })
  const entries = Object.values(references.prompts).map(tokens => ({ sequence: loaded.open(), tokens }))
  const all = await loaded.run(entries, { logits: 'all' })
  const behind = entries.map(({ sequence }) => ({ sequence, tokens: [5] }))
  return [...all, ...(await loaded.run(behind)), ...(await loaded.run(behind.slice(0, 1)))]
}
