import { basename, dirname } from 'node:path'

import type { NativeLogits, NativeOnnxGraph } from '#binding'

import { invalid } from '../border/errors.js'
import { dtypeRow, type TensorData } from '../border/host-array.js'
import type { HostTensor, KvSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import type { ModelLayer } from '../sequences/model-description.js'
import type { PagedKvCache } from '../sequences/paged-kv-cache.js'
import type { Backend, ModelStep, StepSequence } from './backend.js'
import { type Carried, type CarriedCall, CarriedPorts, isSlid } from './carried.js'
import { type CarriedPort, OnnxPorts, type OnnxInput, type OnnxSession, refusedPort } from './ports.js'
import { type OnnxRuntimeModule, ran, type RuntimeSession, type RuntimeTensor } from './runtime.js'

/**
 * The graph as it is, with past and present, for graphs that are not recognised. One sequence after the other, since pasts of a batch would have to
 * be as long as the longest. A suffix behind the model's bytes gives new rows alone, which go into the cache; the presents are the next pasts.
 *
 * Presents are kept of the sequences of the last steps, as far as {@link KEPT_MAX} goes: of others, and after a cut, rows are read
 * back from the cache. What is kept of a sequence counts only if its ids are the same.
 */

/** How a session is made. */
export interface PlainOptions {
  /** How many threads a step uses. */
  readonly threads: number
  /** Whether the runtime finds weights in the folder of the model's file, as it does from 1.21 on. They are not read here then. */
  readonly takesFolder: boolean
}

/** Of how many sequences presents are kept. */
const KEPT_MAX = 16

/** The element types of outputs, by onnxruntime's names. */
const TYPES: Readonly<Record<string, string>> = { float32: 'f32', float16: 'f16', bfloat16: 'bf16' }

/** What is kept of a sequence: the ids that its presents are of. */
interface Kept {
  readonly ids: Uint32Array
  readonly carried: Carried<RuntimeTensor>
}

/** One sequence of a step, computed. */
interface Computed {
  readonly call: CarriedCall<RuntimeTensor>
  readonly outputs: Readonly<Record<string, RuntimeTensor>>
  readonly layers: readonly KvSource[]
}

/** @internal The graph as it is. */
export class PlainBackend implements Backend {
  readonly name = 'plain'
  readonly #session: RuntimeSession
  readonly #carried: CarriedPorts<RuntimeTensor>
  readonly #layers: readonly number[]
  readonly #fetches: readonly string[]
  readonly #kept = new Map<number, Kept>()

  private constructor(session: RuntimeSession, carried: CarriedPorts<RuntimeTensor>, cache: PagedKvCache) {
    this.#session = session
    this.#carried = carried
    this.#layers = cache.groups.flatMap(group => group.layers).toSorted((one, other) => one - other)
    const ports = carried.ports.layers.flat()
    this.#fetches = ['logits', ...ports.map(port => port.present), ...ports.flatMap(port => port.newRows ?? [])]
  }

  /** @internal A session of the graph, over a cache with its layers. */
  static async open(graph: NativeOnnxGraph, cache: PagedKvCache, runtime: OnnxRuntimeModule, { threads, takesFolder }: PlainOptions): Promise<PlainBackend> {
    const own = sessionOf(graph)
    if (!own.outputNames.includes('logits')) throw refusedPort('logits', 'output', 'it is missing')
    const presents = new OnnxPorts(own).layers.flat().map(port => port.present)
    const suffix = graph.newRowsSuffix(presents)
    const file = takesFolder ? graph.path : null
    const bytes = Buffer.concat([await graph.model(file === null ? undefined : basename(file)), suffix])
    const weights = file === null ? {} : { model_external_initializers_file_folder_path: dirname(file) }
    const options = {
      intraOpNumThreads: threads, interOpNumThreads: 1, logSeverityLevel: 4,
      extra: { session: { intra_op: { allow_spinning: '0' }, ...weights } },
    }
    const described = {
      ...own, inputNames: [...own.inputNames, 'kvtide.new_rows'], outputNames: [...own.outputNames, ...presents.map(name => `kvtide.new.${name}`)],
    }
    // What does not fit the cache is refused before a session takes time.
    const carried = new CarriedPorts<RuntimeTensor>(described, new OnnxPorts(described), cache, runtime.Tensor)
    const session = await ran(undefined, () => runtime.InferenceSession.create(bytes, options))
    return new PlainBackend(session, carried, cache)
  }

  async run({ step, sequences, offsets, ids, rows }: ModelStep): Promise<NativeLogits> {
    const computed: Computed[] = []
    for (const [place, of] of sequences.entries()) {
      const own = ids.subarray(offsets[place], offsets[place + 1])
      computed.push(await this.#compute(of, own))
    }
    for (const [place, layer] of this.#layers.entries()) {
      const pairs = computed.map(({ layers }) => layers[place] as KvSource)
      step.write(layer, joined(pairs.map(pair => pair.k as HostTensor)), joined(pairs.map(pair => pair.v as HostTensor)))
    }
    const logits = chosen(computed.map(({ outputs }) => outputs['logits'] as RuntimeTensor), offsets, rows)
    for (const [place, { sequence, before }] of sequences.entries()) {
      const { call, outputs } = computed[place] as Computed
      const all = new Uint32Array(before.length + call.count)
      all.set(before)
      all.set(ids.subarray(offsets[place], offsets[place + 1]), before.length)
      this.#keep(sequence.id, { ids: all, carried: this.#carried.carry(outputs, call) })
    }
    return logits
  }

  async dispose(): Promise<void> {
    this.#kept.clear()
    await this.#session.release().catch(() => undefined)
  }

  async #compute({ sequence, before }: StepSequence, ids: Uint32Array): Promise<Computed> {
    const kept = this.#kept.get(sequence.id)
    const carried = kept !== undefined && isSame(kept.ids, before) ? kept.carried : undefined
    const call = this.#carried.call(sequence, before.length, carried, ids)
    const outputs = await ran(undefined, () => this.#session.run(call.feeds, this.#fetches))
    return { call, outputs, layers: this.#carried.newRows(outputs, call, ids.length) }
  }

  /** The sequence that was kept longest makes room. */
  #keep(id: number, kept: Kept): void {
    this.#kept.delete(id)
    this.#kept.set(id, kept)
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= KEPT_MAX) return
      this.#kept.delete(oldest)
    }
  }
}

