import { join } from 'node:path'

import type { TransformersTensor } from '../../../lib/transformers/package.js'
import { keptFolder } from '../folder.js'
import { type Model, transformers } from './package.js'
import { writeModel } from './stand-in.js'

const { env } = transformers
Object.assign(env, { allowRemoteModels: false, localModelPath: keptFolder() })

/** Loads a model of the fixtures with transformers.js. */
export async function loadModel(graph = 'llama/onnx'): Promise<Model> {
  const name = graph.replaceAll('/', '-')
  writeModel(join(env.localModelPath, name), graph)
  return transformers.AutoModelForCausalLM.from_pretrained(name, { dtype: 'fp32' })
}

/** One row of ids, in a tokenizer's form. */
export const row = (ids: readonly number[]): TransformersTensor =>
  new transformers.Tensor('int64', BigInt64Array.from(ids, BigInt), [1, ids.length])

/** The ids of a result. */
export const idsOf = (result: unknown): number[] =>
  Array.from((result as TransformersTensor).data as BigInt64Array, Number)
