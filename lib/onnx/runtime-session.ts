// Opens unmodified graphs in sessions of onnxruntime-node, and describes their inputs and outputs as such a session does.
import { basename, dirname } from 'node:path'

import type { NativeOnnxGraph } from '#binding'

import type { OnnxInput, OnnxSession } from './ports.js'
import { type OnnxRuntimeModule, ran, type RuntimeSession } from './runtime.js'
import type { RuntimeCall, SessionsOptions } from './sessions.js'

const ELEMENTS: Readonly<Record<string, string>> = {
  f32: 'float32',
  f16: 'float16',
  bf16: 'bfloat16',
  i8: 'int8',
  u8: 'uint8',
  i64: 'int64',
  i32: 'int32',
}

/** @internal The inputs and outputs of a graph, as its session will have them. */
export function sessionOf(graph: NativeOnnxGraph): OnnxSession & { readonly inputMetadata: readonly OnnxInput[] } {
  const inputMetadata = graph.inputs().map(({ name, element, dims }): OnnxInput => {
    const shape = dims.map(dim => (/^\d+$/.test(dim) ? Number(dim) : dim))
    return { name, type: ELEMENTS[element] ?? element, shape }
  })
  return {
    inputNames: inputMetadata.map(input => input.name),
    outputNames: graph.outputs().map(output => output.name),
    inputMetadata,
  }
}

/**
 * @internal Opens a graph, with a suffix behind its bytes. Its weights stay in its files if the runtime takes a folder; if it does not, `embedsWeights` puts those of
 * other files into the bytes.
 */
export async function openGraph(
  graph: NativeOnnxGraph,
  { threads, takesFolder }: Pick<SessionsOptions, 'threads' | 'takesFolder'>,
  module: OnnxRuntimeModule,
  calling: RuntimeCall,
  { suffix, embedsWeights = false }: { readonly suffix?: Uint8Array; readonly embedsWeights?: boolean } = {},
): Promise<RuntimeSession> {
  const file = takesFolder ? graph.path : null
  const own = await graph.model(file === null ? undefined : basename(file), embedsWeights && file === null)
  const bytes = suffix === undefined ? own : Buffer.concat([own, suffix])
  const weights = file === null ? {} : { model_external_initializers_file_folder_path: dirname(file) }
  const options = {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    logSeverityLevel: 4,
    extra: { session: { intra_op: { allow_spinning: '1' }, force_spinning_stop: '1', ...weights } },
  }
  return ran(undefined, () => calling(() => module.InferenceSession.create(bytes, options)))
}
