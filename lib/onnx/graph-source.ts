// Opens graphs that are given as the path of a file or as bytes.
import type { NativeOnnxGraph } from '#binding'

import { KvTideError } from '../errors/errors.js'
import { binding } from '../loading/binding.js'

/** The precision of products with int4 weights: 4 for activations in int8, 0 for floats. */
export type AccuracyLevel = 0 | 4

/** @internal Opens a graph. Weights in other files are refused if the model is given as bytes: they would be looked for in the working folder. */
export async function openSource(source: string | Uint8Array, accuracyLevel?: AccuracyLevel): Promise<NativeOnnxGraph> {
  if (typeof source === 'string') return binding.NativeOnnxGraph.open(source, accuracyLevel)
  const graph = await binding.NativeOnnxGraph.of(source, accuracyLevel)
  const [beside] = graph.externalFiles()
  if (beside === undefined) return graph
  const { file } = beside
  const expected = 'the path of the model instead of its bytes, from which weights cannot be located'
  throw new KvTideError('INVALID_GRAPH', `its weights are in ${file}, expected ${expected}`, { file, expected })
}
