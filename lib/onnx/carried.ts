// Pasts and presents of one sequence: its pasts are inputs of a call, presents are outputs, and the new rows are copied from those into the cache.
// The pasts of a call come from:
//
//     the last presents   if they are still the sequence's rows: passed as they are, without a copy; after a truncation, one copy of the rest
//     the cache           after a match, a truncation or a fork without presents: one copy of a layer's rows
//     nothing             for an empty sequence: pasts of no rows
//
// Rows that have left a layer's window are zeros in the past, where they keep the places of the others: a graph with that window does not see them. If the
// graph slides a past itself, the past has only the rows of its window.
//
// States of layers (state-tensors) are passed on likewise. A call needs the state after exactly the tokens before it: presents after more tokens are not used.
import { invalid, KvTideError } from '../errors/errors.js'
import { type DType, dtypeRow, type TensorData } from '../border/host-array.js'
import type { HostTensor, KvSource, OnnxTensor } from '../border/tensor.js'
import { readDType } from '../sequences/page-format.js'
import type { LayerGroup } from '../sequences/layer-group.js'
import type { PagedKvCache } from '../paged/paged-kv-cache.js'
import type { Sequence } from '../paged/sequence.js'
import {
  type CarriedPort,
  type LayerPorts,
  LOGITS_TO_KEEP,
  type OnnxInputName,
  type OnnxPorts,
  type OnnxSession,
} from './ports.js'
import { refusedPort } from './refused-node.js'
import { elementsOf } from './runtime.js'
import { groupsWithRows, StateTensors } from './state-tensors.js'

/** The types of pasts whose numbers are codes with scales. */
const CODES: ReadonlySet<string | undefined> = new Set(['int8', 'uint8'])

/** The constructor of a runtime's tensors: `Tensor` of onnxruntime-node. */
export type OnnxTensorClass<T extends OnnxTensor = OnnxTensor> = new (
  type: never,
  data: never,
  dims: readonly number[],
) => T

/** Presents that are still the rows of a sequence of `length` tokens, by the names of the pasts that they become. */
export interface Carried<T> {
  readonly length: number
  readonly tensors: ReadonlyMap<string, T>
}

/** One call for one sequence. */
export interface CarriedCall<T> {
  readonly feeds: Record<string, T>
  /** Tokens before the call, and tokens in it. */
  readonly length: number
  readonly count: number
  /** The first row in the outputs of new rows, the same for all layers: counted from a present's start or, if negative, from its end. */
  readonly first: number
}

/** The rows of a layer that a cache has of a sequence: `[heads, rows, elements]`, beginning with position `first`. */
export interface PastRows {
  readonly k: TensorData
  readonly v: TensorData
  readonly rows: number
  readonly first: number
}

/** Reads what a cache has of a sequence. */
export interface ReadPast {
  /** Reads the rows of a layer, as floats or as the bits of half floats. */
  rows(layer: number, isFloats: boolean): PastRows | undefined
  /** Reads the states of all layers. */
  states(): Uint8Array | undefined
}

/** @internal The past of an empty sequence. */
export const NO_PAST: ReadPast = { rows: () => undefined, states: () => undefined }

/** The properties of a cache that are used here. */
export type CarriedCache = Pick<PagedKvCache, 'groups' | 'dtype' | 'keyFormat' | 'valueFormat'>

/** The sizes of a layer with keys and values of its own. */
interface LayerSizes {
  readonly layer: number
  readonly numKvHeads: number
  readonly dims: readonly [key: number, value: number]
  readonly window: number | undefined
}

const DTYPES: Readonly<Record<string, DType>> = { float32: 'f32', float16: 'f16' }

/** @internal A session's pasts over a cache's layers. */
export class CarriedPorts<T extends OnnxTensor> {
  readonly ports: OnnxPorts
  readonly #cache: CarriedCache
  readonly #Tensor: new (type: string, data: TensorData | BigInt64Array | Int32Array, dims: readonly number[]) => T
  readonly #sizes: readonly LayerSizes[]
  readonly #states: StateTensors<T>

