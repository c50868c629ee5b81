// The backend `graph`: the addon calls onnxruntime's library, and onnxruntime calls kvtide's attention as an operator of the rewritten graph. A step is one
// call of the addon, computed on another thread.
import type { NativeLogits, NativeOnnxGraph, NativeOnnxRewritten, NativeOnnxSession } from '#binding'

import { StepRun } from '../sequences/step-run.js'
import type { Backend, ModelStep } from './backend.js'
import { graphSession, type GraphSessionOptions } from './graph-session.js'

/** @internal The backend `graph`: one graph with kvtide's attention in it. A step is one call of the addon, on a thread of Node's pool. */
export class GraphBackend implements Backend {
  readonly name = 'graph'
  readonly #session: NativeOnnxSession

  private constructor(session: NativeOnnxSession) {
    this.#session = session
  }

  static async of(
    graph: NativeOnnxGraph,
    rewritten: NativeOnnxRewritten,
    options: GraphSessionOptions,
  ): Promise<GraphBackend> {
    return new GraphBackend(await graphSession(graph, rewritten, options))
  }

  async run({ step, ids, positions, rows }: ModelStep): Promise<NativeLogits> {
    using run = StepRun.of(step)
    const logits = await this.#session.run(run.native, ids, positions, rows)
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
    return Promise.resolve()
  }
}
