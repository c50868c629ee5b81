// The session of an encoder, or of the graph that computes keys and values of its states (encoder-host.ts).
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

/** Outputs with keys and values, of encoders of onnxruntime-genai's builder. */
const CROSS = /^present_(?:key|value)_cross_(\d+)$/

/** Keys before values, layer by layer: in the order in which a decoder takes them. */
function byLayer(one: string, other: string): number {
  const [own, others] = [one, other].map(name => Number(CROSS.exec(name)?.[1])) as [number, number]
  return own - others || (one < other ? -1 : 1)
}

/** Keys and values `[1, heads, frames, dim]` of all layers, one behind the other, as `[1, frames, elements]`. */
function together(tensors: readonly [RuntimeTensor, ...RuntimeTensor[]]): SentTensor {
  const [{ type, dims }] = tensors
  const data = tensors.map(elementsOf)
  const length = data.reduce((sum, { length: own }) => sum + own, 0)
  const all = type === 'float16' ? new Uint16Array(length) : new Float32Array(length)
  let at = 0
  for (const own of data) {
    all.set(own, at)
    at += own.length
  }
  const frames = dims[2] as number
  return { type, data: all, dims: [1, frames, length / frames] }
}

/** @internal An encoder in a session. */
export class EncoderSession implements Sessions {
  readonly #calling: RuntimeCall
  readonly #module: OnnxRuntimeModule
  readonly #session: RuntimeSession
  /** The names of the outputs with the states: one, or the keys and values of all layers. */
  readonly #states: readonly string[]

  private constructor(calling: RuntimeCall, module: OnnxRuntimeModule, session: RuntimeSession, isCrossing: boolean) {
    this.#calling = calling
    this.#module = module
    this.#session = session
    const { outputNames } = session
    const given = outputNames.filter(name => CROSS.test(name)).toSorted(byLayer)
    const states = outputNames.find(name => name === 'last_hidden_state') ?? (outputNames[0] as string)
    const all = given.length > 0 ? given : [states]
    this.#states = isCrossing ? outputNames : all
  }

  static async open(model: EncoderModel, calling: RuntimeCall): Promise<EncoderSession> {
    const graph = binding.NativeOnnxGraph.taken(model.graph)
    const { module } = await calling(() => onnxRuntime(model.runtime))
    return new EncoderSession(calling, module, await openGraph(graph, model, module, calling), model.isCrossing)
  }

  async encode(inputs: Readonly<Record<string, SentTensor>>): Promise<SentTensor> {
    const feeds = Object.fromEntries(
      Object.entries(inputs).map(([name, { type, data, dims }]) => [
        name,
        new this.#module.Tensor(type, data as unknown as ArrayLike<unknown>, dims),
      ]),
    )
    const outputs = await ran(undefined, () => this.#calling(() => this.#session.run(feeds, this.#states)))
    const [states, ...others] = this.#states.map(name => outputs[name] as RuntimeTensor) as [
      RuntimeTensor,
      ...RuntimeTensor[],
    ]
    if (states.dims.length === 4) return together([states, ...others])
    return { type: states.type, data: elementsOf(states).slice(), dims: [...states.dims] }
  }

  async release(): Promise<void> {
    await this.#calling(() => this.#session.release()).catch(() => undefined)
  }
}
