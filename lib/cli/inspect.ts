// `kvtide inspect`: prints the attention layers that kvtide/onnx recognises in an ONNX graph, the backends that run it, and what would help the others. No session
// is made, and weights are not read.
import type { NativeOnnxGraph, NativeOnnxInspection } from '#binding'

import { isKvTideError, KvTideError } from '../errors/errors.js'
import { binding } from '../loading/binding.js'
import { readDeclared } from '../onnx/declared.js'
import { openEmbeddings } from '../onnx/embeddings.js'
import { refusing } from '../onnx/prepared.js'
import { backendsAnswer } from './backends.js'
import { GRAPH, graphOf } from './graph-of.js'
import type { Command } from './command.js'
import { otherFormat } from './file-format.js'

export const inspect: Command = {
  usage: 'model.onnx [--dtype q4] [--config config.json] [--json]',
  help: `Prints the attention layers that kvtide/onnx finds in a graph: their form, heads, sizes, windows; its inputs and outputs, and the files of its weights.
Then a line for each backend (graph, parts, plain): it runs the graph, or it refuses it, with the node, the operator, the reason, and what would help.
If a graph is not recognised, the exit code is 1.

${GRAPH.help}
  --config   a config.json that declares which layers have a window. By default the one next to the model, or one folder up, then genai_config.json there`,
  options: { config: { type: 'string' }, ...GRAPH.options },
  files: 1,
  async run(call) {
    const model = graphOf(call)
    const given = call.values['config'] as string | undefined
    const { windowsFile: file, windows } = readDeclared(model, given)
    const graph = await opened(model)
    const { value: found, refusal } = await refusing(async () => {
      const names = (await openEmbeddings(graph))?.names ?? []
      return (await graph.rewrite(false, windows, [...names])).inspect()
    })
    if (refusal !== undefined && refusal.code !== 'UNSUPPORTED_GRAPH') throw refusal
    const { text, json } = await backendsAnswer(model, given)
    if (found !== undefined)
      return { text: `${asText(found, file)}\n${text}`, json: { model, ...asJson(found, file), backends: json } }
    const { code, message, details } = refusal
    return {
      text: `${model} is not recognised\n${text}`,
      json: { model, error: { code, message, details }, backends: json },
      code: 1,
    }
  },
}

/** Opens the graph in a file. If the file has another known format, the error names that format. */
async function opened(model: string): Promise<NativeOnnxGraph> {
  try {
    return await binding.NativeOnnxGraph.open(model)
  } catch (error) {
    const other = isKvTideError(error) && error.code === 'INVALID_GRAPH' ? otherFormat(model) : undefined
    if (other === undefined) throw error
    const expected = `an ONNX graph: ${other.advice}`
    throw new KvTideError(
      'INVALID_GRAPH',
      `${model} is ${other.name}, expected ${expected}`,
      { expected, file: model },
      { cause: error },
    )
  }
}

function asJson(found: NativeOnnxInspection, config: string | undefined): object {
  const layers = found.layers.map(layer => ({
    ...layer,
    sinks: layer.sinks === undefined ? undefined : Array.from(layer.sinks),
    alibiSlopes: layer.alibiSlopes === undefined ? undefined : Array.from(layer.alibiSlopes),
  }))
  return { config, ...found, layers, text: undefined }
}

function asText({ text }: NativeOnnxInspection, config: string | undefined): string {
  return `${text}\nwindows  ${config === undefined ? 'as the graph shows them: no config declares any' : `as ${config} declares them`}`
}
