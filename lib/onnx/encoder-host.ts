// A graph beside a decoder in a session of its own: its encoder, or the graph that computes keys and values of the encoder's states. The session is opened by its
// first run, on a session thread of its own, so that no step waits for it.
import type { NativeOnnxGraph } from '#binding'

import type { BackendForm } from './backend.js'
import { lost, opened } from './opened.js'
import { sessionOf } from './runtime-session.js'
import type { SessionHost } from './session-host.js'
import type { SentTensor } from './sessions.js'

/** @internal A graph beside a decoder. */
export class EncoderHost {
  readonly #graph: NativeOnnxGraph
  readonly #form: BackendForm
  readonly #isCrossing: boolean
  /** Its thread, from its first run on. */
  #host: Promise<SessionHost> | undefined

  /** `isCrossing`: it returns keys and values of an encoder's states. */
  constructor(graph: NativeOnnxGraph, form: BackendForm, isCrossing = false) {
    this.#graph = graph
    this.#form = form
    this.#isCrossing = isCrossing
  }

  async encode(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor> {
    this.#host ??= this.#open()
    const host = await this.#host
    return host.encode(inputs)
  }

  /** The names of its inputs. */
  get inputs(): readonly string[] {
    return sessionOf(this.#graph).inputNames
  }

  /** The element type of an input. */
  typeOf(name: string): string {
    return sessionOf(this.#graph).inputMetadata.find(input => input.name === name)?.type ?? 'int64'
  }

  async end(): Promise<void> {
    lost.unregister(this)
    const host = await this.#host?.catch(() => undefined)
    await host?.end()
  }

  /** Opens the session. If that fails, the next run tries again. */
  async #open(): Promise<SessionHost> {
    try {
      const host = await opened(this.#graph.share(), this.#form, (number, common) => ({
        kind: 'encoder',
        graph: number,
        isCrossing: this.#isCrossing,
        ...common,
      }))
      lost.register(this, host, this)
      return host
    } catch (error) {
      this.#host = undefined
      throw error
    }
  }
}
