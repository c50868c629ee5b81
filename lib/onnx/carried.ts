import { invalid, KvTideError } from '../border/errors.js'
import { type DType, dtypeRow, type TensorData } from '../border/host-array.js'
import type { HostTensor, KvSource, OnnxTensor } from '../border/tensor.js'
import { readDType } from '../sequences/page-format.js'
import type { LayerGroup, PagedKvCache } from '../sequences/paged-kv-cache.js'
import type { Sequence } from '../sequences/sequence.js'
import { type CarriedPort, type OnnxInputName, type OnnxPorts, type OnnxSession, refusedPort } from './ports.js'

/**
 * What one sequence carries from call to call of a session: pasts go in, presents come out, and new rows go from there into the cache.
 *
 * ```text
 * the last presents   still the sequence's rows: they go in as they are, and nothing is copied
 * the cache           after a match, a cut or a fork without presents: one copy of what a layer holds
 * nothing             an empty sequence: pasts of no rows
 * ```
 * Rows that have left a layer's window are zeros in the past, where they keep the places of the others: a graph with that window does not see
 * them. A past that the graph slides by itself has the rows of its window alone.
 */

/** Makes a tensor of the runtime: `Tensor` of onnxruntime-node. */
export type OnnxTensorClass<T extends OnnxTensor = OnnxTensor> = new (type: never, data: never, dims: readonly number[]) => T

/** Presents that are still the rows of a sequence of `length` tokens, by the names of the pasts that they become. */
export interface Carried<T> {
  readonly length: number
  readonly tensors: ReadonlyMap<string, T>
}

/** One call for one sequence. */
export interface CarriedCall<T> {
  readonly feeds: Record<string, T>
  /** Tokens before the call, and in it. */
  readonly length: number
  readonly count: number
  /** Which rows the outputs of new rows hold: all layers are asked for the same, from a present's start or, below 0, from its end. */
  readonly first: number
}

/** What a layer holds of a sequence: rows `[heads, rows, elements]`, the first of which is that of position `first`. */
export interface PastRows {
  readonly k: TensorData
  readonly v: TensorData
  readonly rows: number
  readonly first: number
}

/** Reads what a layer holds, as floats or as the bits of half floats. */
export type ReadPast = (layer: number, isFloats: boolean) => PastRows | undefined

