// The backend `parts`: the graph is cut into subgraphs at its attentions, and at the layers that keep a state. Sessions of onnxruntime-node compute the subgraphs,
// kvtide computes what is between them. It needs only onnxruntime-node's public interface.
//
//     ids, positions -> subgraph 0 -> q, k, v -> attention -> subgraph 1 -> x, weights -> convolution -> subgraph 2 -> ... -> logits
//
// Tensors are passed from subgraph to subgraph without a copy, and are released behind the last one that takes them. A subgraph without inputs gives weights: it
// is computed once.
import type { NativeOnnxLayer, NativeOnnxPort, NativeOnnxRewritten, NativeStateNode } from '#binding'

import type { AttendOptions } from '../attention/attend-call.js'
import { KvTideError } from '../errors/errors.js'
import type { DType, TensorData } from '../border/host-array.js'
import type { HostTensor } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import type { LentRun } from '../sequences/lent-run.js'
import { CrossedRows, turned } from './crossed-rows.js'
import { Embedder } from './embedder.js'
import { refusedNode } from './refused-node.js'
import { renamedWeights } from './renamed-weights.js'
import { readLogits } from './logits.js'
import {
  elementsOf,
  integersOf,
  type OnnxRuntimeModule,
  onnxRuntime,
  ran,
  type RuntimeSession,
  type RuntimeTensor,
} from './runtime.js'
import type { PartsModel, RuntimeCall, SessionEncodings, Sessions, SessionStep } from './sessions.js'

const ELEMENTS: Readonly<Record<string, DType>> = { float32: 'f32', float16: 'f16' }
const TYPES: Readonly<Record<string, string>> = { f32: 'float32', f16: 'float16' }

interface Attention {
  readonly q: string
  readonly k: string
  readonly v: string
  readonly out: string
  readonly layer: NativeOnnxLayer
  /** True if it attends to encodings instead of the cache. */
  readonly isCrossed: boolean
  readonly options: AttendOptions
}

/** A node of a layer that keeps a state. */
interface StateStep {
  readonly node: NativeStateNode
  /** The names of its inputs; empty for one that is left out. */
  readonly inputs: readonly string[]
  readonly out: string
  /** True if the output has the dimensions of the first input. */
  readonly isAlike: boolean
}

interface Subgraph {
  /** `undefined` for one that computes nothing, or weights alone. */
  readonly session: RuntimeSession | undefined
  readonly inputs: readonly string[]
  readonly outputs: readonly string[]
  readonly attentions: readonly Attention[]
  readonly states: readonly StateStep[]
  /** Tensors that are not needed behind it. */
  readonly last: readonly string[]
}

/** @internal Refuses layers of elements for which JavaScript has no tensors. */
export function checkElements(rewritten: NativeOnnxRewritten): void {
  for (const { element, node, form } of [...rewritten.layers(), ...rewritten.crossed()]) {
    if (TYPES[element] === undefined) throw withoutTensors(node, form, element)
  }
}

function withoutTensors(node: string, operator: string, element: string): KvTideError {
  return refusedNode(node, operator, `onnxruntime-node has no tensors of ${element} in JavaScript`, 'type')
}

/** @internal The subgraphs of a graph, each in its own session. */
export class Parts implements Sessions {
  readonly #calling: RuntimeCall
  readonly #module: OnnxRuntimeModule
  readonly #parts: readonly Subgraph[]
  /** Weights that nodes between subgraphs take. */
  readonly #weights: ReadonlyMap<string, RuntimeTensor>
  readonly #inputs: readonly NativeOnnxPort[]
  readonly #logits: string
  readonly #embedder: Embedder | undefined
  readonly #crossed: CrossedRows

  private constructor(
    calling: RuntimeCall,
    module: OnnxRuntimeModule,
    { parts, weights }: { readonly parts: readonly Subgraph[]; readonly weights: ReadonlyMap<string, RuntimeTensor> },
    rewritten: NativeOnnxRewritten,
    embedder: Embedder | undefined,
  ) {
    this.#embedder = embedder
    this.#crossed = new CrossedRows(rewritten.crossed())
    this.#weights = weights
    this.#calling = calling
    this.#module = module
    this.#parts = parts
    this.#inputs = rewritten.inputs()
    const outputs = rewritten.outputs()
    this.#logits = (outputs.find(({ name }) => name === 'logits') ?? (outputs[0] as NativeOnnxPort)).name
  }