  constructor(session: OnnxSession, ports: OnnxPorts, cache: CarriedCache, tensor: OnnxTensorClass<T>) {
    this.ports = ports
    this.#cache = cache
    this.#Tensor = tensor as unknown as new (type: string, data: object, dims: readonly number[]) => T
    const sunk = cache.groups.find(group => (group.sinks ?? 0) > 0)
    if (sunk !== undefined) throw invalid('cache.sinks', sunk.sinks, 'no sinks: a graph sees its past without gaps')
    const sizes = groupsWithRows(cache.groups).flatMap(({ layers, numKvHeads, headDim, valueHeadDim, window }) =>
      layers.map(layer => ({ layer, numKvHeads, dims: [headDim, valueHeadDim] as const, window })),
    )
    this.#sizes = sizes.toSorted((one, other) => one.layer - other.layer)
    const wanted = ports.layers.length
    if (sizes.length !== wanted)
      throw invalid('cache', sizes.length, `a cache with keys and values of ${wanted} layers, as the session has`)
    for (const [at, pair] of ports.layers.entries()) {
      for (const [side, port] of pair.entries()) this.#check(this.#sizes[at] as LayerSizes, port, side)
    }
    this.#states = new StateTensors<T>(ports, cache.groups, this.#Tensor)
    if (session.inputMetadata === undefined) return
    for (const name of ['input_ids', 'attention_mask', 'position_ids', ...LOGITS_TO_KEEP] as const) {
      const type = ports.typeOf(name)
      if (ports.has(name) && type !== 'int64' && type !== 'int32')
        throw refusedPort(name, 'input', `its type is ${type}, expected int64 or int32`, 'form')
    }
  }

  #check({ layer, numKvHeads, dims, window }: LayerSizes, port: CarriedPort, side: number): void {
    const {
      past,
      input: { type, shape },
    } = port
    const dtype = DTYPES[type ?? this.#type()]
    if (dtype === undefined) {
      const kind = CODES.has(type) ? 'quantised-past' : 'type'
      throw refusedPort(past, 'input', `its type is ${type}, expected float32 or float16`, kind)
    }
    const formats = [this.#cache.keyFormat, this.#cache.valueFormat]
    if (dtype !== this.#cache.dtype) throw invalid('cache.dtype', this.#cache.dtype, `${dtype}, the type of ${past}`)
    if (dtype === 'f16' && formats[side] !== 'f16')
      throw invalid('cache', formats[side], `pages of f16: ${past} is read back in half floats`)
    for (const [axis, size] of [
      [1, numKvHeads],
      [3, dims[side]],
    ] as const) {
      const found = shape?.[axis]
      if (typeof found === 'number' && found > 0 && found !== size) {
        throw invalid(
          'cache',
          size,
          `${found} ${axis === 1 ? 'heads' : 'elements per head'} in layer ${layer}, as ${past} has`,
        )
      }
    }
    if (!isSlid(port)) return
    if (window === undefined)
      throw refusedPort(past, 'input', 'the graph slides it, but the cache declares no window for its layer', 'windows')
    const rows = fixedRows(port)
    if (rows !== undefined && rows !== window)
      throw refusedPort(past, 'input', `it has ${rows} rows, but the window of its layer is ${window}`, 'windows')
  }

  #type(): string {
    return dtypeRow(this.#cache.dtype).alias
  }

  /** Builds the feeds of a call: new tokens behind a sequence of `length`, and those inputs that are `given`. `O(new tokens)` if the presents can be reused, otherwise one copy of the past. */
  call(
    read: ReadPast,
    length: number,
    carried: Carried<T> | undefined,
    ids: Uint32Array,
    given: Readonly<Record<string, T>> = {},
  ): CarriedCall<T> {
    const count = ids.length
    const kept = carried?.length === length ? carried.tensors : undefined
    const feeds: Record<string, T> = {}
    let slid = Infinity
    for (const [at, pair] of this.ports.layers.entries()) {
      const sizes = this.#sizes[at] as LayerSizes
      const rows = this.#rows(sizes, pair[0], length, count)
      if (isSlid(pair[0])) slid = Math.min(slid, rows)
      const isKept = pair.every(({ past }) => kept?.get(past)?.dims[2] === rows)
      const held = isKept || length === 0 ? undefined : read.rows(sizes.layer, this.#cache.dtype === 'f32')
      for (const [side, port] of pair.entries()) {
        const ready = held === undefined ? kept?.get(port.past) : undefined
        feeds[port.past] = ready ?? this.#past(sizes, side as 0 | 1, port, rows, length, held)
      }
    }
    const first = length + count > slid ? -count : length
    this.#inputs(feeds, length, ids, first)
    const states = length === 0 || kept === undefined ? this.#pastStates(read, length) : this.#keptStates(kept)
    Object.assign(feeds, states)
    return { feeds: { ...feeds, ...given }, length, count, first }
  }

  #pastStates(read: ReadPast, length: number): Record<string, T> {
    return this.#states.pasts(length === 0 || this.#states.isEmpty ? undefined : read.states())
  }

  #keptStates(kept: ReadonlyMap<string, T>): Record<string, T> {
    return Object.fromEntries(this.ports.states.map(({ past }) => [past, kept.get(past) as T]))
  }

  /**
   * The number of rows in the past of a layer. A past that the graph slides has the rows of its window, the newest at the end. If more tokens than that are
   * computed at once, it has rows for all of them and nothing slides: otherwise the new rows would end up in the middle.
   */
  #rows({ window }: LayerSizes, port: CarriedPort, length: number, count: number): number {
    if (!isSlid(port)) return length
    if (count <= (window as number)) return window as number
    if (fixedRows(port) !== undefined)
      throw invalid('tokens.length', count, `at most ${window} at once: ${port.past} has no more rows`)
    return length + count
  }

