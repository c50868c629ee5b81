// The backend `graph`: the addon calls onnxruntime's library, and onnxruntime calls kvtide's attention as an operator of the rewritten graph. A step is one
// call of the addon, computed on another thread.
import type { NativeLogits, NativeOnnxGraph, NativeOnnxRewritten, NativeOnnxSession } from '#binding'

import { StepRun } from '../sequences/step-run.js'
import type { Backend, BackendForm, ModelStep } from './backend.js'
import { embeddingsSession, graphSession } from './graph-session.js'

/** @internal The backend `graph`: one graph with kvtide's attention in it. A step is one call of the addon, on a thread of Node's pool. */
export class GraphBackend implements Backend {
  readonly name = 'graph'
  readonly positionRows: 1 | 3
  readonly #session: NativeOnnxSession
  readonly #embeddings: NativeOnnxSession | undefined

  private constructor(session: NativeOnnxSession, embeddings: NativeOnnxSession | undefined, positionRows: 1 | 3) {
    this.#session = session
    this.#embeddings = embeddings
    this.positionRows = positionRows
  }

  static async of(
    graph: NativeOnnxGraph,
    rewritten: NativeOnnxRewritten,
    { threads, embeddings, positionRows = 1 }: BackendForm,
  ): Promise<GraphBackend> {
    const own = embeddings === undefined ? undefined : await embeddingsSession(embeddings.graph, threads)
    try {
      const embedded = embeddings?.names ?? []
      return new GraphBackend(await graphSession(graph, rewritten, { threads, embedded }), own, positionRows)
    } catch (error) {
      own?.dispose()
      throw error
    }
  }

  async run({ step, ids, positions, rows, embeds }: ModelStep): Promise<NativeLogits> {
    using run = StepRun.of(step)
    const own = this.#embeddings
    const given = embeds === undefined ? undefined : ([embeds.places, embeds.data] as [Int32Array, Float32Array])
    const logits = await this.#session.run(run.native, ids, positions, rows, own, given)
    try {
      run.end()
    } catch (error) {
      logits.dispose()
      throw error
    }
    return logits
  }

  dispose(): Promise<void> {
    this.#session.dispose()
    this.#embeddings?.dispose()
    return Promise.resolve()
  }
}
