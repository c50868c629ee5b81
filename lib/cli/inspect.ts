import type { NativeOnnxGraph, NativeOnnxInspection } from '#binding'

import { isKvTideError, type KvTideError } from '../border/errors.js'
import { binding } from '../loading/binding.js'
import { configBeside, configWindows, readText } from '../onnx/config.js'
import { plainPorts } from '../onnx/plain.js'
import type { Command } from './command.js'

export const inspect: Command = {
  usage: 'model.onnx [--config config.json] [--json]',
  help: `Prints the attention layers that kvtide/onnx finds in a graph: their form, heads, sizes, windows; its inputs and outputs, and where its weights lie. A graph that
is not recognised ends with 1, the node at which that shows, the reason, and whether it can be run as it is.

  --config   a config.json, which says which layers have a window. By default the one beside the model, or one folder up`,
  options: { config: { type: 'string' } },
  files: 1,
  async run({ values, files }) {
    const [model] = files as [string]
    const { file, windows } = declared(model, values['config'] as string | undefined)
    const graph = await binding.NativeOnnxGraph.open(model)
    try {
      const found = (await graph.rewrite(false, windows)).inspect()
      return { text: asText(found, file), json: asJson(found, file) }
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'UNSUPPORTED_GRAPH') throw error
      const { code, message, details } = error
      return { text: unrecognised(error, model, graph), json: { error: { code, message, details } }, code: 1 }
    }
  },
}

/** The config that counts, and the windows that it declares. One that was not asked for and is of a family that is not known says nothing. */
function declared(model: string, given: string | undefined): { file: string | undefined; windows: (number | null)[] | undefined } {
  const file = given ?? configBeside(model)
  if (file === undefined) return { file, windows: undefined }
  try {
    const windows = configWindows(readText('config', file), given !== undefined)
    return { file: windows === undefined ? undefined : file, windows }
  } catch (error) {
    if (!isKvTideError(error) || given !== undefined) throw error
    return { file: undefined, windows: undefined }
  }
}

function asJson(found: NativeOnnxInspection, config: string | undefined): object {
  const layers = found.layers.map(layer => ({ ...layer, sinks: layer.sinks === undefined ? undefined : Array.from(layer.sinks) }))
  return { config, ...found, layers, text: undefined }
}

function asText({ text }: NativeOnnxInspection, config: string | undefined): string {
  return `${text}\nwindows  ${config === undefined ? 'as the graph shows them: there is no config.json that says more' : `as ${config} declares them`}`
}

function unrecognised(error: KvTideError<'UNSUPPORTED_GRAPH'>, model: string, graph: NativeOnnxGraph): string {
  const { node, operator, reason } = error.details
  const rows = [['node', node], ['operator', operator], ['reason', reason], ['as it is', asItIs(graph)]] as const
  return [`${model} is not recognised`, ...rows.map(([name, value]) => `${name.padEnd(9)} ${value}`)].join('\n')
}

/** Whether a graph can be run with past and present, although its attentions are not recognised. */
function asItIs(graph: NativeOnnxGraph): string {
  try {
    plainPorts(graph)
    return 'it can be run with past and present'
  } catch (error) {
    if (!isKvTideError(error)) throw error
    return error.message
  }
}