  /** Makes a past from the rows in the cache: the newest rows at its end, zeros for those that have left the window. */
  #past(
    { numKvHeads, dims }: LayerSizes,
    side: 0 | 1,
    port: CarriedPort,
    rows: number,
    length: number,
    held: PastRows | undefined,
  ): T {
    const width = dims[side]
    const shape = [1, numKvHeads, rows, width]
    const type = port.input.type ?? this.#type()
    const row = dtypeRow(DTYPES[type] as DType)
    const used = Math.min(rows, length)
    if (held === undefined) return new this.#Tensor(type, row.make(numKvHeads * rows * width), shape)
    const { rows: stored, first } = held
    const from = side === 0 ? held.k : held.v
    if (stored === rows && stored === length) return new this.#Tensor(type, from, shape)
    const made = row.make(numKvHeads * rows * width)
    // The cache has the rows from `first` on, and behind them those of an open step; the past ends with row `used`.
    const copied = Math.min(length - first, used)
    for (let head = 0; head < numKvHeads; head++) {
      const source = (head * stored + length - first - copied) * width
      made.set(from.subarray(source, source + copied * width), (head * rows + used - copied) * width)
    }
    return new this.#Tensor(type, made, shape)
  }

  #inputs(feeds: Record<string, T>, length: number, ids: Uint32Array, first: number): void {
    const count = ids.length
    this.#ints(feeds, 'input_ids', count, [1, count], place => ids[place] as number)
    this.#ints(feeds, 'attention_mask', length + count, [1, length + count], () => 1)
    this.#ints(feeds, 'position_ids', count, [1, count], place => length + place)
    this.#ints(feeds, 'kvtide.new_rows', count, [count], place => first + place)
    const { ports } = this
    for (const name of LOGITS_TO_KEEP) this.#ints(feeds, name, 1, ports.rankOf(name) === 1 ? [1] : [], () => 0)
    if (ports.has('use_cache_branch'))
      feeds['use_cache_branch'] = new this.#Tensor('bool', Uint8Array.of(length > 0 ? 1 : 0), [1])
  }

  #ints(
    feeds: Record<string, T>,
    name: OnnxInputName,
    size: number,
    dims: readonly number[],
    number: (place: number) => number,
  ): void {
    if (!this.ports.has(name)) return
    const type = this.ports.typeOf(name)
    if (type === 'int32') {
      feeds[name] = new this.#Tensor(
        type,
        Int32Array.from({ length: size }, (_, place) => number(place)),
        dims,
      )
      return
    }
    const data = new BigInt64Array(size)
    for (let place = 0; place < size; place++) data[place] = BigInt(number(place))
    feeds[name] = new this.#Tensor(type, data, dims)
  }

  /** The first `taken` new rows of each layer, in the form that a cache takes. Nothing is copied. */
  newRows(
    outputs: Readonly<Record<string, T>>,
    { feeds, length, count, first }: CarriedCall<T>,
    taken: number,
  ): KvSource[] {
    return this.ports.layers.map((pair, at) => {
      const [k, v] = pair.map((port, side): HostTensor => {
        const past = feeds[port.past] as T
        const rows = isSlid(port) ? (past.dims[2] as number) : length + count
        const present = this.#output(outputs, port.present, at, side, rows)
        const start = Math.min(rows, length + count) - count
        const isSame = (first < 0 ? rows + first : first) === start
        if (port.newRows === undefined || !isSame) return { data: present, range: [start, start + taken] }
        return { data: this.#output(outputs, port.newRows, at, side, count), range: [0, taken] }
      })
      return { k: k as HostTensor, v: v as HostTensor }
    })
  }

  #output(outputs: Readonly<Record<string, T>>, name: string, at: number, side: number, rows: number): T {
    const { numKvHeads, dims } = this.#sizes[at] as LayerSizes
    const found = outputs[name]
    if (found === undefined) throw invalid('outputs', Object.keys(outputs).join(', '), `an output ${name} as well`)
    const wanted = [1, numKvHeads, rows, dims[side]]
    if (found.dims.join() === wanted.join()) return found
    const value = `[${found.dims.join(', ')}]`
    const expected = `[${wanted.join(', ')}]`
    throw new KvTideError('SHAPE_MISMATCH', `${name} is ${value}, expected ${expected}`, {
      argument: name,
      value,
      expected,
    })
  }

  /** Reads rows from the presents of a call, for a next call that cannot use these presents as pasts. */
  readPresents(outputs: Readonly<Record<string, T>>, { length, count }: CarriedCall<T>): ReadPast {
    const rowsOf = (layer: number): PastRows => {
      const [keys, values] = this.ports.layers[this.#sizes.findIndex(sizes => sizes.layer === layer)] as LayerPorts
      const [k, v] = [keys, values].map(({ present }) => elementsOf(outputs[present] as T)) as [TensorData, TensorData]
      const rows = (outputs[keys.present] as T).dims[2] as number
      return { k, v, rows, first: length + count - rows }
    }
    // The states of the call are passed on as they are.
    return { rows: rowsOf, states: () => undefined }
  }

  /** Presents of the first `length` tokens: truncated with one copy if they are longer, `undefined` if they cannot be truncated. */
  cut(carried: Carried<T> | undefined, length: number): Carried<T> | undefined {
    if (carried === undefined || carried.length <= length) return carried
    const ports = this.ports.layers.flat()
    // Rows that a graph has slid out of its past are lost, and a state is that after all of its tokens.
    if (length === 0 || ports.some(isSlid) || !this.#states.isEmpty) return undefined
    const tensors = ports.map(({ past }) => [past, this.#firstRows(carried.tensors.get(past) as T, length)] as const)
    return { length, tensors: new Map(tensors) }
  }

  #firstRows(tensor: T, count: number): T {
    const [, heads, rows, width] = tensor.dims as [number, number, number, number]
    const from = elementsOf(tensor)
    const made = from.slice(0, heads * count * width)
    for (let head = 1; head < heads; head++)
      made.set(from.subarray(head * rows * width, (head * rows + count) * width), head * count * width)
    return new this.#Tensor(tensor.type, made, [1, heads, count, width])
  }

  /** The presents of a call, as the pasts of the next one. */
  carry(outputs: Readonly<Record<string, T>>, { length, count }: CarriedCall<T>): Carried<T> {
    const pairs = this.ports.layers.flat().map(({ past, present }) => [past, outputs[present] as T] as const)
    return { length: length + count, tensors: new Map([...pairs, ...this.#states.carried(outputs)]) }
  }

  /** The cache's layers with keys and values, in the order of the session's. */
  get layers(): number[] {
    return this.#sizes.map(({ layer }) => layer)
  }

  /** True if layers keep states. */
  get hasStates(): boolean {
    return !this.#states.isEmpty
  }

  /** The states among presents, as the bytes that a cache keeps. Refused if one has a value that is not a number. */
  slot({ tensors }: Carried<T>): Uint8Array {
    return this.#states.slot(tensors)
  }
}

/** @internal Reads the rows of a sequence from the cache; with a single copy if a layer keeps all tokens in the requested dtype. */
export function readSequence(cache: PagedKvCache, sequence: Sequence | undefined): ReadPast {
  const rowsOf: ReadPast['rows'] = (layer, isFloats) => {
    const rows = sequence?.length ?? 0
    if (sequence === undefined || rows === 0) return undefined
    const { kind, numKvHeads, headDim, valueHeadDim } = groupsWithRows(cache.groups).find(group =>
      group.layers.includes(layer),
    ) as LayerGroup
    const [ofKeys, ofValues] = [readDType(cache.keyFormat), readDType(cache.valueFormat)]
    if (kind === 'full' && sequence.retainedLength <= rows && ofKeys === ofValues && isFloats === (ofKeys === 'f32')) {
      const { make } = dtypeRow(ofKeys)
      return {
        ...cache.gatherInto(sequence, layer, make(numKvHeads * rows * headDim), make(numKvHeads * rows * valueHeadDim)),
        rows,
        first: 0,
      }
    }
    using held = sequence.kv(layer)
    const [k, v] = [held.k, held.v].map(tensor => (isFloats ? tensor.toFloat32Array() : tensor.toArray())) as [
      TensorData,
      TensorData,
    ]
    return { k, v, rows: held.k.shape[2] as number, first: held.k.keyPositions[0] as number }
  }
  return { rows: rowsOf, states: () => sequence?.states() }
}

/** @internal True if the graph slides a past itself, so that the past has a fixed number of rows. */
export function isSlid({ input: { shape } }: CarriedPort): boolean {
  const rows = shape?.[2]
  return typeof rows === 'number' ? rows > 0 : rows !== undefined && rows.includes('sliding')
}

/** The number of rows, if the graph declares it. */
function fixedRows({ input: { shape } }: CarriedPort): number | undefined {
  const rows = shape?.[2]
  return typeof rows === 'number' && rows > 0 ? rows : undefined
}
