import { type BackendName, OnnxModel, type OnnxModelOptions } from '../../../onnx.js'
import { references } from '../llama/references.js'

/** The logits of many rows, few and one: of all tokens of some prompts in one step, and of a token behind each, together and alone. */
export async function logitsOf(
  model: Uint8Array,
  backend: BackendName,
  threads: number,
  options: OnnxModelOptions = {},
): Promise<Float32Array[]> {
  const cache = { memoryBytes: 2 ** 23, blockSize: 4 }
  await using loaded = await OnnxModel.load(model, { ...options, backend, threads, cache })
  const entries = Object.values(references.prompts).map(tokens => ({ sequence: loaded.open(), tokens }))
  const all = await loaded.run(entries, { logits: 'all' })
  const behind = entries.map(({ sequence }) => ({ sequence, tokens: [5] }))
  return [...all, ...(await loaded.run(behind)), ...(await loaded.run(behind.slice(0, 1)))]
}
