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
//
// States of layers, which have no rows, are inputs and outputs of each call as well: those after the last call of a sequence go into the cache.
//
// A decoder with an encoder is given the cross cache of its sequence's encoding (cross-tensors). The first call of an encoding computes that cache as well.
import type { NativeOnnxGraph } from '#binding'

import { isKvTideError, KvTideError } from '../errors/errors.js'
import { dtypeRow } from '../border/host-array.js'
import type { HostTensor, KvSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import type { LentRun } from '../sequences/lent-run.js'
import { type Carried, type CarriedCache, type CarriedCall, CarriedPorts, NO_PAST, type ReadPast } from './carried.js'
import { CrossTensors } from './cross-tensors.js'
import { Embedder, GivenInputs } from './embedder.js'
import { type LogitRows, readLogits } from './logits.js'
import { OnnxPorts } from './ports.js'
import { refusedPort } from './refused-node.js'
import { refusalBy } from './runtime-refusal.js'
import { openGraph, sessionOf } from './runtime-session.js'
import {
  elementsOf,
  type OnnxRuntimeModule,
  onnxRuntime,
  ran,
  type RuntimeSession,
  type RuntimeTensor,
} from './runtime.js'
import type { PlainModel, RuntimeCall, SessionPasts, Sessions, SessionStep } from './sessions.js'
import { groupsWithRows } from './state-tensors.js'

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
  /** The number of its encoding. */
  readonly encoding: number | undefined
  /** The tokens whose logits are wanted, by their places in `ids`. */
  readonly wanted: readonly number[]
  readonly step: SessionStep
}

/** Inputs of a call that do not follow from its ids and its past, and outputs besides those of every call. */
interface RunInputs {
  readonly given?: Readonly<Record<string, RuntimeTensor>> | undefined
  readonly others?: Readonly<Record<string, RuntimeTensor>> | undefined
  readonly fetches?: readonly string[] | undefined
}