/** As much of a cache as is looked at. */
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

  constructor(session: OnnxSession, ports: OnnxPorts, cache: CarriedCache, tensor: OnnxTensorClass<T>) {
    this.ports = ports
    this.#cache = cache
    this.#Tensor = tensor as unknown as new (type: string, data: object, dims: readonly number[]) => T
    const sunk = cache.groups.find(group => (group.sinks ?? 0) > 0)
    if (sunk !== undefined) throw invalid('cache.sinks', sunk.sinks, 'none: a graph sees its past without gaps')
    const sizes = cache.groups.flatMap(({ layers, numKvHeads, headDim, valueHeadDim, window }) =>
      layers.map(layer => ({ layer, numKvHeads, dims: [headDim, valueHeadDim] as const, window })))
    this.#sizes = sizes.toSorted((one, other) => one.layer - other.layer)
    const wanted = ports.layers.length
    if (sizes.length !== wanted) throw invalid('cache', sizes.length, `a cache with keys and values of ${wanted} layers, as the session has`)
    for (const [at, pair] of ports.layers.entries()) {
      for (const [side, port] of pair.entries()) this.#check(this.#sizes[at] as LayerSizes, port, side)
    }
    if (session.inputMetadata === undefined) return
    for (const name of ['input_ids', 'attention_mask', 'position_ids'] as const) {
      const type = ports.typeOf(name)
      if (ports.has(name) && type !== 'int64' && type !== 'int32') throw refusedPort(name, 'input', `its type is ${type}, expected int64 or int32`)
    }
  }

  #check({ layer, numKvHeads, dims, window }: LayerSizes, port: CarriedPort, side: number): void {
    const { past, input: { type, shape } } = port
    const dtype = DTYPES[type ?? this.#type()]
    if (dtype === undefined) throw refusedPort(past, 'input', `its type is ${type}, which arrays of JavaScript do not hold`)
    const formats = [this.#cache.keyFormat, this.#cache.valueFormat]
    if (dtype !== this.#cache.dtype) throw invalid('cache.dtype', this.#cache.dtype, `${dtype}, the type of ${past}`)
    if (dtype === 'f16' && formats[side] !== 'f16') throw invalid('cache', formats[side], `pages of f16: ${past} is read back in half floats`)
    for (const [axis, size] of [[1, numKvHeads], [3, dims[side]]] as const) {
      const found = shape?.[axis]
      if (typeof found === 'number' && found > 0 && found !== size) {
        throw invalid('cache', size, `${found} ${axis === 1 ? 'heads' : 'elements a head'} in layer ${layer}, as ${past} has`)
      }
    }
    if (!isSlid(port)) return
    if (window === undefined) throw refusedPort(past, 'input', 'the graph slides it by itself, and the cache declares no window for its layer')
    const rows = fixedRows(port)
    if (rows !== undefined && rows !== window) throw refusedPort(past, 'input', `it has ${rows} rows, and the window of its layer is ${window}`)
  }

  #type(): string {
    return dtypeRow(this.#cache.dtype).alias
  }

  /** The feeds of a call: new tokens behind a sequence of `length`. `O(new tokens)` with presents that fit, else one copy of the past. */
  call(read: ReadPast, length: number, carried: Carried<T> | undefined, ids: Uint32Array): CarriedCall<T> {
    const count = ids.length
    const kept = carried?.length === length ? carried.tensors : undefined
    const feeds: Record<string, T> = {}
    let slid = Infinity
    for (const [at, pair] of this.ports.layers.entries()) {
      const sizes = this.#sizes[at] as LayerSizes
      const rows = this.#rows(sizes, pair[0], length, count)
      if (isSlid(pair[0])) slid = Math.min(slid, rows)
      const isKept = pair.every(({ past }) => kept?.get(past)?.dims[2] === rows)
      const held = isKept || length === 0 ? undefined : read(sizes.layer, this.#cache.dtype === 'f32')
      for (const [side, port] of pair.entries()) {
        const ready = held === undefined ? kept?.get(port.past) : undefined
        feeds[port.past] = ready ?? this.#past(sizes, side as 0 | 1, port, rows, length, held)
      }
    }
    const first = length + count > slid ? -count : length
    this.#inputs(feeds, length, ids, first)
    return { feeds, length, count, first }
  }

  /**
   * How many rows the past of a layer has. One that the graph slides has those of its window, and shows its newest rows at the end. For more tokens
   * at once it has room for all, and nothing slides: in between, new rows would lie behind those of the window, in the middle.
   */
  #rows({ window }: LayerSizes, port: CarriedPort, length: number, count: number): number {
    if (!isSlid(port)) return length
    if (count <= (window as number)) return window as number
    if (fixedRows(port) !== undefined) throw invalid('tokens.length', count, `at most ${window} at once: ${port.past} has no more rows`)
    return length + count
  }

  /** A past from what the cache holds: the newest rows at its end, zeros for those that have left the window. */
  #past({ numKvHeads, dims }: LayerSizes, side: 0 | 1, port: CarriedPort, rows: number, length: number, held: PastRows | undefined): T {
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
    // Held are the rows from `first` on, those of an open step behind them too; the past ends with row `used`.
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
    if (ports.has('num_logits_to_keep')) feeds['num_logits_to_keep'] = new this.#Tensor('int64', new BigInt64Array(1), [])
    if (ports.has('use_cache_branch')) feeds['use_cache_branch'] = new this.#Tensor('bool', Uint8Array.of(length > 0 ? 1 : 0), [1])
  }

  #ints(feeds: Record<string, T>, name: OnnxInputName, size: number, dims: readonly number[], number: (place: number) => number): void {
    if (!this.ports.has(name)) return
    const type = this.ports.typeOf(name)
    if (type === 'int32') {
      feeds[name] = new this.#Tensor(type, Int32Array.from({ length: size }, (_, place) => number(place)), dims)
      return
    }
    const data = new BigInt64Array(size)
    for (let place = 0; place < size; place++) data[place] = BigInt(number(place))
    feeds[name] = new this.#Tensor(type, data, dims)
  }

  /** The first `taken` new rows of each layer, as a cache takes them. Nothing is copied. */
  newRows(outputs: Readonly<Record<string, T>>, { feeds, length, count, first }: CarriedCall<T>, taken: number): KvSource[] {
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
    throw new KvTideError('SHAPE_MISMATCH', `${name} is ${value}, expected ${expected}`, { argument: name, value, expected })
  }

  /** The presents of a call, as the pasts of the next one. */
  carry(outputs: Readonly<Record<string, T>>, { length, count }: CarriedCall<T>): Carried<T> {
    const pairs = this.ports.layers.flat().map(({ past, present }) => [past, outputs[present] as T] as const)
    return { length: length + count, tensors: new Map(pairs) }
  }
}

/** @internal What a cache holds of a sequence; where a layer keeps everything in the dtype that is asked for, in one copy. */
export function readSequence(cache: PagedKvCache, sequence: Sequence | undefined): ReadPast {
  return (layer, isFloats) => {
    const rows = sequence?.length ?? 0
    if (sequence === undefined || rows === 0) return undefined
    const { kind, numKvHeads, headDim, valueHeadDim } = cache.groups.find(group => group.layers.includes(layer)) as LayerGroup
    const [ofKeys, ofValues] = [readDType(cache.keyFormat), readDType(cache.valueFormat)]
    if (kind === 'full' && sequence.retainedLength <= rows && ofKeys === ofValues && isFloats === (ofKeys === 'f32')) {
      const { make } = dtypeRow(ofKeys)
      return { ...cache.gatherInto(sequence, layer, make(numKvHeads * rows * headDim), make(numKvHeads * rows * valueHeadDim)), rows, first: 0 }
    }
    using held = sequence.kv(layer)
    const [k, v] = [held.k, held.v].map(tensor => (isFloats ? tensor.toFloat32Array() : tensor.toArray())) as [TensorData, TensorData]
    return { k, v, rows: held.k.shape[2] as number, first: held.k.keyPositions[0] as number }
  }
}

/** @internal Whether the graph drops rows of a past by itself, so that it has a fixed number of them. */
export function isSlid({ input: { shape } }: CarriedPort): boolean {
  const rows = shape?.[2]
  return typeof rows === 'number' ? rows > 0 : rows !== undefined && rows.includes('sliding')
}

/** The number of rows, where the graph says it. */
function fixedRows({ input: { shape } }: CarriedPort): number | undefined {
  const rows = shape?.[2]
  return typeof rows === 'number' && rows > 0 ? rows : undefined
}
