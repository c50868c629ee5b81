// The encoder of a model: reads its inputs, and runs them in a session of its own, which is opened by the first of them.
import { createHash } from 'node:crypto'

import type { NativeOnnxGraph } from '#binding'

import { arrayKind, arrayLength, fields, isArray, sizes, typedArray } from '../errors/check.js'
import { invalid, KvTideError } from '../errors/errors.js'
import { INTERNAL } from '../border/owner.js'
import type { TensorData } from '../border/host-array.js'
import { readTokens } from '../sequences/tokens.js'
import type { Backend } from './backend.js'
import type { CrossCache } from './cross-cache.js'
import { type EncoderFacts, type EncoderInput, Encoding, type TensorLike } from './encoding.js'
import type { OnnxInput } from './ports.js'
import { integersOf } from './runtime.js'
import { sessionOf } from './runtime-session.js'
import type { SentTensor } from './sessions.js'

/** The arrays of an element type, and the constructor of one of them. */
const ARRAYS: Readonly<Record<string, readonly string[]>> = {
  float32: ['Float32Array'],
  float16: ['Uint16Array', 'Float16Array'],
  int64: ['BigInt64Array'],
  int32: ['Int32Array'],
}

/** The parts of a model that encode. */
interface EncoderParts {
  readonly graph: NativeOnnxGraph
  readonly facts: EncoderFacts
  readonly cross: CrossCache
  readonly backend: Required<Pick<Backend, 'encode'>>
}

/** @internal Encodes the inputs of a model. */
export class Encoder {
  readonly #parts: EncoderParts
  readonly #inputs: readonly OnnxInput[]
  /** Runs that have not ended, by the hash of their inputs. */
  readonly #running = new Map<string, Promise<Encoding>>()

  constructor(parts: EncoderParts) {
    this.#parts = parts
    this.#inputs = sessionOf(parts.graph).inputMetadata
  }

  /** The encoding of some inputs: one that is kept or being computed, otherwise a new one. */
  encode(inputs: unknown): Promise<Encoding> {
    const { cross } = this.#parts
    const read = this.#read(inputs)
    const hash = createHash('sha256')
    for (const [name, { type, data, dims }] of read) hash.update(`${name} ${type} ${dims.join()} `).update(data)
    const key = hash.digest('hex')
    const found = cross.find(key)
    if (found !== undefined) return Promise.resolve(found)
    const running =
      this.#running.get(key) ?? this.#run(key, Object.fromEntries(read)).finally(() => this.#running.delete(key))
    this.#running.set(key, running)
    return running
  }

  async #run(key: string, inputs: Readonly<Record<string, SentTensor>>): Promise<Encoding> {
    const {
      cross,
      backend,
      facts: { type, width: wanted, hasMask },
    } = this.#parts
    const states = await backend.encode(inputs)
    const [batch, frames = 0, width = 0] = states.dims
    if (
      states.type !== type ||
      states.dims.length !== 3 ||
      batch !== 1 ||
      width !== (wanted ?? width) ||
      frames === 0
    ) {
      const reason = `the encoder returned ${states.type} [${states.dims.join(', ')}], expected ${type} [1, frames, ${wanted ?? 'width'}]`
      throw new KvTideError('RUNTIME_FAILED', `onnxruntime-node failed: ${reason}`, { reason })
    }
    // As in transformers, the decoder gets the mask of the encoder's inputs, even if it is longer than the states: such a decoder shortens it.
    const mask = hasMask ? inputs['attention_mask'] : undefined
    const ones = Uint8Array.from((mask?.data ?? []) as unknown as ArrayLike<number>, Number)
    const bytes = mask === undefined || (ones.length === frames && !ones.includes(0)) ? undefined : ones
    const encoding = new Encoding(INTERNAL, { type, data: states.data as TensorData, frames, width, mask: bytes })
    cross.add(key, encoding)
    return encoding
  }

  /** Reads copies of the inputs, in the order of the graph. An `attention_mask` that is not given is all 1. */
  #read(inputs: unknown): [string, SentTensor][] {
    const given: Readonly<Record<string, unknown>> = { ...fields<Record<string, unknown>>('inputs', inputs) }
    const names = this.#inputs.map(({ name }) => name)
    const unknown = Object.keys(given).find(name => !names.includes(name))
    if (unknown !== undefined) throw invalid('inputs', unknown, `only inputs of the encoder: ${names.join(', ')}`)
    const read = new Map<string, SentTensor>()
    for (const input of this.#inputs) {
      if (input.name === 'attention_mask') continue
      read.set(input.name, readInput(`inputs.${input.name}`, given[input.name] as EncoderInput, input))
    }
    const mask = this.#inputs.find(({ name }) => name === 'attention_mask')
    const [[first, { dims = [] }] = ['', {}]] = read as unknown as [[string, Partial<SentTensor>]]
    if (mask === undefined) return [...read]
    const ones = (): readonly number[] => Array.from({ length: dims[1] as number }, () => 1)
    const own = readInput('inputs.attention_mask', (given['attention_mask'] ?? ones()) as EncoderInput, mask)
    if (own.dims[1] !== dims[1])
      throw invalid('inputs.attention_mask.length', own.dims[1], `${dims[1]}, one number for each of ${first}`)
    const numbers = Array.from(own.data as unknown as ArrayLike<number | bigint>, Number)
    if (!numbers.includes(1) || numbers.some(one => one !== 0 && one !== 1))
      throw invalid('inputs.attention_mask', numbers.find(one => one !== 0) ?? 0, 'zeros and ones, at least one 1')
    return [...read, [mask.name, own]]
  }
}

/** Reads an input as a copy: a tensor with a batch of 1, or token ids. */
function readInput(argument: string, value: EncoderInput, { type = 'int64', shape = [] }: OnnxInput): SentTensor {
  const kinds = ARRAYS[type]
  if (kinds === undefined) throw invalid(argument, type, 'a type that JavaScript has arrays for')
  if (isArray(value) || arrayKind(value) !== undefined) {
    if (shape.length !== 2 || (type !== 'int64' && type !== 'int32'))
      throw invalid(argument, value, `a tensor { data, dims } of ${type} [${shape.join(', ')}]`)
    const ids = readTokens(argument, value)
    if (ids.length === 0) throw invalid(`${argument}.length`, 0, 'at least 1')
    return { type, data: integersOf(type, ids), dims: [1, ids.length] }
  }
  const { data, dims } = fields<TensorLike>(argument, value)
  const size = sizes(`${argument}.dims`, dims)
  const isFitting = size.length === shape.length && size.every((one, axis) => fits(one, axis, shape[axis]))
  if (!isFitting) throw invalid(`${argument}.dims`, dims, `[${[1, ...shape.slice(1)].join(', ')}]`)
  const array = typedArray<BigInt64Array>(`${argument}.data`, data, kinds)
  const product = size.reduce((all, one) => all * one, 1)
  if (arrayLength(array) !== product)
    throw invalid(`${argument}.data.length`, arrayLength(array), `${product}, the product of dims`)
  return { type, data: array.slice(), dims: size }
}

/** True if an axis has a size: batches of 1, and the numbers that the graph declares. */
function fits(size: number, axis: number, declared: number | string | undefined): boolean {
  if (axis === 0) return size === 1
  return size > 0 && (typeof declared !== 'number' || declared === size)
}