/** @internal What a graph's inputs and outputs are for; refused where one of them is not known. */
export function plainPorts(graph: NativeOnnxGraph): OnnxPorts {
  return new OnnxPorts(sessionOf(graph))
}

/** @internal What is known of layers besides what their pasts say. */
export interface DeclaredLayers {
  /** Of all layers alike. */
  readonly numKvHeads?: number | undefined
  readonly headDim?: number | undefined
  /** The window of each layer, `null` where it has none. */
  readonly windows?: (number | null)[] | undefined
  /** What was found in the graph, layer by layer. */
  readonly found?: readonly { readonly numKvHeads: number; readonly headDim: number; readonly valueHeadDim: number; readonly window?: number }[] | undefined
}

/**
 * @internal The layers of a graph as its pasts tell; sizes that these do not say have to be known otherwise. A window counts where the graph
 * slides a past by itself: another graph may see all rows, whatever was declared, so all of them are kept.
 */
export function plainLayers(graph: NativeOnnxGraph, { numKvHeads, headDim, windows, found }: DeclaredLayers): ModelLayer[] {
  const { layers } = plainPorts(graph)
  if (windows !== undefined && windows.length !== layers.length) throw invalid('config', windows.length, `${layers.length} layers, as the graph has`)
  return layers.map((pair, place) => {
    const layer = found?.length === layers.length ? found[place] : undefined
    const sizes = {
      numKvHeads: sizeOf(pair[0], 1, layer?.numKvHeads ?? numKvHeads),
      headDim: sizeOf(pair[0], 3, layer?.headDim ?? headDim),
      valueHeadDim: sizeOf(pair[1], 3, layer?.valueHeadDim ?? headDim),
    }
    const window = isSlid(pair[0]) ? (windows?.[place] ?? layer?.window) : undefined
    return window === undefined ? { kind: 'full', ...sizes } : { kind: 'sliding', window, ...sizes }
  })
}

