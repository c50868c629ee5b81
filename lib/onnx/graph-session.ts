import { realpathSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'

import type { NativeOnnxGraph, NativeOnnxRewritten, NativeOnnxSession } from '#binding'

import { KvTideError } from '../border/errors.js'
import { binding } from '../loading/binding.js'
import { onnxLibrary } from './runtime.js'

/** The most bytes that protobuf can hold. */
const MODEL_BYTES_MAX = 2 ** 31 - 1

/** @internal How a session of one graph is made. */
export interface GraphSessionOptions {
  /** How many threads a step uses, the one that it runs on among them. */
  readonly threads: number
  /** Whether threads without work wait for it busily. */
  readonly spin?: boolean
}

/** A model whose weights can be references: its folder and its name, where links lead to. Libraries follow no links. */
function placed(graph: NativeOnnxGraph): { readonly folder: string; readonly name: string } | undefined {
  if (graph.path === null) return undefined
  const file = realpathSync(graph.path)
  const [folder, near] = [dirname(file), dirname(graph.path)]
  const isBeside = graph.externalFiles().every(other => realpathSync(join(near, other.file)) === join(folder, other.file))
  return isBeside ? { folder, name: basename(file) } : undefined
}

function tooLarge(bytes: number, remedy: string): KvTideError {
  const reason = `it takes models of at most 2 GiB here, this one has ${bytes} bytes of weights: ${remedy}`
  return new KvTideError('RUNTIME_UNAVAILABLE', `onnxruntime-node cannot be used: ${reason}`, { runtime: 'onnxruntime-node', reason })
}

/**
 * @internal A session of a rewritten graph, in the library that onnxruntime-node has loaded.
 *
 * A model that lies in a file is given as its graph alone: weights are references into that file, and into those beside it, which the
 * library maps. Libraries before 1.21 know no folder for them, and links to files of other names are not followed: then the library gets
 * the whole model.
 */
export async function graphSession(graph: NativeOnnxGraph, rewritten: NativeOnnxRewritten, options: GraphSessionOptions): Promise<NativeOnnxSession> {
  const { file, version, takesFolder } = onnxLibrary()
  const { threads, spin = false } = options
  const at = takesFolder ? placed(graph) : undefined
  if (at !== undefined) return binding.NativeOnnxSession.create(file, await rewritten.model(at.name), { threads, spin, folder: at.folder })
  const { inlineBytes, externalBytes } = rewritten.inspect()
  if (inlineBytes + externalBytes > MODEL_BYTES_MAX) {
    throw tooLarge(inlineBytes + externalBytes, takesFolder ? 'put its files beside each other, without links' : `update onnxruntime-node, which is ${version}, to 1.21 or later`)
  }
  const model = await rewritten.model(undefined, externalBytes > 0)
  return binding.NativeOnnxSession.create(file, model, { threads, spin })
}
