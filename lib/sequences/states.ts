// States of sequences as bytes: all tensors that layers keep for a sequence besides keys and values. The cache's group of states has the offset of each tensor.
import { count, typedArray } from '../errors/check.js'
import { invalid } from '../errors/errors.js'

/** The calls for states that the native objects share. */
interface NativeStates {
  stateBytes(): number
}

/** @internal Reads the states of a sequence into a new array. */
export function readStates(native: NativeStates, read: (out: Uint8Array) => void): Uint8Array {
  const states = made(native.stateBytes())
  read(states)
  return states
}

/** @internal Checks the index of a sequence in a step of `sequences` sequences, and the bytes of its states. */
export function statesArgument(index: unknown, sequences: number | undefined, bytes: unknown): [number, Uint8Array] {
  return [indexArgument(index, sequences), typedArray<Uint8Array>('bytes', bytes, ['Uint8Array'])]
}

/** @internal Checks the index of a sequence in a step; the addon checks it if their number is unknown. */
export function indexArgument(index: unknown, sequences?: number): number {
  if (sequences !== undefined && !(typeof index === 'number' && index < sequences))
    throw invalid('index', index, `below ${sequences}, the number of sequences of the step`)
  return count('index', index)
}

function made(bytes: number): Uint8Array {
  try {
    return new Uint8Array(bytes)
  } catch {
    throw invalid('bytes', bytes, 'a number of bytes for which there is memory')
  }
}
