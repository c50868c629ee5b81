import { arrayKind, arrayLength, isArray, typedArray } from './check.js'
import { invalid } from './errors.js'

/** A list of whole numbers from 0 to `most`, each read once. */
function read(argument: string, value: unknown, kind: string, most: number): number[] {
  const numbers: number[] = []
  const given = isArray(value) ? value : listed(argument, value, kind)
  const length = isArray(value) ? value.length : arrayLength(given as Float64Array)
  for (let place = 0; place < length; place++) {
    const number = given[place]
    if (typeof number !== 'number' || !Number.isInteger(number) || number < 0 || number > most) {
      throw invalid(`${argument}[${place}]`, number, `a whole number from 0 to ${most}`)
    }
    numbers.push(number)
  }
  return numbers
}

function listed(argument: string, value: unknown, kind: string): ArrayLike<unknown> {
  if (arrayKind(value) === kind) return typedArray<Float64Array>(argument, value, [kind])
  throw invalid(argument, value, `an array of whole numbers, or a ${kind}`)
}

/** The ids of sequences, each read once. */
export function readIds(argument: string, value: unknown): number[] {
  return read(argument, value, 'Float64Array', Number.MAX_SAFE_INTEGER)
}

/** Sequences and offsets of a call. */
export class Batch {
  readonly #sequences: readonly number[]
  readonly #offsets: readonly number[] | undefined

  constructor(sequences: unknown, offsets: unknown) {
    this.#sequences = readIds('sequences', sequences)
    this.#offsets = offsets === undefined ? undefined : read('offsets', offsets, 'Int32Array', 2 ** 31 - 1)
    if (this.#offsets?.length === 0) throw invalid('offsets', offsets, `${this.#sequences.length + 1} numbers, one more than sequences`)
  }

  /** How many numbers it is written down in. */
  get length(): number {
    return 1 + this.#sequences.length + (this.#offsets?.length ?? 0)
  }

  /** Writes it down: the number of sequences, their ids, the offsets. The array is read within a call, so that one is enough. */
  put(): Float64Array {
    if (room.length < this.length) room = new Float64Array(2 * this.length)
    room[0] = this.#sequences.length
    room.set(this.#sequences, 1)
    if (this.#offsets !== undefined) room.set(this.#offsets, 1 + this.#sequences.length)
    return room
  }
}

let room = new Float64Array(64)
