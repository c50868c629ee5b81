// The states of one sequence between a session and a cache: tensors of the session, each at its offset in the bytes that the cache keeps of all layers together.
//
//     cache    [ layer 0 conv | layer 0 ssm | layer 1 conv | ... ]     one slot a sequence: all states after its last token
//     session  past_conv.0  past_ssm.0  past_conv.1  ...  ->  present_conv.0  present_ssm.0  present_conv.1  ...
//
// A state cannot be cut at a token: tensors of a call are those after all of its tokens. They are copied bit by bit, never converted.
import { invalid, KvTideError } from '../errors/errors.js'
import { dtypeRow, type TensorData } from '../border/host-array.js'
import type { OnnxTensor } from '../border/tensor.js'
import type { LayerGroup, StatePlace } from '../sequences/layer-group.js'
import type { OnnxPorts } from './ports.js'
import { refusedPort } from './refused-node.js'
import { elementsOf } from './runtime.js'
import { type StatePort, tensorOf } from './state-ports.js'

/** A state of the session, and its place in the cache. */
interface Place extends StatePlace {
  readonly port: StatePort
  readonly type: string
}

/** @internal The states of a session over a cache. */
export class StateTensors<T extends OnnxTensor> {
  readonly #Tensor: new (type: string, data: TensorData, dims: readonly number[]) => T
  readonly #places: readonly Place[]
  readonly #bytes: number

  constructor(
    { states }: OnnxPorts,
    groups: readonly LayerGroup[],
    tensor: new (type: string, data: TensorData, dims: readonly number[]) => T,
  ) {
    this.#Tensor = tensor
    const own = groups.filter(({ kind }) => kind === 'state')
    if (own.length > 1) throw invalid('cache', own.length, 'states of all layers on one device')
    const { tensors = [], bytes = 0 } = own[0] ?? {}
    this.#bytes = bytes
    const kept = inOrder(tensors)
    if (kept.length !== states.length)
      throw invalid('cache', kept.length, `a cache with ${states.length} states, as the session has`)
    this.#places = states.map((port, at) => placed(port, kept[at] as StatePlace))
    const [wanted, found] = [placesOf(states), placesOf(kept)]
    const wrong = wanted.findIndex((layer, at) => layer !== found[at])
    if (wrong >= 0)
      throw invalid(
        'cache',
        kept[wrong]?.layer,
        `a cache with ${states[wrong]?.past} in the layer where the session has it`,
      )
  }

  /** True if the session has no states. */
  get isEmpty(): boolean {
    return this.#places.length === 0
  }

  /** The inputs of a call from the bytes of a slot; zeros without one. */
  pasts(slot: Uint8Array | undefined): Record<string, T> {
    if (slot !== undefined && slot.length !== this.#bytes)
      throw invalid('states', slot.length, `the ${this.#bytes} bytes of a sequence's states`)
    const feeds: Record<string, T> = {}
    for (const { port, shape, dtype, type, offset, bytes } of this.#places) {
      const row = dtypeRow(dtype)
      const data = row.make(bytes / row.bytes)
      if (slot !== undefined) bytesOf(data).set(slot.subarray(offset, offset + bytes))
      feeds[port.past] = new this.#Tensor(type, data, [1, ...shape])
    }
    return feeds
  }

  /** The states that a call returned, by the names of the inputs that they become. Refused if one is missing or has another shape. */
  carried(outputs: Readonly<Record<string, T>>): [past: string, present: T][] {
    return this.#places.map(({ port: { past, present }, shape, type }) => {
      const found = outputs[present]
      if (found === undefined) throw invalid('outputs', Object.keys(outputs).join(', '), `an output ${present} as well`)
      const wanted = [1, ...shape]
      if (found.type !== type || found.dims.join() !== wanted.join()) {
        const [value, expected] = [`${found.type} [${found.dims.join(', ')}]`, `${type} [${wanted.join(', ')}]`]
        const details = { argument: present, value, expected }
        throw new KvTideError('SHAPE_MISMATCH', `${present} is ${value}, expected ${expected}`, details)
      }
      return [past, found]
    })
  }

  /** Writes states into the bytes of a slot. Refused if one has a value that is not a number: every later token would have it. */
  slot(tensors: ReadonlyMap<string, T>): Uint8Array {
    const slot = new Uint8Array(this.#bytes)
    for (const { port, dtype, offset } of this.#places) {
      const data = elementsOf(tensors.get(port.past) as T)
      if (hasNaN(data, dtype)) {
        const reason = `${port.present} has a value that is not a number (NaN)`
        throw new KvTideError('RUNTIME_FAILED', `onnxruntime-node failed: ${reason}`, { reason, node: port.present })
      }
      slot.set(bytesOf(data), offset)
    }
    return slot
  }
}

/** @internal The groups of layers with keys and values. */
export function groupsWithRows(groups: readonly LayerGroup[]): LayerGroup[] {
  return groups.filter(({ kind }) => kind !== 'state')
}

/** For each state, the number of layers with states before its own. */
function placesOf(states: readonly { readonly layer: number }[]): number[] {
  const layers = [...new Set(states.map(({ layer }) => layer))]
  return states.map(({ layer }) => layers.indexOf(layer))
}

/** Orders a cache's states like those of a session: by layer and name. */
function inOrder(tensors: readonly StatePlace[]): StatePlace[] {
  return tensors.toSorted((one, other) => one.layer - other.layer || (one.name < other.name ? -1 : 1))
}

/** Checks that a cache has room for a state of the session. */
function placed(port: StatePort, kept: StatePlace): Place {
  const { past, name } = port
  const { shape, dtype } = tensorOf(port) ?? kept
  if (kept.name !== name) throw invalid('cache', kept.name, `a state ${name} in layer ${kept.layer}, as ${past} is`)
  if (dtype !== kept.dtype) throw invalid('cache', kept.dtype, `${dtype} in layer ${kept.layer}, the type of ${past}`)
  if (shape.join() !== kept.shape.join()) {
    const expected = `[${shape.join(', ')}] in layer ${kept.layer}, as ${past} is`
    throw invalid('cache', `[${kept.shape.join(', ')}]`, expected)
  }
  if (dtype === 'bf16')
    throw refusedPort(past, 'input', 'onnxruntime-node has no tensors of bf16 in JavaScript', 'type')
  return { ...kept, port, type: dtypeRow(dtype).alias }
}

function bytesOf({ buffer, byteOffset, byteLength }: TensorData): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

const HALF_INFINITY = 0x7c00

/** O(elements). */
function hasNaN(data: TensorData, dtype: 'f32' | 'f16' | 'bf16'): boolean {
  if (dtype === 'f32') {
    for (const value of data) if (Number.isNaN(value)) return true
    return false
  }
  for (const bits of data) if ((bits & 0x7fff) > HALF_INFINITY) return true
  return false
}
