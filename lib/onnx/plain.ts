// The backend `plain`: the unmodified graph with past and present, for graphs that are not recognised. It computes one sequence after the other, since the pasts
// of a batch would all have to be as long as the longest. A suffix behind the model's bytes adds outputs with only the new rows, which go into the cache; the
// presents become the next pasts.
//
// Presents stay on this thread, under the numbers that kept-presents assigns, in the floats that the runtime returned. For sequences without presents, rows are read
// from the pages, which may have rounded them. New rows are stored as the runtime returns them.
//
// A call gives a row of logits for each token or, if the head is pruned, for its last token only. In that case a sequence needs one call for each token whose logits
// are wanted, which ends with that token:
//
//     tokens    a b c d e f     logits wanted of c, d and f
//     calls     [a b c] [d] [e f]
import { basename, dirname } from 'node:path'

import type { NativeOnnxGraph } from '#binding'

import { isKvTideError, KvTideError } from '../errors/errors.js'
import { dtypeRow } from '../border/host-array.js'
import type { HostTensor, KvSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import type { LentRun } from '../sequences/lent-run.js'
import { type Carried, type CarriedCache, CarriedPorts, type ReadPast } from './carried.js'
import { Embedder, GivenInputs } from './embedder.js'
import { type LogitRows, readLogits } from './logits.js'
import { OnnxPorts, type OnnxInput, type OnnxSession, refusedPort } from './ports.js'
import { elementsOf, onnxRuntime, ran, type RuntimeSession, type RuntimeTensor } from './runtime.js'
import type { PlainModel, RuntimeCall, SessionPasts, Sessions, SessionStep } from './sessions.js'

/** The element types of presents, by onnxruntime's names. */
const DTYPES: Readonly<Record<string, string>> = { float32: 'f32', float16: 'f16' }

/** A computed call of a step. */
interface Computed {
  /** Its first token, counted over all tokens of the step. */
  readonly start: number
  readonly layers: readonly KvSource[]
  readonly logits: LogitRows
}

/** The calls of one sequence, and the presents of the last one for its next step. */
interface ComputedSequence {
  readonly calls: readonly Computed[]
  readonly carried: Carried<RuntimeTensor>
}

/** The rows before a call: presents, if there are any, otherwise those of the cache. */
interface Before {
  readonly carried: Carried<RuntimeTensor> | undefined
  readonly read: ReadPast
}

/** The rows that a call leaves for the next one of its sequence. */
interface Left extends Before {
  readonly carried: Carried<RuntimeTensor>
}

/** One sequence of a step. */
interface Asked {
  /** Its tokens, the place of the first one in the step, and the number of tokens before them. */
  readonly ids: Uint32Array
  readonly start: number
  readonly length: number
  readonly before: Before
  /** The tokens whose logits are wanted, by their places in `ids`. */
  readonly wanted: readonly number[]
  readonly step: SessionStep
}

/** @internal The unmodified graph in a session. */
export class Plain implements Sessions {
  readonly #calling: RuntimeCall
  readonly #session: RuntimeSession
  readonly #carried: CarriedPorts<RuntimeTensor>
  readonly #sizes: ReadonlyMap<number, number>
  readonly #fetches: readonly string[]
  readonly #kept = new Map<number, Carried<RuntimeTensor>>()
  readonly #given: GivenInputs
  #isPruned: boolean

  private constructor(
    calling: RuntimeCall,
    session: RuntimeSession,
    carried: CarriedPorts<RuntimeTensor>,
    { groups }: CarriedCache,
    isPruned: boolean,
    given: GivenInputs,
  ) {
    this.#given = given
    this.#isPruned = isPruned
    this.#calling = calling
    this.#session = session
    this.#carried = carried
    const sizes = groups.flatMap(({ layers, numKvHeads, headDim }) =>
      layers.map(layer => [layer, numKvHeads * headDim] as const),
    )
    this.#sizes = new Map(sizes.toSorted(([one], [other]) => one - other))
    const ports = carried.ports.layers.flat()
    this.#fetches = ['logits', ...ports.map(port => port.present), ...ports.flatMap(port => port.newRows ?? [])]
  }

  static async open(
    { graph: number, cache, threads, takesFolder, runtime, embeddings }: PlainModel,
    calling: RuntimeCall,
  ): Promise<Plain> {
    const graph = binding.NativeOnnxGraph.taken(number)
    const own = sessionOf(graph)
    if (!own.outputNames.includes('logits')) throw refusedPort('logits', 'output', 'it is missing')
    const presents = new OnnxPorts(own, undefined, embeddings?.names).layers.flat().map(port => port.present)
    const described = {
      ...own,
      inputNames: [...own.inputNames, 'kvtide.new_rows'],
      outputNames: [...own.outputNames, ...presents.map(name => `kvtide.new.${name}`)],
    }
    const { module } = await calling(() => onnxRuntime(runtime))
    // A graph that does not fit the cache is refused before a session is made, which takes long.
    const ports = new OnnxPorts(described, undefined, embeddings?.names)
    const carried = new CarriedPorts<RuntimeTensor>(described, ports, cache, module.Tensor)
    const suffix = graph.newRowsSuffix(presents)
    const file = takesFolder ? graph.path : null
    const bytes = Buffer.concat([await graph.model(file === null ? undefined : basename(file)), suffix])
    const weights = file === null ? {} : { model_external_initializers_file_folder_path: dirname(file) }
    const options = {
      intraOpNumThreads: threads,
      interOpNumThreads: 1,
      logSeverityLevel: 4,
      extra: { session: { intra_op: { allow_spinning: '1' }, force_spinning_stop: '1', ...weights } },
    }
    const embedder = await Embedder.open(embeddings, { threads, takesFolder }, module, calling)
    const given = new GivenInputs(embedder, module, ports.typeOf('position_ids'))
    try {
      const session = await ran(undefined, () => calling(() => module.InferenceSession.create(bytes, options)))
      return new Plain(calling, session, carried, cache, hasPrunedHead(graph), given)
    } catch (error) {
      await given.release()
      throw error
    }
  }

  /** True if a call gives a single row of logits, for its last token: the graph declares it, or a call has shown it. */
  get isPruned(): boolean {
    return this.#isPruned
  }

  async compute(run: LentRun, step: SessionStep): Promise<void> {
    const { offsets, ids, rows, pasts } = step
    const { sequences, forget } = pasts as SessionPasts
    for (const number of forget) this.#kept.delete(number)
    const computed: ComputedSequence[] = []
    for (const [place, { length, from }] of sequences.entries()) {
      const [start, end] = [offsets[place] as number, offsets[place + 1] as number]
      const wanted = Array.from(
        rows.filter(row => row >= start && row < end),
        row => row - start,
      )
      const carried = from === undefined ? undefined : this.#carried.cut(this.#kept.get(from), length)
      const before = { carried, read: this.#readOf(run, place, length) }
      computed.push(await this.#sequence({ ids: ids.subarray(start, end), start, length, before, wanted, step }))
    }
    const calls = computed.flatMap(sequence => sequence.calls)
    for (const [place, layer] of [...this.#sizes.keys()].entries()) {
      const pairs = calls.map(({ layers }) => layers[place] as KvSource)
      run.write(layer, joined(pairs.map(pair => pair.k as HostTensor)), joined(pairs.map(pair => pair.v as HostTensor)))
    }
    keepLogits(run, calls, rows)
    for (const [place, { from, keep }] of sequences.entries()) {
      if (from !== undefined) this.#kept.delete(from)
      this.#kept.set(keep, (computed[place] as ComputedSequence).carried)
    }
  }

  async release(): Promise<void> {
    this.#kept.clear()
    await this.#calling(() => this.#session.release()).catch(() => undefined)
    await this.#given.release()
  }

  /** Computes the calls of one sequence: a single one, unless logits are wanted that a pruned head does not give. */
  async #sequence(asked: Asked): Promise<ComputedSequence> {
    const { ids, wanted, before } = asked
    const isWide = wanted.some(place => place < ids.length - 1)
    if (!isWide || !this.#isPruned) {
      const { carried, ...whole } = await this.#call(asked, before, 0, ids.length)
      if (ids.length > 1 && whole.logits.rows === 1) this.#isPruned = true
      if (!isWide || !this.#isPruned) return { calls: [whole], carried }
    }
    const calls: Computed[] = []
    let behind = before
    const ends = wanted.map(place => place + 1)
    if (ends.at(-1) !== ids.length) ends.push(ids.length)
    for (const [place, end] of ends.entries()) {
      const { layers, carried, read, ...call } = await this.#call(asked, behind, ends[place - 1] ?? 0, end)
      // Keeping the presents of many calls would keep as many copies of the past.
      calls.push({
        ...call,
        layers: layers.map(({ k, v }) => ({ k: alone(k as HostTensor), v: alone(v as HostTensor) })),
      })
      behind = { carried, read }
    }
    return { calls, carried: behind.carried as Carried<RuntimeTensor> }
  }

  /** Makes a call for the tokens from `first` to `end`. Returns the rows for the next call in the same step, which the pages do not have yet. */
  async #call(
    { ids, start, length, step }: Asked,
    { carried, read }: Before,
    first: number,
    end: number,
  ): Promise<Computed & Left> {
    const given = await this.#given.of(step, start + first, start + end)
    const call = this.#carried.call(read, length + first, carried, ids.subarray(first, end), given)
    const outputs = await ran(undefined, () => this.#calling(() => this.#session.run(call.feeds, this.#fetches)))
    const logits = readLogits(outputs['logits'] as RuntimeTensor, call.count)
    const layers = shaped(() => this.#carried.newRows(outputs, call, call.count))
    return {
      start: start + first,
      layers,
      logits,
      carried: this.#carried.carry(outputs, call),
      read: this.#carried.readPresents(outputs, call),
    }
  }

  /** Reads the rows of a sequence of the step from the pages, if there are no presents: one copy of a layer at a time. */
  #readOf(run: LentRun, place: number, length: number): ReadPast {
    return (layer, isFloats) => {
      const { k, v } = run.gather(layer, place, isFloats)
      const rows = k.length / (this.#sizes.get(layer) as number)
      return { k, v, rows, first: length - rows }
    }
  }
}

/** @internal The purposes of a graph's inputs and outputs. Refused if an input is unknown. */
export function plainPorts(graph: NativeOnnxGraph, given?: readonly string[]): OnnxPorts {
  return new OnnxPorts(sessionOf(graph), undefined, given)
}

const ELEMENTS: Readonly<Record<string, string>> = {
  f32: 'float32',
  f16: 'float16',
  bf16: 'bfloat16',
  i64: 'int64',
  i32: 'int32',
}

/** The inputs and outputs of a graph, as its session will have them. */
function sessionOf(graph: NativeOnnxGraph): OnnxSession {
  const inputMetadata = graph.inputs().map(({ name, element, dims }): OnnxInput => {
    const shape = dims.map(dim => (/^\d+$/.test(dim) ? Number(dim) : dim))
    return { name, type: ELEMENTS[element] ?? element, shape }
  })
  return {
    inputNames: inputMetadata.map(input => input.name),
    outputNames: graph.outputs().map(output => output.name),
    inputMetadata,
  }
}

/** True if a graph declares a single row of logits. */
function hasPrunedHead(graph: NativeOnnxGraph): boolean {
  const { dims = [] } = graph.outputs().find(({ name }) => name === 'logits') ?? {}
  return dims.length === 3 && dims[1] === '1'
}

/** Concatenates rows of several calls: `[heads, tokens, dim]`. Rows of a single call are not copied. */
function joined(sources: readonly HostTensor[]): HostTensor {
  return sources.length === 1 ? (sources[0] as HostTensor) : gathered(sources)
}

function gathered(sources: readonly HostTensor[]): HostTensor {
  const tensors = sources.map(({ data, range }) => ({
    tensor: data as RuntimeTensor,
    range: range as readonly [number, number],
  }))
  const { type, dims } = (tensors[0] as { tensor: RuntimeTensor }).tensor
  const [, heads, , width] = dims as readonly [number, number, number, number]
  const dtype = DTYPES[type] as 'f32' | 'f16'
  const total = tensors.reduce((sum, { range: [start, end] }) => sum + end - start, 0)
  const data = dtypeRow(dtype).make(heads * total * width)
  let at = 0
  for (const {
    tensor,
    range: [start, end],
  } of tensors) {
    const from = elementsOf(tensor)
    const rows = tensor.dims[2] as number
    for (let head = 0; head < heads; head++) {
      data.set(from.subarray((head * rows + start) * width, (head * rows + end) * width), (head * total + at) * width)
    }
    at += end - start
  }
  return { data, dtype, shape: [heads, total, width] }
}

/** Copies rows into their own tensor if they are part of a larger one. */
function alone(source: HostTensor): HostTensor {
  const { type, dims } = source.data as RuntimeTensor
  const [start, end] = source.range as readonly [number, number]
  if (end - start === dims[2]) return source
  const { data } = gathered([source])
  return { data: { type, dims: [1, dims[1] as number, end - start, dims[3] as number], data }, range: [0, end - start] }
}

/** Collects the wanted rows of logits. */
function keepLogits(run: LentRun, calls: readonly Computed[], rows: Int32Array): void {
  const { vocabulary, dtype } = (calls[0] as Computed).logits
  const data = dtypeRow(dtype).make(rows.length * vocabulary)
  for (const [place, row] of rows.entries()) {
    const { start, logits } = calls.findLast(call => call.start <= row) as Computed
    if (logits.vocabulary !== vocabulary)
      throw failed(`its logits have ${logits.vocabulary} tokens in one call and ${vocabulary} in another`, 'logits')
    // A single row belongs to the last token of its call, which is the wanted one.
    const own = logits.rows === 1 ? 0 : row - start
    data.set(logits.data.subarray(own * vocabulary, (own + 1) * vocabulary), place * vocabulary)
  }
  run.logits(data, dtype, rows.length, vocabulary)
}

/** Reads outputs of a call. A wrong shape is a failure of the runtime. */
function shaped<T>(read: () => T): T {
  try {
    return read()
  } catch (error) {
    if (!isKvTideError(error) || error.code !== 'SHAPE_MISMATCH') throw error
    throw failed(error.message, error.details.argument, error)
  }
}

function failed(reason: string, node: string, cause?: unknown): KvTideError<'RUNTIME_FAILED'> {
  return new KvTideError(
    'RUNTIME_FAILED',
    `onnxruntime-node failed: ${reason}`,
    { reason, node },
    cause === undefined ? undefined : { cause },
  )
}
