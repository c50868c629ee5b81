import { basename, dirname } from 'node:path'

import type { NativeLogits, NativeOnnxGraph, NativeOnnxLayer, NativeOnnxPort, NativeOnnxRewritten } from '#binding'

import type { AttendOptions } from '../attention/attend-call.js'
import { KvTideError } from '../border/errors.js'
import type { DType, TensorData } from '../border/host-array.js'
import type { HostTensor } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { StepRun } from '../sequences/step-run.js'
import type { Backend, ModelStep } from './backend.js'
import { type OnnxRuntime, onnxRuntime, ran, type RuntimeSession, type RuntimeTensor } from './runtime.js'

/**
 * The graph in parts, cut at its attentions: sessions of onnxruntime-node compute the parts, kvtide the attentions between them. It needs
 * nothing but onnxruntime-node's own interface.
 *
 * ```text
 * ids, positions -> part 0 -> q, k, v -> attention -> part 1 -> ... -> logits
 * ```
 * Tensors go from part to part as they are, and are let go of behind the last part that takes them.
 */

const ELEMENTS: Readonly<Record<string, DType>> = { float32: 'f32', float16: 'f16' }
const TYPES: Readonly<Record<string, string>> = { f32: 'float32', f16: 'float16' }

interface Attention {
  readonly q: string
  readonly k: string
  readonly v: string
  readonly out: string
  readonly layer: NativeOnnxLayer
  readonly options: AttendOptions
}

interface Part {
  readonly session: RuntimeSession
  readonly inputs: readonly string[]
  readonly outputs: readonly string[]
  readonly attentions: readonly Attention[]
  /** Tensors that nobody needs any longer behind it. */
  readonly last: readonly string[]
}

/** @internal How the parts' sessions are made. */
export interface PartsOptions {
  readonly threads: number
  /** Whether the runtime finds weights in the folder of the model's file: they stay there then. */
  readonly takesFolder: boolean
}

/** @internal The graph's parts, in sessions of their own. */
export class PartsBackend implements Backend {
  readonly name = 'parts'
  readonly #runtime: OnnxRuntime
  readonly #parts: readonly Part[]
  readonly #inputs: ReadonlyMap<string, NativeOnnxPort>
  readonly #logits: string

  private constructor(runtime: OnnxRuntime, parts: readonly Part[], inputs: readonly NativeOnnxPort[], logits: string) {
    this.#runtime = runtime
    this.#parts = parts
    this.#inputs = new Map(inputs.map(port => [port.name, port]))
    this.#logits = logits
  }

  static async of(graph: NativeOnnxGraph, rewritten: NativeOnnxRewritten, { threads, takesFolder }: PartsOptions): Promise<PartsBackend> {
    const runtime = onnxRuntime()
    const layers = new Map(rewritten.layers().map(layer => [layer.layer, layer]))
    for (const { element, node, form } of layers.values()) {
      if (TYPES[element] === undefined) throw unsupported(node, form, `tensors of ${element} do not go through onnxruntime-node`)
    }
    const path = graph.path
    const isMapped = path !== null && takesFolder
    const written = await rewritten.parts(isMapped ? basename(path) : undefined)
    const config = {
      intra_op: { allow_spinning: '0' },
      ...(isMapped ? { model_external_initializers_file_folder_path: dirname(path) } : {}),
    }
    const options = { intraOpNumThreads: threads, interOpNumThreads: 1, executionMode: 'sequential', logSeverityLevel: 4, extra: { session: config } }
    const parts: Part[] = []
    try {
      for (const [place, { bytes, inputs, outputs, attentions }] of written.entries()) {
        const session = await ran(undefined, () => runtime.module.InferenceSession.create(bytes, options))
        const last = written.flatMap(part => part.inputs).filter(name => lastUse(written, name) === place)
        parts.push({ session, inputs, outputs, last, attentions: attentions.map(({ layer, ...names }) => ({ ...names, layer: layers.get(layer) as NativeOnnxLayer, options: optionsOf(layers.get(layer) as NativeOnnxLayer) })) })
      }
    } catch (error) {
      for (const { session } of parts) await session.release()
      throw error
    }
    const logits = rewritten.outputs().find(({ name }) => name === 'logits') ?? (rewritten.outputs()[0] as NativeOnnxPort)
    return new PartsBackend(runtime, parts, rewritten.inputs(), logits.name)
  }

