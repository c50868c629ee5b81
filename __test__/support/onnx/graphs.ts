// Graphs of the fixtures in onnxruntime-node, and their expected results.
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import * as ort from 'onnxruntime-node'

import { readSafetensors } from '../llama/safetensors.js'

const fixtures = new URL('../../fixtures/', import.meta.url)

/** The path of a graph: `llama/onnx`, `families/gemma2/builder`. */
export function graphFile(graph: string): string {
  return fileURLToPath(new URL(`${graph}/model.onnx`, fixtures))
}

/** Options for sessions of tests: one thread, which does not spin. */
export const quiet: ort.InferenceSession.SessionOptions = {
  intraOpNumThreads: 1,
  interOpNumThreads: 1,
  logSeverityLevel: 4,
  extra: { session: { intra_op: { allow_spinning: '0' } } },
}

export function openSession(graph: string): Promise<ort.InferenceSession> {
  return ort.InferenceSession.create(graphFile(graph), quiet)
}

interface Reference {
  readonly prompts: Readonly<Record<string, readonly number[]>>
  readonly greedy: Readonly<Record<string, readonly number[]>>
  logits(name: string): Float32Array
}

/** Results of transformers for a model: `llama`, `families/gemma2`. */
export function referenceOf(model: string): Reference {
  const { prompts, greedy } = JSON.parse(
    readFileSync(new URL(`${model}/references.json`, fixtures), 'utf8'),
  ) as Reference
  const tensors = readSafetensors(new URL(`${model}/references.safetensors`, fixtures))
  return {
    prompts,
    greedy,
    logits: name => {
      const found = tensors.get(name)
      if (found === undefined) throw new Error(`there are no logits ${name}`)
      return found.data
    },
  }
}

/** Returns the index of the largest number. */
export function argmax(row: ArrayLike<number>): number {
  let best = 0
  for (let place = 1; place < row.length; place++) if ((row[place] as number) > (row[best] as number)) best = place
  return best
}

function half(bits: number): number {
  const exponent = (bits >> 10) & 31
  const fraction = bits & 1023
  const size =
    exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? Infinity : (1024 + fraction) * 2 ** (exponent - 25)
  return bits >> 15 ? -size : size
}

/** Returns logits as floats: half-float graphs return them as bits, or as a `Float16Array` if the runtime has that type. */
export function floats({ type, data }: ort.Tensor): Float32Array {
  if (data instanceof Float32Array) return data
  if (type === 'float16') return Float32Array.from(data as Uint16Array, data instanceof Uint16Array ? half : Number)
  throw new Error(`logits are ${type}`)
}
