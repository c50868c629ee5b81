// Sessions of the backend `graph`: passes the rewritten graph and its weights to the onnxruntime library.
import { realpathSync, statSync } from 'node:fs'
import { dirname, join, relative, sep } from 'node:path'

import type { NativeOnnxGraph, NativeOnnxRewritten, NativeOnnxSession } from '#binding'

import { KvTideError } from '../errors/errors.js'
import { binding } from '../loading/binding.js'
import { renamedWeights } from './renamed-weights.js'
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

/** @internal The place of a model whose weights stay in its files. */
export interface Place {
  readonly folder: string
  /** The model's own file, below the folder. */
  readonly name: string
  /** The names of other files below the folder, by those that the graph has for them, where the two differ. */
  readonly names: ReadonlyMap<string, string>
}

/**
 * @internal The place of a model whose weights can be references, with links resolved: onnxruntime refuses links that lead out of a folder, as those of the Hub's cache
 * do. `undefined` if its files are on several drives.
 */
export function placed(graph: NativeOnnxGraph): Place | undefined {
  if (graph.path === null) return undefined
  const near = dirname(graph.path)
  const own = realpathSync(graph.path)
  const others = graph.externalFiles().map(({ file }) => ({ file, at: realpathSync(join(near, file)) }))
  const folder = folderOver([own, ...others.map(({ at }) => at)])
  if (folder === undefined) return undefined
  const nameOf = (at: string): string => relative(folder, at).replaceAll(sep, '/')
  const names = others.map(({ file, at }) => [file, nameOf(at)] as const).filter(([file, name]) => file !== name)
  const place = { folder, name: nameOf(own), names: new Map(names) }
  return place.names.has(place.name) ? undefined : place
}

/** The innermost folder that files have in common. */
function folderOver(files: readonly string[]): string | undefined {
  let folder = dirname(files[0] as string)
  while (!files.every(file => file.startsWith(folder.endsWith(sep) ? folder : folder + sep))) {
    const above = dirname(folder)
    if (above === folder) return undefined
    folder = above
  }
  return folder
}

/** @internal Refuses a model that a library cannot take in one piece. */
export function checkWhole(
  bytes: number,
  { version, takesFolder }: { readonly version: string; readonly takesFolder: boolean },
): void {
  if (bytes <= MODEL_BYTES_MAX) return
  const remedy = takesFolder
    ? 'put its files into one folder'
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
 * Libraries before 1.21 do not take a folder for such references: the whole model is passed.
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
  if (at !== undefined) {
    const placedModel = renamedWeights(await rewritten.model(at.name), at.names)
    return binding.NativeOnnxSession.create(file, placedModel, { ...form, folder: at.folder })
  }
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
  const model = renamedWeights(await graph.model(at?.name, at === undefined), at?.names)
  const folder = at === undefined ? {} : { folder: at.folder }
  return binding.NativeOnnxSession.create(file, model, { threads, embeds: true, ...folder })
}
