// Encodings: what a decoder with an encoder attends to besides its own tokens. The states are in JavaScript's memory; the keys and values that the decoder
// computes of them, its cross cache, are in its backend (cross-cache, crossings, cross-tensors). The key of an encoding is a hash of its states and mask. It is part of
// the names of all blocks of a sequence, so a prefix is only found for the same encoding.
import { createHash } from 'node:crypto'

import {
  arrayKind,
  arrayLength,
  asBits,
  fields,
  isArray,
  known,
  type Names,
  numbers,
  sizes,
  typedArray,
} from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { checkInternal, INTERNAL, settle } from '../border/owner.js'
import type { TensorData } from '../border/host-array.js'
import type { PromptOptions } from '../sequences/prompt.js'
import type { TokenIds } from '../sequences/tokens.js'

/** A tensor of onnxruntime-node or transformers.js, or an object with the same two fields. */
export interface TensorLike {
  readonly data: ArrayBufferView
  readonly dims: readonly number[]
}

/** The output of an encoder. */
export interface EncoderOutput extends TensorLike {
  /** The last hidden states, `[frames, width]` or `[1, frames, width]`: floats, or half floats (also as bits) if the decoder takes these. */
  readonly data: ArrayBufferView
  /** 1 for each frame to attend to, 0 for padding; by default all 1. */
  readonly mask?: ArrayLike<number | bigint>
}

/** An input of an encoder: a tensor, or token ids. */
export type EncoderInput = TensorLike | TokenIds

/** @internal The states of an encoding, or its keys and values, in the form in which they are sent to a session thread. */
export interface EncodedStates {
  readonly type: 'float32' | 'float16'
  readonly data: TensorData
  readonly frames: number
  readonly width: number
  /** The mask as the decoder takes it. All 1 if it is omitted. */
  readonly mask: Uint8Array | undefined
}

/** @internal A decoder's expectations of its encoder. */
export interface EncoderFacts {
  readonly type: 'float32' | 'float16'
  /** The number of elements of a state, if the graph declares it. */
  readonly width: number | undefined
  /** The number of states, if the graph takes no other. */
  readonly frames: number | undefined
  readonly hasMask: boolean
  /** True if the encoder gives keys and values of all layers, which are the states of an encoding then. */
  readonly isGiven: boolean
}

const OUTPUT: Names<EncoderOutput> = { data: 0, dims: 0, mask: 0 }
const KINDS = { float32: ['Float32Array'], float16: ['Uint16Array', 'Float16Array'] } as const

/** The states of an encoding; `undefined` for any other value. */
let readStates: (value: unknown) => EncodedStates | undefined

/**
 * The result of {@link OnnxModel.encode}: the states that an encoder has computed from an audio or a text. Any number of sequences can be opened with it. It has
 * no native memory, and need not be disposed of.
 */
export class Encoding {
  /** The hash of its states and mask, in hexadecimal digits. Sequences share cached prefixes only if their keys are the same. */
  declare readonly key: string
  /** The number of states: frames of an audio, tokens of a text. */
  declare readonly frames: number
  /** The number of elements of a state. */
  declare readonly width: number
  readonly #states: EncodedStates

  /** @internal */
  constructor(token: unknown, states: EncodedStates) {
    checkInternal(token, 'Encoding', 'encode(inputs) of an OnnxModel instead')
    const { type, data, frames, width, mask } = states
    this.#states = states
    const hash = createHash('sha256').update(`${type} ${frames} ${width} ${mask?.length}`).update(data)
    if (mask !== undefined) hash.update(mask)
    settle<Encoding, 'key' | 'frames' | 'width'>(this, { key: hash.digest('hex'), frames, width })
  }

