// The model of a command: a graph, or a folder in which `--dtype` chooses one.
import { graphFile, readGraphDType } from '../onnx/model-folder.js'
import type { Call } from './command.js'

/** The options of commands that take a model, and their help. */
export const GRAPH = {
  options: { dtype: { type: 'string' } },
  help: '  --dtype    the graph of a folder, by its weights: f32, f16, q8, q4, q4f16, .. By default the one that `OnnxModel.load` takes',
} as const

/** The path of the graph that a call names. */
export function graphOf({ values, files }: Call): string {
  const dtype = values['dtype']
  return graphFile(files[0] as string, dtype === undefined ? undefined : readGraphDType('--dtype', dtype))
}
