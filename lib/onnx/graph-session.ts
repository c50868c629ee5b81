import { basename, dirname } from 'node:path'

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

/**
 * @internal A session of a rewritten graph, in the library that onnxruntime-node has loaded.
 *
 * A model that lies in a file is given as its graph alone: weights are references into that file, and into those beside it, which the
 * library maps. Libraries before 1.21 know no folder for them, so they get the whole model.
 */
export async function graphSession(graph: NativeOnnxGraph, rewritten: NativeOnnxRewritten, options: GraphSessionOptions): Promise<NativeOnnxSession> {
  const { file, version, takesFolder } = onnxLibrary()
  const { threads, spin = false } = options
  if (graph.path !== null && takesFolder) {
    const model = await rewritten.model(basename(graph.path))
    return binding.NativeOnnxSession.create(file, model, { threads, spin, folder: dirname(graph.path) })
  }
  const { inlineBytes, externalBytes } = rewritten.inspect()
  if (!takesFolder && inlineBytes + externalBytes > MODEL_BYTES_MAX) {
    const reason = `version ${version} takes models of at most 2 GiB here, this one has ${inlineBytes + externalBytes} bytes of weights: update onnxruntime-node to 1.21 or later`
    throw new KvTideError('RUNTIME_UNAVAILABLE', `onnxruntime-node cannot be used: ${reason}`, { runtime: 'onnxruntime-node', reason })
  }
  const model = await rewritten.model(undefined, externalBytes > 0)
  return binding.NativeOnnxSession.create(file, model, { threads, spin })
}
