// The backends `parts` and `plain`: both send each step to a session thread, and differ only in the sessions there.
import type { NativeLogits, NativeOnnxGraph, NativeOnnxRewritten } from '#binding'

import { binding } from '../loading/binding.js'
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import { StepRun } from '../sequences/step-run.js'
import type { Backend, BackendForm, BackendName, ModelStep } from './backend.js'
import type { CrossCache } from './cross-cache.js'
import { Crossings, type Encoding } from './crossings.js'
import { EncoderHost } from './encoder-host.js'
import { placed } from './graph-session.js'
import { KeptPresents } from './kept-presents.js'
import { opened } from './opened.js'
import type { SessionHost } from './session-host.js'
import type { SentTensor, SessionEncodings } from './sessions.js'

/** Ends the sessions of models that were garbage collected without being disposed of. */
const lost = new FinalizationRegistry<SessionHost>(host => void host.end())

/**
 * @internal The backends `parts` and `plain`: a model in sessions of onnxruntime-node. A step is one message to the session thread, which takes
 * over the step's run and computes all of it.
 */
export class SessionBackend implements Backend {
  readonly name: BackendName
  readonly positionRows: 1 | 3
  readonly #host: SessionHost
  readonly #presents: KeptPresents | undefined
  readonly #cross: CrossCache | undefined
  readonly #encoder: EncoderHost | undefined
  /** The encodings of `parts`. */
  readonly #crossings: Crossings | undefined

  private constructor(
    name: BackendName,
    host: SessionHost,
    { positionRows = 1 }: BackendForm,
    {
      presents,
      cross,
      encoder,
      crossings,
    }: {
      readonly presents?: KeptPresents
      readonly cross?: CrossCache | undefined
      readonly encoder?: EncoderHost | undefined
      readonly crossings?: Crossings | undefined
    },
  ) {
    this.name = name
    this.positionRows = positionRows
    this.#host = host
    this.#presents = presents
    this.#cross = cross
    this.#encoder = encoder
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
    encoding?: Encoding,
  ): Promise<SessionBackend> {
    const crossings = encoding === undefined ? undefined : new Crossings(encoding, rewritten, form)
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
    encoding?: Encoding,
  ): Promise<SessionBackend> {
    const { groups, dtype, keyFormat, valueFormat } = cache
    const facts = { groups: groups.map(group => ({ ...group })), dtype, keyFormat, valueFormat }
    const host = await opened(graph.share(), form, (number, common) => ({
      kind: 'plain',
      graph: number,
      cache: facts,
      ...common,
    }))
    const { cross, encoder: beside } = encoding ?? {}
    const encoder = beside === undefined ? undefined : new EncoderHost(beside, form)
    return new SessionBackend('plain', host, form, { presents: new KeptPresents(), cross, encoder })
  }

  async run(step: ModelStep): Promise<NativeLogits> {
    using run = StepRun.of(step.step)
    const crossed = (this.#cross ?? this.#crossings)?.of(step.sequences)
    try {
      const logits = await this.#compute(run, step, crossed && (await this.#sent(crossed.encodings)))
      crossed?.done()
      return logits
    } catch (error) {
      crossed?.failed()
      throw error
    }
  }

  /** The encodings of a step as the session thread takes them: `parts` takes keys and values in place of states. */
  async #sent(encodings: SessionEncodings): Promise<SessionEncodings> {
    const crossings = this.#crossings
    return crossings === undefined ? encodings : { ...encodings, added: await crossings.rowsOf(encodings) }
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
    return ((this.#encoder ?? this.#crossings) as EncoderHost).encode(inputs)
  }

  async dispose(): Promise<void> {
    lost.unregister(this)
    await this.#encoder?.end()
    await this.#crossings?.end()
    await this.#host.end()
  }
}
