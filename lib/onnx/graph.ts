// The backend `graph`: the addon calls onnxruntime's library, and onnxruntime calls kvtide's attention as an operator of the rewritten graph. A step is one
// call of the addon, computed on another thread.
import type { NativeLogits, NativeOnnxGraph, NativeOnnxRewritten, NativeOnnxSession } from '#binding'

import { StepRun } from '../sequences/step-run.js'
import type { Backend, BackendForm, ModelStep } from './backend.js'
import { Crossings, type EncoderBeside } from './crossings.js'
import { embeddingsSession, graphSession } from './graph-session.js'
import type { SentTensor, SessionEncodings } from './sessions.js'

/** @internal The backend `graph`: one graph with kvtide's attention in it. A step is one call of the addon, on a thread of Node's pool. */
export class GraphBackend implements Backend {
  readonly name = 'graph'
  readonly positionRows: 1 | 3
  readonly #session: NativeOnnxSession
  readonly #embeddings: NativeOnnxSession | undefined
  readonly #crossings: Crossings | undefined

  private constructor(
    session: NativeOnnxSession,
    embeddings: NativeOnnxSession | undefined,
    positionRows: 1 | 3,
    crossings: Crossings | undefined,
  ) {
    this.#session = session
    this.#embeddings = embeddings
    this.positionRows = positionRows
    this.#crossings = crossings
  }

  static async of(
    graph: NativeOnnxGraph,
    rewritten: NativeOnnxRewritten,
    form: BackendForm,
    beside?: EncoderBeside,
  ): Promise<GraphBackend> {
    const { threads, embeddings, positionRows = 1 } = form
    const own = embeddings === undefined ? undefined : await embeddingsSession(embeddings.graph, threads)
    try {
      const embedded = embeddings?.names ?? []
      const session = await graphSession(graph, rewritten, { threads, embedded })
      const crossings = beside === undefined ? undefined : new Crossings(beside, form, rewritten)
      return new GraphBackend(session, own, positionRows, crossings)
    } catch (error) {
      own?.dispose()
      throw error
    }
  }

  async run(step: ModelStep): Promise<NativeLogits> {
    // The pages are lent from here on, however long an encoding takes.
    using run = StepRun.of(step.step)
    const crossed = this.#crossings?.of(step.sequences)
    try {
      const logits = await this.#compute(run, step, crossed && (await this.#kept(crossed.encodings)))
      crossed?.done()
      for (const number of this.#crossings?.forgotten() ?? []) this.#session.forgetEncoding(number)
      return logits
    } catch (error) {
      crossed?.failed()
      throw error
    }
  }

  /** Keeps the encodings that a step adds, and returns the number of each sequence's encoding. */
  async #kept(encodings: SessionEncodings): Promise<Uint32Array> {
    const crossings = this.#crossings as Crossings
    for (const number of encodings.forget) this.#session.forgetEncoding(number)
    for (const { number, states } of await crossings.rowsOf(encodings)) {
      const { data, frames, mask } = states
      await this.#session.keepEncoding(number, data as Float32Array, frames, crossings.sizes, mask)
    }
    return Uint32Array.from(encodings.numbers)
  }

  async #compute(
    run: StepRun,
    { offsets, ids, positions, rows, embeds }: ModelStep,
    numbers: Uint32Array | undefined,
  ): Promise<NativeLogits> {
    const given = { places: embeds?.places, embeds: embeds?.data, encodings: numbers, offsets }
    const logits = await this.#session.run(run.native, ids, positions, rows, this.#embeddings, given)
    try {
      run.end()
    } catch (error) {
      logits.dispose()
      throw error
    }
    return logits
  }

  encode(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor> {
    return (this.#crossings as Crossings).encode(inputs)
  }

  async dispose(): Promise<void> {
    this.#session.dispose()
    this.#embeddings?.dispose()
    await this.#crossings?.end()
  }
}
