// Sessions of the backend `graph`: passes the rewritten graph and its weights to the onnxruntime library.
import { realpathSync, statSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'

import type { NativeOnnxGraph, NativeOnnxRewritten, NativeOnnxSession } from '#binding'

import { KvTideError } from '../errors/errors.js'
import { binding } from '../loading/binding.js'
import { onnxLibrary } from './runtime.js'

/** The maximum number of bytes of a protobuf message. */
const MODEL_BYTES_MAX = 2 ** 31 - 1

/** @internal Options of a session. */
export interface GraphSessionOptions {
  /** The number of threads that a step uses, including the one that it runs on. */
  readonly threads: number
  /** The inputs that come from the model of its embeddings. */
  readonly embedded?: readonly string[]
}

/** @internal The folder and the name of a file. */
export interface Place {
  readonly folder: string
  readonly name: string
}

/**
 * @internal The place of a model whose weights can be references, with links resolved: onnxruntime does not follow links out of a folder. `undefined` if its weights
 * have other names, or are in other folders, than the graph says.
 */
export function placed(graph: NativeOnnxGraph): Place | undefined {
  if (graph.path === null) return undefined
  const file = realpathSync(graph.path)
  const [folder, near] = [dirname(file), dirname(graph.path)]
  const isBeside = graph
    .externalFiles()
    .every(other => realpathSync(join(near, other.file)) === join(folder, other.file))
  return isBeside ? { folder, name: basename(file) } : undefined
}

/** @internal Refuses a model that a library cannot take in one piece. */
export function checkWhole(
  bytes: number,
  { version, takesFolder }: { readonly version: string; readonly takesFolder: boolean },
): void {
  if (bytes <= MODEL_BYTES_MAX) return
  const remedy = takesFolder
    ? 'put its files into one folder, without links'
    : `update onnxruntime-node, which is ${version}, to 1.21 or later`
  const reason = `it takes models of at most 2 GiB in one piece, but this one has ${bytes} bytes of weights: ${remedy}`
  throw new KvTideError('RUNTIME_UNAVAILABLE', `onnxruntime-node cannot be used: ${reason}`, {
    runtime: 'onnxruntime-node',
    reason,
  })
}

/**
 * @internal Makes a session of a rewritten graph, in the library that onnxruntime-node has loaded.
 *
 * If the model is in a file, only its graph is passed. Weights are references into that file and its neighbours, which the library maps.
 * Libraries before 1.21 do not take a folder for such references, and links to files with other names are not followed. In these cases the
 * whole model is passed.
 */
export async function graphSession(
  graph: NativeOnnxGraph,
  rewritten: NativeOnnxRewritten,
  options: GraphSessionOptions,
): Promise<NativeOnnxSession> {
  const library = onnxLibrary()
  const { file, takesFolder } = library
  const { threads, embedded = [] } = options
  const form = { threads, embedded: [...embedded] }
  const at = takesFolder ? placed(graph) : undefined
  if (at !== undefined)
    return binding.NativeOnnxSession.create(file, await rewritten.model(at.name), { ...form, folder: at.folder })
  const { inlineBytes, externalBytes } = rewritten.inspect()
  checkWhole(inlineBytes + externalBytes, library)
  const model = await rewritten.model(undefined, externalBytes > 0)
  return binding.NativeOnnxSession.create(file, model, form)
}

/** @internal Makes a session of the model of a decoder's embeddings, as {@link graphSession} does. */
export async function embeddingsSession(graph: NativeOnnxGraph, threads: number): Promise<NativeOnnxSession> {
  const library = onnxLibrary()
  const { file, takesFolder } = library
  const at = takesFolder ? placed(graph) : undefined
  // A model that was given as bytes has no other files.
  if (at === undefined && graph.path !== null)
    checkWhole(
      graph.externalFiles().reduce((sum, { bytes }) => sum + bytes, statSync(graph.path).size),
      library,
    )
  const model = await graph.model(at?.name, at === undefined)
  const folder = at === undefined ? {} : { folder: at.folder }
  return binding.NativeOnnxSession.create(file, model, { threads, embeds: true, ...folder })
}
