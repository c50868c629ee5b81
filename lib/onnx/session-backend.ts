// The backends `parts` and `plain`: both send each step to a session thread, and differ only in the sessions there.
import type { NativeLogits, NativeOnnxGraph, NativeOnnxRewritten } from '#binding'

import { binding } from '../loading/binding.js'
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import { StepRun } from '../sequences/step-run.js'
import type { Backend, BackendForm, BackendName, ModelStep } from './backend.js'
import { Crossings, type EncoderBeside } from './crossings.js'
import { placed } from './graph-session.js'
import { KeptPresents } from './kept-presents.js'
import { lost, opened } from './opened.js'
import type { SessionHost } from './session-host.js'
import type { SentTensor, SessionEncodings } from './sessions.js'

/**
 * @internal The backends `parts` and `plain`: a model in sessions of onnxruntime-node. A step is one message to the session thread, which takes
 * over the step's run and computes all of it.
 */
export class SessionBackend implements Backend {
  readonly name: BackendName
  readonly positionRows: 1 | 3
  readonly #host: SessionHost
  readonly #presents: KeptPresents | undefined
  readonly #crossings: Crossings | undefined

  private constructor(
    name: BackendName,
    host: SessionHost,
    { positionRows = 1 }: BackendForm,
    { presents, crossings }: { readonly presents?: KeptPresents; readonly crossings?: Crossings | undefined },
  ) {
    this.name = name
    this.positionRows = positionRows
    this.#host = host
    this.#presents = presents
    this.#crossings = crossings
    lost.register(this, host, this)
  }

  get isPruned(): boolean {
    return this.#host.isPruned
  }

  /** Makes the backend `parts`. */
  static async parts(
    graph: NativeOnnxGraph,
    rewritten: NativeOnnxRewritten,
    form: BackendForm,
    beside?: EncoderBeside,
  ): Promise<SessionBackend> {
    const crossings = beside === undefined ? undefined : new Crossings(beside, form, rewritten)
    const host = await opened(rewritten.share(), form, (number, common) => ({
      kind: 'parts',
      rewritten: number,
      at: placed(graph),
      ...common,
    }))
    return new SessionBackend('parts', host, form, { crossings })
  }

  /** Makes the backend `plain`, over a cache with the graph's layers. A decoder with an encoder has a cross cache, and perhaps the graph of the encoder. */
  static async plain(
    graph: NativeOnnxGraph,
    cache: PagedKvCache,
    form: BackendForm,
    beside?: EncoderBeside,
  ): Promise<SessionBackend> {
    const { groups, dtype, keyFormat, valueFormat } = cache
    const facts = { groups: groups.map(group => ({ ...group })), dtype, keyFormat, valueFormat }
    const host = await opened(graph.share(), form, (number, common) => ({
      kind: 'plain',
      graph: number,
      cache: facts,
      ...common,
    }))
    const crossings = beside === undefined ? undefined : new Crossings(beside, form)
    return new SessionBackend('plain', host, form, { presents: new KeptPresents(), crossings })
  }

  async run(step: ModelStep): Promise<NativeLogits> {
    using run = StepRun.of(step.step)
    const crossed = this.#crossings?.of(step.sequences)
    try {
      const logits = await this.#compute(run, step, crossed && (await this.#sent(crossed.encodings)))
      crossed?.done()
      return logits
    } catch (error) {
      crossed?.failed()
      throw error
    }
  }

  async #sent(encodings: SessionEncodings): Promise<SessionEncodings> {
    return { ...encodings, added: await (this.#crossings as Crossings).rowsOf(encodings) }
  }

  async #compute(run: StepRun, step: ModelStep, encodings: SessionEncodings | undefined): Promise<NativeLogits> {
    const { offsets, ids, positions, rows, embeds } = step
    const presents = this.#presents?.of(step)
    const number = run.share()
    try {
      await this.#host.compute(number, {
        offsets,
        ids,
        positions,
        rows,
        embeds,
        ...(presents === undefined ? {} : { pasts: presents.pasts }),
        ...(encodings === undefined ? {} : { encodings }),
      })
      run.end()
      const logits = run.logits()
      presents?.done()
      return logits
    } catch (error) {
      presents?.failed()
      throw error
    } finally {
      binding.unshare(number)
    }
  }

  encode(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor> {
    return (this.#crossings as Crossings).encode(inputs)
  }

  async dispose(): Promise<void> {
    lost.unregister(this)
    await this.#crossings?.end()
    await this.#host.end()
  }
}
