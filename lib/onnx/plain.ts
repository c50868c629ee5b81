import { basename, dirname } from 'node:path'

import type { NativeOnnxGraph } from '#binding'

import { type DType, dtypeRow, type TensorData } from '../border/host-array.js'
import type { HostTensor, KvSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import type { LentRun } from '../sequences/lent-run.js'
import { type Carried, type CarriedCache, type CarriedCall, CarriedPorts, type ReadPast } from './carried.js'
import { OnnxPorts, type OnnxInput, type OnnxSession, refusedPort } from './ports.js'
import { onnxRuntime, ran, type RuntimeSession, type RuntimeTensor } from './runtime.js'
import type { PlainModel, RuntimeCall, SessionPasts, Sessions, SessionStep } from './sessions.js'

/**
 * The graph as it is, with past and present, for graphs that are not recognised. One sequence after the other, since pasts of a batch would have to
 * be as long as the longest. A suffix behind the model's bytes gives new rows alone, which go into the cache; the presents are the next pasts.
 *
 * Presents stay here, under the numbers that `kept-presents.ts` gives them: of other sequences, and after a cut, rows are read back from the
 * pages. New rows go there as the runtime gives them.
 */

/** The element types of outputs, by onnxruntime's names. */
const TYPES: Readonly<Record<string, string>> = { float32: 'f32', float16: 'f16', bfloat16: 'bf16' }

/** One sequence of a step, computed. */
interface Computed {
  readonly call: CarriedCall<RuntimeTensor>
  readonly outputs: Readonly<Record<string, RuntimeTensor>>
  readonly layers: readonly KvSource[]
}

/** @internal The graph as it is, in a session. */
export class Plain implements Sessions {
  readonly #calling: RuntimeCall
  readonly #session: RuntimeSession
  readonly #carried: CarriedPorts<RuntimeTensor>
  readonly #sizes: ReadonlyMap<number, number>
  readonly #fetches: readonly string[]
  readonly #kept = new Map<number, Carried<RuntimeTensor>>()

  private constructor(calling: RuntimeCall, session: RuntimeSession, carried: CarriedPorts<RuntimeTensor>, { groups }: CarriedCache) {
    this.#calling = calling
    this.#session = session
    this.#carried = carried
    const sizes = groups.flatMap(({ layers, numKvHeads, headDim }) => layers.map(layer => [layer, numKvHeads * headDim] as const))
    this.#sizes = new Map(sizes.toSorted(([one], [other]) => one - other))
    const ports = carried.ports.layers.flat()
    this.#fetches = ['logits', ...ports.map(port => port.present), ...ports.flatMap(port => port.newRows ?? [])]
  }

  static async open({ graph: number, cache, threads, takesFolder, runtime }: PlainModel, calling: RuntimeCall): Promise<Plain> {
    const graph = binding.NativeOnnxGraph.taken(number)
    const own = sessionOf(graph)
    if (!own.outputNames.includes('logits')) throw refusedPort('logits', 'output', 'it is missing')
    const presents = new OnnxPorts(own).layers.flat().map(port => port.present)
    const described = {
      ...own, inputNames: [...own.inputNames, 'kvtide.new_rows'], outputNames: [...own.outputNames, ...presents.map(name => `kvtide.new.${name}`)],
    }
    const { module } = await calling(() => onnxRuntime(runtime))
    // What does not fit the cache is refused before a session takes time.
    const carried = new CarriedPorts<RuntimeTensor>(described, new OnnxPorts(described), cache, module.Tensor)
    const suffix = graph.newRowsSuffix(presents)
    const file = takesFolder ? graph.path : null
    const bytes = Buffer.concat([await graph.model(file === null ? undefined : basename(file)), suffix])
    const weights = file === null ? {} : { model_external_initializers_file_folder_path: dirname(file) }
    const options = {
      intraOpNumThreads: threads, interOpNumThreads: 1, logSeverityLevel: 4,
      extra: { session: { intra_op: { allow_spinning: '0' }, ...weights } },
    }
    const session = await ran(undefined, () => calling(() => module.InferenceSession.create(bytes, options)))
    return new Plain(calling, session, carried, cache)
  }

  async compute(run: LentRun, { offsets, ids, rows, pasts }: SessionStep): Promise<void> {
    const { sequences, forget } = pasts as SessionPasts
    for (const number of forget) this.#kept.delete(number)
    const computed: Computed[] = []
    for (const [place, { length, from }] of sequences.entries()) {
      const carried = from === undefined ? undefined : this.#kept.get(from)
      const call = this.#carried.call(this.#readOf(run, place, length), length, carried, ids.subarray(offsets[place], offsets[place + 1]))
      const outputs = await ran(undefined, () => this.#calling(() => this.#session.run(call.feeds, this.#fetches)))
      computed.push({ call, outputs, layers: this.#carried.newRows(outputs, call, call.count) })
    }
    for (const [place, layer] of [...this.#sizes.keys()].entries()) {
      const pairs = computed.map(({ layers }) => layers[place] as KvSource)
      run.write(layer, joined(pairs.map(pair => pair.k as HostTensor)), joined(pairs.map(pair => pair.v as HostTensor)))
    }
    keepLogits(run, computed.map(({ outputs }) => outputs['logits'] as RuntimeTensor), offsets, rows)
    for (const [place, { from, keep }] of sequences.entries()) {
      const { call, outputs } = computed[place] as Computed
      if (from !== undefined) this.#kept.delete(from)
      this.#kept.set(keep, this.#carried.carry(outputs, call))
    }
  }

  async release(): Promise<void> {
    this.#kept.clear()
    await this.#calling(() => this.#session.release()).catch(() => undefined)
  }

  /** What the pages hold of a sequence of the step: where there are no presents, one copy of a layer at a time. */
  #readOf(run: LentRun, place: number, length: number): ReadPast {
    return (layer, isFloats) => {
      const { k, v } = run.gather(layer, place, isFloats)
      const rows = k.length / (this.#sizes.get(layer) as number)
      return { k, v, rows, first: length - rows }
    }
  }
}

/** @internal What a graph's inputs and outputs are for; refused where one of them is not known. */
export function plainPorts(graph: NativeOnnxGraph): OnnxPorts {
  return new OnnxPorts(sessionOf(graph))
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
function keepLogits(run: LentRun, logits: readonly RuntimeTensor[], offsets: Int32Array, rows: Int32Array): void {
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
  run.logits(data, dtype as DType, rows.length, vocabulary)
}