/** @internal The pasts of an unmodified graph over a cache, and the bytes that add outputs with its new rows. `given` are the inputs that its embeddings give. */
export function carriedOf(
  graph: NativeOnnxGraph,
  cache: CarriedCache,
  { Tensor }: OnnxRuntimeModule,
  given?: readonly string[],
): { readonly ports: OnnxPorts; readonly carried: CarriedPorts<RuntimeTensor>; readonly suffix: Uint8Array } {
  const own = sessionOf(graph)
  if (!own.outputNames.includes('logits')) throw refusedPort('logits', 'output', 'it is missing')
  const presents = new OnnxPorts(own, undefined, given).layers.flat().map(port => port.present)
  if (presents.length === 0) {
    const ports = new OnnxPorts(own, undefined, given)
    return { ports, carried: new CarriedPorts<RuntimeTensor>(own, ports, cache, Tensor), suffix: new Uint8Array(0) }
  }
  const described = {
    ...own,
    inputNames: [...own.inputNames, 'kvtide.new_rows'],
    outputNames: [...own.outputNames, ...presents.map(name => `kvtide.new.${name}`)],
  }
  const ports = new OnnxPorts(described, undefined, given)
  const carried = new CarriedPorts<RuntimeTensor>(described, ports, cache, Tensor)
  return { ports, carried, suffix: graph.newRowsSuffix(presents) }
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
  /** The encodings, for a decoder with an encoder. */
  readonly #cross: CrossTensors | undefined
  #isPruned: boolean

  private constructor(
    calling: RuntimeCall,
    session: RuntimeSession,
    carried: CarriedPorts<RuntimeTensor>,
    { groups }: CarriedCache,
    {
      isPruned,
      given,
      cross,
    }: { readonly isPruned: boolean; readonly given: GivenInputs; readonly cross: CrossTensors | undefined },
  ) {
    this.#given = given
    this.#cross = cross
    this.#isPruned = isPruned
    this.#calling = calling
    this.#session = session
    this.#carried = carried
    const sizes = groupsWithRows(groups).flatMap(({ layers, numKvHeads, headDim }) =>
      layers.map(layer => [layer, numKvHeads * headDim] as const),
    )
    this.#sizes = new Map(sizes.toSorted(([one], [other]) => one - other))
    const ports = carried.ports.layers.flat()
    const presents = [...ports, ...carried.ports.states].map(port => port.present)
    this.#fetches = ['logits', ...presents, ...ports.flatMap(port => port.newRows ?? [])]
  }

  static async open(model: PlainModel, calling: RuntimeCall): Promise<Plain> {
    const { cache, runtime, embeddings } = model
    const graph = binding.NativeOnnxGraph.taken(model.graph)
    const { module } = await calling(() => onnxRuntime(runtime))
    // A graph that does not fit the cache is refused before a session is made, which takes long.
    const { ports, carried, suffix } = carriedOf(graph, cache, module, embeddings?.names)
    const embedder = await Embedder.open(embeddings, model, module, calling)
    const given = new GivenInputs(embedder, module, ports.typeOf('position_ids'))
    let plain: Plain | undefined
    try {
      const session = await openGraph(graph, model, module, calling, suffix)
      const { feeds } = carried.call(NO_PAST, 0, undefined, Uint32Array.of(0))
      const cross = ports.cross.length === 0 ? undefined : new CrossTensors(ports, module.Tensor, feeds)
      plain = new Plain(calling, session, carried, cache, { isPruned: hasPrunedHead(graph), given, cross })
      await plain.#probe()
      return plain
    } catch (error) {
      await (plain ?? given).release()
      throw error
    }
  }

  /** Makes the first calls of a decoder with an encoder. */
  async #probe(): Promise<void> {
    try {
      await this.#cross?.probe(async (ids, before, others, fetches) => {
        const { call, outputs } = await this.#run({ read: NO_PAST, carried: before }, ids, { others, fetches })
        return { outputs, carried: this.#carried.carry(outputs, call) }
      })
    } catch (error) {
      throw refusalBy(error)
    }
  }

  /**
   * True if logits of tokens other than the last one cost a call each: a call returns a single row of logits (the graph declares this, or a call has shown it),
   * or a call takes a single token.
   */
  get isPruned(): boolean {
    return this.#isPruned || this.#cross?.isWide === false
  }

  async compute(run: LentRun, step: SessionStep): Promise<void> {
    const { offsets, ids, rows, pasts, encodings } = step
    const { sequences, forget } = pasts as SessionPasts
    if (encodings !== undefined) this.#cross?.take(encodings)
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
      const encoding = encodings?.numbers[place]
      const own = ids.subarray(start, end)
      computed.push(await this.#sequence({ ids: own, start, length, before, encoding, wanted, step }))
    }
    if (this.#carried.hasStates)
      for (const [place, { carried }] of computed.entries()) run.writeStates(place, this.#carried.slot(carried))
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
    this.#cross?.clear()
    await this.#calling(() => this.#session.release()).catch(() => undefined)
    await this.#given.release()
  }

  /**
   * Computes the calls of one sequence: usually a single one, but several if a pruned head does not return all wanted logits, or if the graph takes one token
   * at a time after a past or with a cross cache.
   */
  async #sequence(asked: Asked): Promise<ComputedSequence> {
    const { ids, wanted, before } = asked
    const isWide = wanted.some(place => place < ids.length - 1)
    const isSingle = this.#cross?.isWide === false && (asked.length > 0 || this.#cross.isHeld(asked.encoding as number))
    if (!isSingle && (!isWide || !this.#isPruned)) {
      const { carried, ...whole } = await this.#call(asked, before, 0, ids.length)
      if (ids.length > 1 && whole.logits.rows === 1) this.#isPruned = true
      if (!isWide || !this.#isPruned) return { calls: [whole], carried }
    }
    const calls: Computed[] = []
    let behind = before
    const ends = isSingle ? Array.from(ids, (_, place) => place + 1) : wanted.map(place => place + 1)
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
    { ids, start, length, encoding, step }: Asked,
    before: Before,
    first: number,
    end: number,
  ): Promise<Computed & Left> {
    const own = ids.subarray(first, end)
    const given = await this.#given.of(step, start + first, start + end)
    const cross = encoding === undefined ? undefined : await this.#crossOf(encoding, length + first)
    const behind = { ...before, length: length + first }
    const { call, outputs } = await this.#run(behind, own, { given, others: cross?.feeds, fetches: cross?.fetches })
    if (encoding !== undefined && cross?.isNew === true) this.#cross?.keep(encoding, outputs)
    const logits = readLogits(outputs['logits'] as RuntimeTensor, call.count)
    const layers = shaped(() => this.#carried.newRows(outputs, call, call.count))
    return {
      start: start + first,
      layers,
      logits,
      carried: shaped(() => this.#carried.carry(outputs, call)),
      read: this.#carried.readPresents(outputs, call),
    }
  }

  /** Runs the graph for tokens behind others. */
  async #run(
    { read, carried, length = carried?.length ?? 0 }: Before & { readonly length?: number },
    ids: Uint32Array,
    { given, others = {}, fetches = [] }: RunInputs,
  ): Promise<{ readonly call: CarriedCall<RuntimeTensor>; readonly outputs: Readonly<Record<string, RuntimeTensor>> }> {
    const call = this.#carried.call(read, length, carried, ids, given)
    const feeds = { ...call.feeds, ...others }
    const wanted = [...this.#fetches, ...fetches]
    return { call, outputs: await ran(undefined, () => this.#calling(() => this.#session.run(feeds, wanted))) }
  }

  /** The inputs and outputs for an encoding, in a call after `length` tokens. If its keys and values are missing, a first call without a past returns them. */
  async #crossOf(encoding: number, length: number) {
    const cross = this.#cross as CrossTensors
    if (!cross.isHeld(encoding) && length > 0) {
      const none = { read: NO_PAST, carried: undefined }
      const { outputs } = await this.#run(none, Uint32Array.of(0), {
        others: cross.feeds(encoding),
        fetches: cross.fetches,
      })
      cross.keep(encoding, outputs)
    }
    const isNew = !cross.isHeld(encoding)
    return { isNew, feeds: cross.feeds(encoding), fetches: isNew ? cross.fetches : [] }
  }

  /** Reads a sequence of the step from the pages, if there are no presents: one copy of a layer at a time, and one of all states. */
  #readOf(run: LentRun, place: number, length: number): ReadPast {
    return {
      rows: (layer, isFloats) => {
        const { k, v } = run.gather(layer, place, isFloats)
        const rows = k.length / (this.#sizes.get(layer) as number)
        return { k, v, rows, first: length - rows }
      },
      states: () => run.readStates(place),
    }
  }
}

/** @internal The purposes of a graph's inputs and outputs. Refused if an input is unknown. */
export function plainPorts(graph: NativeOnnxGraph, given?: readonly string[]): OnnxPorts {
  return new OnnxPorts(sessionOf(graph), undefined, given)
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
