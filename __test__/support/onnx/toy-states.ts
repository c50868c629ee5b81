// States of a toy model: counts and hashes of all tokens before, in order, so that the state of other tokens, or of the same in another order, shows up in every
// later token.
//
//     conv   [ count | hash ... ]   f16, of the layer before the attention
//     ssm    [ hash ... ]           f32
//
// A state begins with zeros, as a cache gives it for a new sequence.
import type { ModelDescription } from '../../../index.js'

/** The layers of a toy that keep states: beside the layer with attention, in this layer itself, or instead of it. */
export type ToyStates = 'beside' | 'within' | 'alone'

export const TOY_STATES: readonly ToyStates[] = ['beside', 'within', 'alone']

const CONV = { name: 'conv', shape: [3, 2], dtype: 'f16' } as const
const SSM = { name: 'ssm', shape: [5], dtype: 'f32' } as const
/** The offset of the second tensor among the bytes of a sequence, and all bytes. */
const SECOND = 64
const BYTES = 128
/** Words of each tensor. */
const WORDS = [3, 5] as const
const COUNT = WORDS[0] + WORDS[1]

type Layers = ModelDescription['layers']

/** The layers of a toy with states around the layer with attention, and the place of that layer. */
export function toyLayers(
  attention: Layers[number],
  states: ToyStates,
): { readonly layers: Layers; readonly at: number } {
  const state = { kind: 'state', tensors: [SSM] } as const
  if (states === 'alone') return { layers: [{ kind: 'state', tensors: [CONV] }, state], at: -1 }
  if (states === 'within')
    return { layers: [{ ...attention, tensors: [CONV] } as Layers[number], { kind: 'empty' }, state], at: 0 }
  return { layers: [{ kind: 'state', tensors: [CONV] }, attention, state], at: 1 }
}

/** The state of a sequence: words, the first of which is the number of its tokens. */
export type ToyState = Uint32Array

export const newState = (): ToyState => new Uint32Array(COUNT)

/** Adds a token with these numbers. */
export function addToken(state: ToyState, numbers: ArrayLike<number>): void {
  state[0] = (state[0] as number) + 1
  for (let at = 1; at < COUNT; at++) {
    const number = numbers[at % numbers.length] as number
    state[at] = Math.imul(((state[at] as number) ^ number) + at, 0x01000193)
  }
}

/** The hashes of a state, as numbers for the next token. */
export const hashesOf = (state: ToyState): number[] => [...state.subarray(1)]

/** The bytes that a cache keeps. */
export function stateBytes(state: ToyState): Uint8Array {
  const bytes = new Uint8Array(BYTES)
  const words = new Uint8Array(state.buffer, state.byteOffset, state.byteLength)
  bytes.set(words.subarray(0, 4 * WORDS[0]))
  bytes.set(words.subarray(4 * WORDS[0]), SECOND)
  return bytes
}

/** The state in the bytes of a cache. Fails if something stands behind a tensor. */
export function stateOfBytes(bytes: Uint8Array): ToyState {
  if (bytes.length !== BYTES) throw new Error(`${bytes.length} bytes of states`)
  const rest = [bytes.subarray(4 * WORDS[0], SECOND), bytes.subarray(SECOND + 4 * WORDS[1])]
  if (rest.some(part => part.some(byte => byte !== 0))) throw new Error('bytes behind a state')
  const words = new Uint8Array(4 * COUNT)
  words.set(bytes.subarray(0, 4 * WORDS[0]))
  words.set(bytes.subarray(SECOND, SECOND + 4 * WORDS[1]), 4 * WORDS[0])
  return new Uint32Array(words.buffer)
}