/** A size of a past: its heads, or elements a head. */
function sizeOf({ past, input: { shape } }: CarriedPort, axis: 1 | 3, known: number | undefined): number {
  const size = shape?.[axis]
  if (typeof size === 'number') return size
  if (known !== undefined) return known
  throw refusedPort(past, 'input', `the graph does not say how many ${axis === 1 ? 'heads' : 'elements a head'} it has, and no config does`)
}

const ELEMENTS: Readonly<Record<string, string>> = { f32: 'float32', f16: 'float16', bf16: 'bfloat16', i64: 'int64', i32: 'int32' }

/** The inputs and outputs of a graph, as its session will have them. */
function sessionOf(graph: NativeOnnxGraph): OnnxSession {
  const inputMetadata = graph.inputs().map(({ name, element, dims }): OnnxInput => {
    const shape = dims.map(dim => (/^\d+$/.test(dim) ? Number(dim) : dim))
    return { name, type: ELEMENTS[element] ?? element, shape }
  })
  return { inputNames: inputMetadata.map(input => input.name), outputNames: graph.outputs().map(output => output.name), inputMetadata }
}

function isSame(one: Uint32Array, other: Uint32Array): boolean {
  return one.length === other.length && one.every((id, place) => id === other[place])
}

/** Rows of several sequences, one behind the other: `[heads, tokens, dim]`. Those of one are taken as they are. */
function joined(sources: readonly HostTensor[]): HostTensor {
  if (sources.length === 1) return sources[0] as HostTensor
  const tensors = sources.map(({ data, range }) => ({ tensor: data as RuntimeTensor, range: range as readonly [number, number] }))
  const [, heads, , width] = (tensors[0] as { tensor: RuntimeTensor }).tensor.dims as [number, number, number, number]
  const dtype = TYPES[(tensors[0] as { tensor: RuntimeTensor }).tensor.type] as 'f32' | 'f16'
  const total = tensors.reduce((sum, { range: [start, end] }) => sum + end - start, 0)
  const data = dtypeRow(dtype).make(heads * total * width)
  let at = 0
  for (const { tensor, range: [start, end] } of tensors) {
    const from = bitsOf(tensor)
    const rows = tensor.dims[2] as number
    for (let head = 0; head < heads; head++) {
      data.set(from.subarray((head * rows + start) * width, (head * rows + end) * width), (head * total + at) * width)
    }
    at += end - start
  }
  return { data, dtype, shape: [heads, total, width] }
}

/** The elements of a tensor as numbers or as bits, where they lie. */
function bitsOf({ data, type }: RuntimeTensor): TensorData {
  if (type === 'float32') return data as Float32Array
  const { buffer, byteOffset, length } = data as Uint16Array
  return new Uint16Array(buffer, byteOffset, length)
}

/** The rows of logits that are wanted, one behind the other. */
function chosen(logits: readonly RuntimeTensor[], offsets: Int32Array, rows: Int32Array): NativeLogits {
  const { dims, type } = logits[0] as RuntimeTensor
  const vocabulary = dims.at(-1) as number
  const dtype = TYPES[type]
  if (dtype === undefined) throw refusedPort('logits', 'output', `its type is ${type}`)
  const data = dtypeRow(dtype as 'f32').make(rows.length * vocabulary)
  for (const [place, row] of rows.entries()) {
    const owner = offsets.findLastIndex(start => start <= row)
    const from = bitsOf(logits[owner] as RuntimeTensor)
    const own = row - (offsets[owner] as number)
    data.set(from.subarray(own * vocabulary, (own + 1) * vocabulary), place * vocabulary)
  }
  return new binding.NativeLogits(data, dtype, rows.length, vocabulary)
}