  static async open(
    { rewritten: number, at, threads, takesFolder, runtime, embeddings }: PartsModel,
    calling: RuntimeCall,
  ): Promise<Parts> {
    const rewritten = binding.NativeOnnxRewritten.taken(number)
    checkElements(rewritten)
    const [layers, crossed] = [rewritten.layers(), rewritten.crossed()].map(
      list => new Map(list.map(layer => [layer.layer, layer])),
    ) as [Map<number, NativeOnnxLayer>, Map<number, NativeOnnxLayer>]
    const { module } = await calling(() => onnxRuntime(runtime))
    const kept = takesFolder ? at : undefined
    const written = await rewritten.parts(kept?.name, kept === undefined)
    const config = {
      intra_op: { allow_spinning: '0' },
      ...(kept === undefined ? {} : { model_external_initializers_file_folder_path: kept.folder }),
    }
    const options = {
      intraOpNumThreads: threads,
      interOpNumThreads: 1,
      executionMode: 'sequential',
      logSeverityLevel: 4,
      extra: { session: config },
    }
    const parts: Subgraph[] = []
    const weights = new Map<string, RuntimeTensor>()
    const embedder = await Embedder.open(embeddings, { runtime, threads, takesFolder }, module, calling)
    try {
      for (const [part, { bytes, inputs, outputs, attentions, states }] of written.entries()) {
        const last = lastUsed(written, part)
        const steps = stateSteps(states, threads)
        const session =
          outputs.length === 0
            ? undefined
            : await ran(undefined, () =>
                calling(() => module.InferenceSession.create(renamedWeights(bytes, kept?.names), options)),
              )
        const isConstant = inputs.length === 0
        if (session !== undefined && isConstant)
          for (const [name, weight] of await constantsOf(session, outputs, calling)) weights.set(name, weight)
        parts.push({
          session: isConstant ? undefined : session,
          inputs,
          outputs,
          last,
          states: steps,
          attentions: attentions.map(({ layer: place, ...names }) => {
            const layer = (names.isCrossed ? crossed : layers).get(place) as NativeOnnxLayer
            return { ...names, layer, options: { threads, ...optionsOf(layer) } }
          }),
        })
      }
    } catch (error) {
      for (const { session } of parts) await calling(() => session?.release())
      await embedder?.release()
      throw error
    }
    return new Parts(calling, module, { parts, weights }, rewritten, embedder)
  }