  static {
    readStates = value => (typeof value === 'object' && value !== null && #states in value ? value.#states : undefined)
  }
}

/** @internal The states of an encoding. */
export function statesOf(encoding: Encoding): EncodedStates {
  return readStates(encoding) as EncodedStates
}

/** @internal Reads an encoding, or the output of an encoder, for a model: `facts` is `undefined` for a model without an encoder. */
export function readEncoded(value: unknown, facts: EncoderFacts | undefined): Encoding | undefined {
  if (facts === undefined) {
    if (value === undefined) return undefined
    throw invalid('encoded', value, 'no value: the model has no inputs for the output of an encoder')
  }
  if (value === undefined)
    throw invalid('encoded', value, 'the result of encode(inputs), or the output of an encoder: the model decodes one')
  if (isArray(value) || arrayKind(value) !== undefined)
    throw invalid('encoded', value, 'an object with data and dims, or the result of encode(inputs)')
  const own = readStates(value)
  if (own === undefined && facts.isGiven)
    throw invalid('encoded', value, 'the result of encode(inputs): the encoder gives keys and values of each layer')
  if (own === undefined) return new Encoding(INTERNAL, readOutput(value, facts))
  if (own.width !== (facts.width ?? own.width))
    throw invalid('encoded.width', own.width, `${facts.width}, as the model has`)
  if (own.frames !== (facts.frames ?? own.frames))
    throw invalid('encoded.frames', own.frames, `${facts.frames}, as the model has`)
  if (own.type !== facts.type) throw invalid('encoded', own.type, `${facts.type}, as the model has`)
  return value as Encoding
}

/** Reads the output of an encoder, as a copy. */
function readOutput(value: unknown, { type, width: wanted, hasMask }: EncoderFacts): EncodedStates {
  const given = isTensor(value)
    ? fields<EncoderOutput>('encoded', value)
    : known<EncoderOutput>('encoded', value, OUTPUT)
  const { data, dims, mask } = given
  const shape = sizes('encoded.dims', dims)
  const [frames = 0, width = 0] = shape.slice(-2)
  const expected = `[frames, ${wanted ?? 'width'}] or [1, frames, ${wanted ?? 'width'}]`
  if (shape.length < 2 || shape.length > 3 || (shape.length === 3 && shape[0] !== 1) || width !== (wanted ?? width))
    throw invalid('encoded.dims', dims, expected)
  if (frames * width === 0) throw invalid('encoded.dims', dims, `${expected}, without zeros`)
  const array = typedArray<Float32Array | Uint16Array>('encoded.data', data, KINDS[type])
  const length = arrayLength(array)
  if (length !== frames * width) throw invalid('encoded.data.length', length, `${frames * width}, the product of dims`)
  const copy = (type === 'float16' ? asBits(array) : (array as Float32Array)).slice()
  const broken = copy.findIndex(
    type === 'float16' ? bits => (bits & 0x7c00) === 0x7c00 : number => !Number.isFinite(number),
  )
  if (broken >= 0) throw invalid(`encoded.data[${broken}]`, copy[broken], 'a finite number')
  return { type, data: copy, frames, width, mask: mask === undefined ? undefined : readMask(mask, frames, hasMask) }
}

function readMask(value: unknown, frames: number, hasMask: boolean): Uint8Array | undefined {
  const given = numbers('encoded.mask', integral(value), ['Int32Array'], isAttended)
  if (given.length !== frames)
    throw invalid('encoded.mask.length', given.length, `${frames}, one number for each frame`)
  if (!given.includes(1)) throw invalid('encoded.mask', value, 'at least one 1')
  if (!given.includes(0)) return undefined
  if (!hasMask) throw invalid('encoded.mask', value, 'only ones: the decoder takes no mask')
  return Uint8Array.from(given)
}

/** Masks come as 64-bit integers of a tokenizer, as bytes, or as numbers. */
function integral(value: unknown): unknown {
  const kind = arrayKind(value)
  if (kind === undefined) return value
  const array = typedArray<Uint8Array>('encoded.mask', value, [
    'BigInt64Array',
    'Int32Array',
    'Uint32Array',
    'Uint8Array',
  ])
  return Array.from({ length: arrayLength(array) }, (_, place) => Number(array[place]))
}

function isAttended(argument: string, value: unknown): number {
  if (value === 1 || value === 0) return value
  throw invalid(argument, value, '0 or 1')
}

/** True for tensors of a runtime, which have other fields besides. */
function isTensor(value: unknown): boolean {
  return typeof value === 'object' && value !== null && arrayKind(value) === undefined && hasType(value)
}

function hasType(value: object): boolean {
  try {
    return 'type' in value
  } catch {
    return false
  }
}

/** @internal The options under which blocks of sequences of an encoding are found. */
export function encodedNames(prompt: PromptOptions, encoding: Encoding | undefined): PromptOptions {
  if (encoding === undefined) return prompt
  const key = Buffer.concat([Buffer.from('kvtide.encoding'), Buffer.from(encoding.key, 'hex')])
  return { ...prompt, extra: [...(prompt.extra ?? []), { start: 0, end: 1, key: Uint8Array.from(key) }] }
}
