// Lists of sequences and token counts as arguments, checked and flattened into one array for the addon.
import { arrayKind, arrayLength, count, isArray, typedArray, whole } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { liveArgument, nativeOf } from '../border/owner.js'
import type { Sequence } from '../paged/sequence.js'
import type { SequenceHandle, SharedCache } from './shared-cache.js'

/** Sequences of a cache, as numbers or objects. */
export type SequenceList = readonly (number | Sequence)[] | Float64Array

/** Reads the entries of a list as numbers, each once. `check` is called for those that are not whole numbers up to `most`. */
function read(
  argument: string,
  value: unknown,
  kind: string,
  check: (argument: string, entry: unknown) => number,
  most: number,
): number[] {
  const numbers: number[] = []
  const given = isArray(value) ? value : listed(argument, value, kind)
  const length = isArray(value) ? value.length : arrayLength(given as Float64Array)
  for (let place = 0; place < length; place++) {
    const entry = given[place]
    const isFine = typeof entry === 'number' && Number.isInteger(entry) && entry >= 0 && entry <= most
    numbers.push(isFine ? entry : check(`${argument}[${place}]`, entry))
  }
  return numbers
}

function listed(argument: string, value: unknown, kind: string): ArrayLike<unknown> {
  if (arrayKind(value) === kind) return typedArray<Float64Array>(argument, value, [kind])
  throw invalid(argument, value, `an array, or a ${kind}`)
}

/** @internal Reads the numbers of sequences, each once. */
export function readIds(shared: SharedCache, argument: string, value: unknown): number[] {
  return read(argument, value, 'Float64Array', (name, entry) => seqOf(shared, name, entry), Number.MAX_SAFE_INTEGER)
}

/** @internal Reads numbers of tokens, each once. */
export function readCounts(argument: string, value: unknown): number[] {
  return read(argument, value, 'Int32Array', count, COUNT_MAX)
}

/** @internal Pairs of a sequence and its total number of tokens, flattened. */
export function readCapacities(shared: SharedCache, seq: unknown, tokens: unknown): Float64Array {
  if (!isArray(seq) && arrayKind(seq) === undefined)
    return Float64Array.of(seqOf(shared, 'seq', seq), count('tokens', tokens))
  const [ids, totals] = [readIds(shared, 'seq', seq), readCounts('tokens', tokens)]
  if (totals.length !== ids.length)
    throw invalid('tokens.length', totals.length, `${ids.length}, one for each sequence`)
  const named = new Set<number>()
  for (const [place, id] of ids.entries()) {
    if (named.has(id)) throw invalid(`seq[${place}]`, id, 'each sequence once')
    named.add(id)
  }
  return Float64Array.from(ids.flatMap((id, place) => [id, totals[place] as number]))
}

/** @internal The sequences of a call, and the range of its tokens for each. */
export class SequenceBatch {
  readonly #sequences: readonly number[]
  readonly #offsets: readonly number[] | undefined

  constructor(shared: SharedCache, sequences: unknown, offsets: unknown) {
    this.#sequences = readIds(shared, 'sequences', sequences)
    this.#offsets = offsets === undefined ? undefined : readCounts('offsets', offsets)
    if (this.#offsets?.length === 0)
      throw invalid('offsets', offsets, `${this.#sequences.length + 1} numbers, one more than sequences`)
  }

  get sequences(): readonly number[] {
    return this.#sequences
  }

  /** The start of each sequence's tokens, and the end of the last ones. Without given offsets, each sequence has one token. */
  get offsets(): Int32Array {
    if (this.#offsets !== undefined) return new Int32Array(this.#offsets)
    const offsets = new Int32Array(this.#sequences.length + 1)
    for (let place = 0; place < offsets.length; place++) offsets[place] = place
    return offsets
  }

  /** The number of numbers that {@link put} writes. */
  get length(): number {
    return 1 + this.#sequences.length + (this.#offsets?.length ?? 0)
  }

  /** An array with the number of sequences, their ids, and the offsets. The addon reads it during the call, so all calls share one array. */
  put(): Float64Array {
    if (room.length < this.length) room = new Float64Array(2 * this.length)
    room[0] = this.#sequences.length
    room.set(this.#sequences, 1)
    if (this.#offsets !== undefined) room.set(this.#offsets, 1 + this.#sequences.length)
    return room
  }
}

const COUNT_MAX = 2 ** 31 - 1
let room = new Float64Array(64)

/** @internal The number of a sequence of this cache, given as a number or as its object. */
export function seqOf(shared: SharedCache, argument: string, seq: unknown): number {
  const { sequence } = shared
  if (nativeOf(seq, sequence) === undefined) return whole(argument, seq)
  const found = liveArgument<SequenceHandle>(argument, seq, sequence)
  if (found.shared !== shared) throw invalid(argument, seq, 'a sequence of this cache')
  return found.id
}
