// Opens unmodified graphs in sessions of onnxruntime-node, and describes their inputs and outputs as such a session does.
import { statSync } from 'node:fs'

import type { NativeOnnxGraph } from '#binding'

import { checkWhole, placed } from './graph-session.js'
import type { OnnxInput, OnnxSession } from './ports.js'
import { renamedWeights } from './renamed-weights.js'
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

/** @internal Opens a graph, with a suffix behind its bytes. Its weights stay in its files if the runtime takes a folder; otherwise they are part of the bytes. */
export async function openGraph(
  graph: NativeOnnxGraph,
  { runtime, threads, takesFolder }: Pick<SessionsOptions, 'runtime' | 'threads' | 'takesFolder'>,
  module: OnnxRuntimeModule,
  calling: RuntimeCall,
  suffix?: Uint8Array,
): Promise<RuntimeSession> {
  const at = takesFolder ? placed(graph) : undefined
  if (at === undefined && graph.path !== null)
    checkWhole(
      graph.externalFiles().reduce((sum, { bytes }) => sum + bytes, statSync(graph.path).size),
      { version: runtime.version, takesFolder },
    )
  const own = renamedWeights(await graph.model(at?.name, at === undefined), at?.names)
  const bytes = suffix === undefined ? own : Buffer.concat([own, suffix])
  const weights = at === undefined ? {} : { model_external_initializers_file_folder_path: at.folder }
  const options = {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    logSeverityLevel: 4,
    extra: { session: { intra_op: { allow_spinning: '1' }, force_spinning_stop: '1', ...weights } },
  }
  return ran(undefined, () => calling(() => module.InferenceSession.create(bytes, options)))
}