  async compute(run: LentRun, step: SessionStep): Promise<void> {
    if (step.encodings !== undefined) this.#crossed.take(step.encodings)
    const held = this.#feeds(step, await this.#embedder?.embed(step.ids, step.embeds))
    for (const { session, inputs, outputs, attentions, states, last } of this.#parts) {
      if (session !== undefined) {
        const feeds = Object.fromEntries(inputs.map(name => [name, held.get(name) as RuntimeTensor]))
        const made = await ran(inputs[0], () => this.#calling(() => session.run(feeds, outputs)))
        for (const name of outputs) held.set(name, made[name] as RuntimeTensor)
      }
      for (const attention of attentions) this.#attend(run, attention, held, step)
      for (const state of states) this.#computeStates(run, state, held, step.ids.length)
      for (const name of last) held.delete(name)
    }
    keepLogits(run, held.get(this.#logits) as RuntimeTensor, step.rows.length)
  }

  async release(): Promise<void> {
    this.#crossed.clear()
    for (const { session } of this.#parts) await this.#calling(() => session?.release())
    await this.#embedder?.release()
  }

  /** The inputs of a step. `embedded` are those that come from the model of its embeddings. */
  #feeds(
    { ids, positions, rows }: SessionStep,
    embedded: ReadonlyMap<string, RuntimeTensor> = new Map(),
  ): Map<string, RuntimeTensor> {
    const { Tensor } = this.#module
    const feeds = new Map<string, RuntimeTensor>(embedded)
    for (const { name, element } of this.#inputs) {
      if (embedded.has(name)) continue
      const numbers = name === 'position_ids' ? positions : name === 'logit_rows' ? rows : ids
      const isWide = name === 'position_ids' && positions.length > ids.length
      const dims = name === 'logit_rows' ? [numbers.length] : isWide ? [3, 1, ids.length] : [1, ids.length]
      const type = element === 'i32' ? 'int32' : 'int64'
      feeds.set(name, new Tensor(type, integersOf(type, numbers), dims))
    }
    return feeds
  }

  /** Computes the states of a layer behind a subgraph. The output becomes a tensor. */
  #computeStates(
    run: LentRun,
    { node, inputs, out, isAlike }: StateStep,
    held: Map<string, RuntimeTensor>,
    tokens: number,
  ): void {
    const given = inputs.map(name => held.get(name) ?? this.#weights.get(name))
    const { type, dims } = given[0] as RuntimeTensor
    const answer = run.computeStates(
      node,
      given.map(tensor => (tensor === undefined ? undefined : elementsOf(tensor))),
    )
    held.set(out, new this.#module.Tensor(type, answer, isAlike ? dims : [1, tokens, answer.length / tokens]))
  }

  /** Computes an attention behind a subgraph. Its output becomes a tensor. */
  #attend(
    run: LentRun,
    { layer, isCrossed, q, k, v, out, options }: Attention,
    held: Map<string, RuntimeTensor>,
    { ids: { length: tokens }, offsets, encodings }: SessionStep,
  ): void {
    const { numHeads, numKvHeads, headDim, valueHeadDim, headsFirst, source } = layer
    const rows = (name: string, heads: number, dim: number): HostTensor => {
      const { data, dims, type } = held.get(name) as RuntimeTensor
      const dtype = ELEMENTS[type] as DType
      if (data.length !== tokens * heads * dim)
        throw failed(`${name} is [${dims.join(', ')}], expected ${tokens} tokens of ${heads} heads of ${dim}`, name)
      return { data: data as TensorData, dtype, shape: headsFirst ? [1, heads, tokens, dim] : [tokens, heads, dim] }
    }
    const attended = (): TensorData => {
      const { data } = rows(q, numHeads, headDim) as { data: TensorData }
      const own = headsFirst ? turned(data, numHeads, tokens) : data
      const found = this.#crossed.attend(layer, own, (encodings as SessionEncodings).numbers, offsets, options)
      return headsFirst ? turned(found, tokens, numHeads) : found
    }
    const answer = isCrossed
      ? attended()
      : run.attend(
          layer.layer,
          rows(q, numHeads, headDim),
          ...(source === undefined
            ? ([rows(k, numKvHeads, headDim), rows(v, numKvHeads, valueHeadDim)] as const)
            : ([rows(q, numHeads, headDim), rows(q, numHeads, headDim)] as const)),
          options,
        )
    const dims = headsFirst ? [1, numHeads, tokens, valueHeadDim] : [1, tokens, numHeads * valueHeadDim]
    held.set(out, new this.#module.Tensor(TYPES[layer.element] as string, answer, dims))
  }
}

/** Passes on the wanted rows of logits, which must be those that the graph returned. */
function keepLogits(run: LentRun, logits: RuntimeTensor, wanted: number): void {
  const { data, dtype, rows, vocabulary } = readLogits(logits, wanted)
  if (rows !== wanted)
    throw failed(`logits are [${logits.dims.join(', ')}], expected [1, ${wanted}, ${vocabulary}]`, 'logits')
  run.logits(data, dtype, rows, vocabulary)
}

function failed(reason: string, node: string): KvTideError<'RUNTIME_FAILED'> {
  return new KvTideError('RUNTIME_FAILED', `onnxruntime-node failed: ${reason}`, { reason, node })
}

type WrittenParts = Awaited<ReturnType<NativeOnnxRewritten['parts']>>

/** The outputs of a subgraph without inputs, whose session is not needed afterwards. */
async function constantsOf(
  session: RuntimeSession,
  outputs: readonly string[],
  calling: RuntimeCall,
): Promise<(readonly [name: string, tensor: RuntimeTensor])[]> {
  try {
    const made = await ran(undefined, () => calling(() => session.run({}, outputs)))
    return outputs.map(name => [name, made[name] as RuntimeTensor])
  } finally {
    await calling(() => session.release())
  }
}

/** The tensors that a subgraph takes, and those that nodes behind it take. */
function usedBy({ inputs, attentions, states }: WrittenParts[number]): string[] {
  return [...inputs, ...attentions.flatMap(({ q, k, v }) => [q, k, v]), ...states.flatMap(state => state.inputs)]
}

/** The tensors that no subgraph behind this one needs. O(subgraphs). */
function lastUsed(parts: WrittenParts, place: number): string[] {
  const later = new Set(parts.slice(place + 1).flatMap(usedBy))
  return usedBy(parts[place] as WrittenParts[number]).filter(name => !later.has(name))
}

/** The nodes of layers that keep a state. */
function stateSteps(states: WrittenParts[number]['states'], threads: number): StateStep[] {
  return states.map(({ node, operator, attributes, inputs, output: out, element }) => {
    if (TYPES[element] === undefined) throw withoutTensors(node, operator, element)
    const made = binding.NativeStateNode.of(operator, attributes, element, threads)
    return { node: made, inputs, out, isAlike: operator === 'ShortConv' }
  })
}

function optionsOf({ scale, softcap, window, sinks, alibiSlopes }: NativeOnnxLayer): AttendOptions {
  return {
    scale,
    ...(softcap === undefined ? {} : { softcap }),
    ...(window === undefined ? {} : { window }),
    ...(sinks === undefined ? {} : { sinkLogits: sinks }),
    ...(alibiSlopes === undefined ? {} : { alibiSlopes }),
  }
}
