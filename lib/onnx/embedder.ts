// The session of a decoder's embeddings, on the session thread: for the backends `parts` and `plain`, which feed its outputs to the decoder.
import type { NativeOnnxGraph } from '#binding'

import type { TensorData } from '../border/host-array.js'
import { binding } from '../loading/binding.js'
import { refusedPort } from './refused-node.js'
import {
  elementsOf,
  integersOf,
  type OnnxRuntimeModule,
  ran,
  type RuntimeSession,
  type RuntimeTensor,
} from './runtime.js'
import { openGraph } from './runtime-session.js'
import type { EmbeddingsModel, RuntimeCall, SessionsOptions, SessionStep } from './sessions.js'
import type { StepEmbeds } from './spans.js'

/** @internal Refuses embeddings of elements for which JavaScript has no tensors. */
export function checkEmbeddings({
  graph,
  names,
}: {
  readonly graph: NativeOnnxGraph
  readonly names: readonly string[]
}): void {
  for (const { name, element } of graph.outputs()) {
    if (names.includes(name) && element === 'bf16')
      throw refusedPort(name, 'output', `onnxruntime-node has no tensors of ${element} in JavaScript`, 'type')
  }
}

/** @internal The model of a decoder's embeddings in a session. */
export class Embedder {
  readonly #calling: RuntimeCall
  readonly #module: OnnxRuntimeModule
  readonly #session: RuntimeSession
  readonly #model: EmbeddingsModel
  /** The input of ids. */
  readonly #ids: { readonly name: string; readonly type: string }
  /** Inputs of features, which are given none. */
  readonly #features: readonly RuntimeTensor[]
  readonly #names: readonly string[]

  private constructor(
    calling: RuntimeCall,
    module: OnnxRuntimeModule,
    session: RuntimeSession,
    model: EmbeddingsModel,
    inputs: readonly { readonly name: string; readonly element: string; readonly dims: readonly string[] }[],
  ) {
    this.#calling = calling
    this.#module = module
    this.#session = session
    this.#model = model
    const ids = inputs.find(({ element }) => !element.startsWith('f')) as (typeof inputs)[number]
    this.#ids = { name: ids.name, type: ids.element === 'i32' ? 'int32' : 'int64' }
    const features = inputs.filter(({ element }) => element.startsWith('f'))
    this.#names = features.map(({ name }) => name)
    this.#features = features.map(({ element, dims }) => {
      const sizes = dims.map(dim => (/^\d+$/.test(dim) ? Number(dim) : 0))
      return element === 'f16'
        ? new module.Tensor('float16', new Uint16Array(0), sizes)
        : new module.Tensor('float32', new Float32Array(0), sizes)
    })
  }

  /** Opens its session; `undefined` for a decoder that takes ids. */
  static async open(
    model: EmbeddingsModel | undefined,
    options: Pick<SessionsOptions, 'runtime' | 'threads' | 'takesFolder'>,
    module: OnnxRuntimeModule,
    calling: RuntimeCall,
  ): Promise<Embedder | undefined> {
    if (model === undefined) return undefined
    const graph = binding.NativeOnnxGraph.taken(model.graph)
    checkEmbeddings({ graph, names: model.names })
    const session = await openGraph(graph, options, module, calling)
    return new Embedder(calling, module, session, model, graph.inputs())
  }

  /** Computes the decoder's inputs for ids, the first of which is the token `first` of a step. Rows that are given replace those of their ids. */
  async embed(ids: Uint32Array, given: StepEmbeds | undefined, first = 0): Promise<Map<string, RuntimeTensor>> {
    const { Tensor } = this.#module
    const places = [...(given?.places ?? [])].map(place => place - first)
    const own = ids.slice()
    // The token of an image would ask for features.
    if (this.#features.length > 0) for (const place of places) if (place >= 0 && place < own.length) own[place] = 0
    const { name, type } = this.#ids
    const feeds = {
      [name]: new Tensor(type, integersOf(type, own), [1, own.length]),
      ...Object.fromEntries(this.#names.map((feature, at) => [feature, this.#features[at] as RuntimeTensor])),
    }
    const { names, width } = this.#model
    const made = await ran(undefined, () => this.#calling(() => this.#session.run(feeds, names)))
    const embeds = made['inputs_embeds'] as RuntimeTensor
    const to = elementsOf(embeds)
    const rows = given === undefined || to instanceof Float32Array ? given?.data : binding.halves(given.data)
    for (const [row, place] of places.entries()) {
      if (place < 0 || place >= own.length) continue
      to.set((rows as TensorData).subarray(row * width, (row + 1) * width), place * width)
    }
    return new Map(names.map(output => [output, made[output] as RuntimeTensor]))
  }

  async release(): Promise<void> {
    await this.#calling(() => this.#session.release()).catch(() => undefined)
  }
}

/** @internal Inputs of an unmodified decoder that do not follow from the ids and the length of one call: embeddings, and three rows of positions. */
export class GivenInputs {
  readonly #embedder: Embedder | undefined
  readonly #module: OnnxRuntimeModule
  readonly #positions: string

  /** `positions` is the element type of positions. */
  constructor(embedder: Embedder | undefined, module: OnnxRuntimeModule, positions: string) {
    this.#embedder = embedder
    this.#module = module
    this.#positions = positions
  }

  /** The inputs for the tokens of a step from `start` to `end`, which are those of one call. */
  async of(
    { ids, positions, embeds }: SessionStep,
    start: number,
    end: number,
  ): Promise<Record<string, RuntimeTensor>> {
    const given = Object.fromEntries((await this.#embedder?.embed(ids.subarray(start, end), embeds, start)) ?? [])
    if (positions.length === ids.length) return given
    const { Tensor } = this.#module
    const own = [0, 1, 2].flatMap(row => [...positions.subarray(row * ids.length + start, row * ids.length + end)])
    const type = this.#positions
    return { ...given, position_ids: new Tensor(type, integersOf(type, own), [3, 1, end - start]) }
  }

  async release(): Promise<void> {
    await this.#embedder?.release()
  }
}