  async run(step: ModelStep): Promise<NativeLogits> {
    using run = StepRun.of(step.step)
    const held = this.#feeds(step)
    for (const { session, inputs, outputs, attentions, last } of this.#parts) {
      const feeds = Object.fromEntries(inputs.map(name => [name, held.get(name) as RuntimeTensor]))
      const made = await ran(inputs[0], () => session.run(feeds, outputs))
      for (const name of outputs) held.set(name, made[name] as RuntimeTensor)
      for (const attention of attentions) await this.#attend(run, attention, held, step.ids.length)
      for (const name of last) held.delete(name)
    }
    const logits = this.#rows(held.get(this.#logits) as RuntimeTensor, step.rows)
    run.end()
    return logits
  }

  async dispose(): Promise<void> {
    for (const { session } of this.#parts) await session.release()
  }

  #feeds({ ids, positions, rows }: ModelStep): Map<string, RuntimeTensor> {
    const { Tensor } = this.#runtime.module
    const feeds = new Map<string, RuntimeTensor>()
    for (const { name, element } of this.#inputs.values()) {
      const numbers = name === 'position_ids' ? positions : name === 'logit_rows' ? rows : ids
      const dims = name === 'logit_rows' ? [numbers.length] : [1, numbers.length]
      const isNarrow = element === 'i32'
      feeds.set(name, new Tensor(isNarrow ? 'int32' : 'int64', isNarrow ? Int32Array.from(numbers) : BigInt64Array.from(numbers, BigInt), dims))
    }
    return feeds
  }

  /** Attention behind a part: its output becomes a tensor, its inputs are let go of. */
  async #attend(run: StepRun, { layer, q, k, v, out, options }: Attention, held: Map<string, RuntimeTensor>, tokens: number): Promise<void> {
    const { numHeads, numKvHeads, headDim, valueHeadDim, headsFirst } = layer
    const rows = (name: string, heads: number, dim: number): HostTensor => {
      const { data, type } = held.get(name) as RuntimeTensor
      const dtype = ELEMENTS[type] as DType
      return { data: data as TensorData, dtype, shape: headsFirst ? [1, heads, tokens, dim] : [tokens, heads, dim] }
    }
    const answer = await run.attend(layer.layer, rows(q, numHeads, headDim), rows(k, numKvHeads, headDim), rows(v, numKvHeads, valueHeadDim), options)
    for (const name of [q, k, v]) held.delete(name)
    const dims = headsFirst ? [1, numHeads, tokens, valueHeadDim] : [1, tokens, numHeads * valueHeadDim]
    held.set(out, new this.#runtime.module.Tensor(TYPES[layer.element] as string, answer, dims))
  }

  /** The rows that are wanted: those that the graph gave. */
  #rows({ data, dims, type }: RuntimeTensor, rows: Int32Array): NativeLogits {
    const vocabulary = dims.at(-1) as number
    const dtype = ELEMENTS[type]
    if (dtype === undefined) throw new KvTideError('RUNTIME_FAILED', `logits are of type ${type}, expected floats`, { reason: `logits are of type ${type}` })
    return new binding.NativeLogits(data as TensorData, dtype, rows.length, vocabulary)
  }
}

type WrittenParts = Awaited<ReturnType<NativeOnnxRewritten['parts']>>

/** The last part that takes a tensor. */
function lastUse(parts: WrittenParts, name: string): number {
  return parts.findLastIndex(part => part.inputs.includes(name))
}

function optionsOf({ scale, softcap, window, sinks }: NativeOnnxLayer): AttendOptions {
  return {
    scale,
    ...(softcap === undefined ? {} : { softcap }),
    ...(window === undefined ? {} : { window }),
    ...(sinks === undefined ? {} : { sinkLogits: sinks }),
  }
}

function unsupported(node: string, operator: string, reason: string): KvTideError<'UNSUPPORTED_GRAPH'> {
  return new KvTideError('UNSUPPORTED_GRAPH', `the graph cannot be run at ${node} (${operator}): ${reason}`, { node, operator, reason })
}
