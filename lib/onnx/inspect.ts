import type { NativeOnnxGraph, NativeOnnxInspection } from '#binding'

import { isKvTideError, type KvTideError } from '../border/errors.js'
import { binding } from '../loading/binding.js'
import { configBeside, configWindows, readText } from './config.js'
import { plainPorts } from './plain.js'

/** `kvtide onnx inspect`: what is found in a graph, or at which node it is not recognised, and why. */

/** What was asked for. */
interface Inspect {
  readonly model: string
  readonly json: boolean
  readonly config: string | undefined
}

/** The arguments of `kvtide onnx inspect`; `undefined` for others. */
export function readInspect(args: readonly string[]): Inspect | undefined {
  const [group, command, ...rest] = args
  if (group !== 'onnx' || command !== 'inspect') return undefined
  let [model, config, json]: [string | undefined, string | undefined, boolean] = [undefined, undefined, false]
  while (rest.length > 0) {
    const next = rest.shift() as string
    if (next === '--json' && !json) json = true
    else if (next === '--config' && config === undefined && rest.length > 0) config = rest.shift()
    else if (!next.startsWith('-') && next !== '' && model === undefined) model = next
    else return undefined
  }
  return model === undefined ? undefined : { model, json, config }
}

/** Prints what is found, and answers the exit code: 1 for a graph that is refused. */
export async function inspect({ model, json, config }: Inspect): Promise<number> {
  try {
    const { file, windows } = declared(model, config)
    const graph = await binding.NativeOnnxGraph.open(model)
    try {
      const found = (await graph.rewrite(false, windows)).inspect()
      console.log(json ? asJson(found, file) : asText(found, file))
      return 0
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'UNSUPPORTED_GRAPH' || json) throw error
      console.error(unrecognised(error, model, graph))
      return 1
    }
  } catch (error) {
    if (!isKvTideError(error)) throw error
    if (json) console.log(JSON.stringify({ error: { code: error.code, message: error.message, details: error.details } }, undefined, 2))
    else console.error(`${model}: ${error.message}`)
    return 1
  }
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

function asJson(found: NativeOnnxInspection, config: string | undefined): string {
  const layers = found.layers.map(layer => ({ ...layer, sinks: layer.sinks === undefined ? undefined : Array.from(layer.sinks) }))
  return JSON.stringify({ config, ...found, layers, text: undefined }, undefined, 2)
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
