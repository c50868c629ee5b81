// The session of an encoder, on a session thread of its own, so that no step waits for it.
import { binding } from '../loading/binding.js'
import {
  elementsOf,
  onnxRuntime,
  type OnnxRuntimeModule,
  ran,
  type RuntimeSession,
  type RuntimeTensor,
} from './runtime.js'
import { openGraph } from './runtime-session.js'
import type { EncoderModel, RuntimeCall, SentTensor, Sessions } from './sessions.js'

/** @internal An encoder in a session. */
export class EncoderSession implements Sessions {
  readonly #calling: RuntimeCall
  readonly #module: OnnxRuntimeModule
  readonly #session: RuntimeSession
  /** The name of the output with the states. */
  readonly #states: string

  private constructor(calling: RuntimeCall, module: OnnxRuntimeModule, session: RuntimeSession) {
    this.#calling = calling
    this.#module = module
    this.#session = session
    const { outputNames } = session
    this.#states = outputNames.find(name => name === 'last_hidden_state') ?? (outputNames[0] as string)
  }

  static async open(model: EncoderModel, calling: RuntimeCall): Promise<EncoderSession> {
    const graph = binding.NativeOnnxGraph.taken(model.graph)
    const { module } = await calling(() => onnxRuntime(model.runtime))
    return new EncoderSession(calling, module, await openGraph(graph, model, module, calling))
  }

  async encode(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor> {
    const feeds = Object.fromEntries(
      Object.entries(inputs).map(([name, { type, data, dims }]) => [
        name,
        new this.#module.Tensor(type, data as unknown as ArrayLike<unknown>, dims),
      ]),
    )
    const outputs = await ran(undefined, () => this.#calling(() => this.#session.run(feeds, [this.#states])))
    const states = outputs[this.#states] as RuntimeTensor
    return { type: states.type, data: elementsOf(states), dims: [...states.dims] }
  }

  async release(): Promise<void> {
    await this.#calling(() => this.#session.release()).catch(() => undefined)
  }
}
