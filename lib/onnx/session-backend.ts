// The backends `parts` and `plain`: both send each step to a session thread, and differ only in the sessions there.
import type { NativeLogits, NativeOnnxGraph, NativeOnnxRewritten } from '#binding'

import { binding } from '../loading/binding.js'
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import { StepRun } from '../sequences/step-run.js'
import type { Backend, BackendForm, BackendName, ModelStep } from './backend.js'
import type { CrossCache } from './cross-cache.js'
import { placed } from './graph-session.js'
import { KeptPresents } from './kept-presents.js'
import { isAtLeast, onnxPackage } from './runtime.js'
import { type SessionHost, sessionHost } from './session-host.js'
import type { EmbeddingsModel, SentTensor, SessionsModel } from './sessions.js'

/** The first version of onnxruntime that accepts a folder for the weights of a model given as bytes. */
const FOLDER_MINOR = 21

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
  readonly #openEncoder: (() => Promise<SessionHost>) | undefined
  /** The thread of the encoder, from its first run on. */
  #encoder: Promise<SessionHost> | undefined

  private constructor(
    name: BackendName,
    host: SessionHost,
    presents: KeptPresents | undefined,
    { positionRows = 1 }: BackendForm,
    { cross, open }: { readonly cross?: CrossCache | undefined; readonly open?: () => Promise<SessionHost> } = {},
  ) {
    this.name = name
    this.positionRows = positionRows
    this.#host = host
    this.#presents = presents
    this.#cross = cross
    this.#openEncoder = open
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
  ): Promise<SessionBackend> {
    const host = await opened(rewritten.share(), form, (number, common) => ({
      kind: 'parts',
      rewritten: number,
      at: placed(graph),
      ...common,
    }))
    return new SessionBackend('parts', host, undefined, form)
  }

  /** Makes the backend `plain`, over a cache with the graph's layers. A decoder with an encoder has a cross cache, and perhaps the graph of the encoder. */
  static async plain(
    graph: NativeOnnxGraph,
    cache: PagedKvCache,
    form: BackendForm,
    {
      cross,
      encoder,
    }: { readonly cross?: CrossCache | undefined; readonly encoder?: NativeOnnxGraph | undefined } = {},
  ): Promise<SessionBackend> {
    const { groups, dtype, keyFormat, valueFormat } = cache
    const facts = { groups: groups.map(group => ({ ...group })), dtype, keyFormat, valueFormat }
    const host = await opened(graph.share(), form, (number, common) => ({
      kind: 'plain',
      graph: number,
      cache: facts,
      ...common,
    }))
    if (encoder === undefined) return new SessionBackend('plain', host, new KeptPresents(), form, { cross })
    const open = (): Promise<SessionHost> =>
      opened(encoder.share(), form, (number, common) => ({ kind: 'encoder', graph: number, ...common }))
    return new SessionBackend('plain', host, new KeptPresents(), form, { cross, open })
  }

  async run(step: ModelStep): Promise<NativeLogits> {
    using run = StepRun.of(step.step)
    const { offsets, ids, positions, rows, embeds } = step
    const presents = this.#presents?.of(step)
    const crossed = this.#cross?.of(step.sequences)
    const number = run.share()
    try {
      await this.#host.compute(number, {
        offsets,
        ids,
        positions,
        rows,
        embeds,
        ...(presents === undefined ? {} : { pasts: presents.pasts }),
        ...(crossed === undefined ? {} : { encodings: crossed.encodings }),
      })
      run.end()
      const logits = run.logits()
      presents?.done()
      crossed?.done()
      return logits
    } catch (error) {
      presents?.failed()
      crossed?.failed()
      throw error
    } finally {
      binding.unshare(number)
    }
  }

  async encode(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor> {
    this.#encoder ??= this.#startEncoder()
    const host = await this.#encoder
    return host.encode(inputs)
  }

  /** Opens the encoder. If that fails, the next run tries again. */
  async #startEncoder(): Promise<SessionHost> {
    try {
      const host = await (this.#openEncoder as () => Promise<SessionHost>)()
      lost.register(this, host, this)
      return host
    } catch (error) {
      this.#encoder = undefined
      throw error
    }
  }

  async dispose(): Promise<void> {
    lost.unregister(this)
    const encoder = await this.#encoder?.catch(() => undefined)
    await encoder?.end()
    await this.#host.end()
  }
}

function commonOf({ threads }: BackendForm, embeddings: EmbeddingsModel | undefined) {
  const { version, folder } = onnxPackage()
  return { runtime: { version, folder }, threads, takesFolder: isAtLeast(version, FOLDER_MINOR), embeddings }
}

/** Opens sessions of a graph that was shared under a number. */
async function opened(
  number: number,
  form: BackendForm,
  model: (number: number, common: ReturnType<typeof commonOf>) => SessionsModel,
): Promise<SessionHost> {
  const { embeddings } = form
  const shared = embeddings?.graph.share()
  try {
    const { names = [], width = 0 } = embeddings ?? {}
    const given = shared === undefined ? undefined : { graph: shared, names: [...names], width }
    return await sessionHost(model(number, commonOf(form, given)))
  } finally {
    binding.unshare(number)
    if (shared !== undefined) binding.unshare(shared)
  }
}
