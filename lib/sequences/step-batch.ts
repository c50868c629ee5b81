import type { NativeStepBatch } from '#binding'

import { binding } from '../loading/binding.js'
import { arrayLength, count, fields, isArray, known, list, type Names, typedArray } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { checkInternal, INTERNAL, liveArgument, nativeThis, Owner, settle } from '../border/owner.js'
import type { Engine } from './engine.js'

/** A step's tables, for attention over all its sequences in one call. */
export interface StepArrays {
  /**
   * A row of `maxBlocks` block indices for each sequence, in the step's order; what is behind its blocks stays as it was. Where a
   * block left the window stands -1, which no kernel that keeps to the window reads.
   */
  readonly blockTables: Int32Array
  /** Of each token, its block * the size of one + its slot in it. */
  readonly slotMapping: Int32Array
  /** The position of each token; of a node of a draft tree, where its path leads to. */
  readonly positions: Int32Array
  /** The tokens of each sequence, with those of the step; 0 in rows that the step does not need. */
  readonly lengths: Int32Array
  /** Where the tokens of each sequence begin, and where the last ones end. */
  readonly queryOffsets: Int32Array
}

/** What a {@link StepBatch} is made with: how large steps get that are prepared. */
export interface StepBatchOptions {
  /** Sequences of a step. */
  readonly maxSequences: number
  /** Blocks of a sequence: the entries of a row. */
  readonly maxBlocks: number
  /** Tokens of a step, of all sequences together. */
  readonly maxTokens: number
  /** Arrays of yours, each at least as long as the sizes say and in memory of its own, of each group of layers; made unless given. */
  readonly arrays?: StepArrays | readonly StepArrays[]
}

const OPTIONS: Names<StepBatchOptions> = { maxSequences: 0, maxBlocks: 0, maxTokens: 0, arrays: 0 }
const NAMES = ['blockTables', 'slotMapping', 'positions', 'lengths', 'queryOffsets'] as const

/** @internal The arrays of all groups, and what the addon knows of them. */
export class Tables {
  readonly engine: Engine
  readonly native: NativeStepBatch
  readonly groups: readonly StepArrays[]
  /** The arrays as they cross: one group's behind the other's. */
  readonly arrays: Int32Array[]
  readonly #sequences: number
  readonly #tokens: number

  constructor(engine: Engine, sizes: { readonly [Name in 'maxSequences' | 'maxBlocks' | 'maxTokens']?: unknown }, given: readonly unknown[]) {
    const [sequences, blocks, tokens] = [count('maxSequences', sizes.maxSequences, 1), count('maxBlocks', sizes.maxBlocks, 1), count('maxTokens', sizes.maxTokens, 1)]
    const rows = count('maxSequences * maxBlocks', sequences * blocks)
    const lengths = { blockTables: rows, slotMapping: tokens, positions: tokens, lengths: sequences, queryOffsets: sequences + 1 }
    this.engine = engine
    this.#sequences = sequences
    this.#tokens = tokens
    this.groups = given.map(arrays => readArrays(arrays, lengths))
    this.arrays = this.groups.flatMap(group => NAMES.map(name => group[name]))
    checkApart(this.arrays)
    this.native = new binding.NativeStepBatch(blocks, given.length)
  }

  /** The arrays, each still there, for a step of so many sequences and tokens. */
  checked(sequences: number, tokens: number): Int32Array[] {
    if (sequences > this.#sequences) throw invalid('maxSequences', this.#sequences, `at least ${sequences}, the sequences of the step`)
    if (tokens > this.#tokens) throw invalid('maxTokens', this.#tokens, `at least ${tokens}, the tokens of the step`)
    for (const [place, array] of this.arrays.entries()) typedArray(nameAt(place), array, ['Int32Array'])
    return this.arrays
  }

  dispose(): void {
    this.native.forget()
  }
}

function nameAt(place: number): string {
  return NAMES[place % NAMES.length] as string
}

/** Refuses arrays that lie over each other: what is written to one would be read in the other. */
function checkApart(arrays: readonly Int32Array[]): void {
  for (const [place, array] of arrays.entries()) {
    const over = arrays.findIndex((other, before) => before < place && overlap(array, other))
    if (over >= 0) throw invalid(`arrays.${nameAt(place)}`, array, `memory of its own, apart from that of ${nameAt(over)}`)
  }
}

function behind(array: Int32Array): number {
  return array.byteOffset + array.byteLength
}

function overlap(one: Int32Array, other: Int32Array): boolean {
  return one.buffer === other.buffer && one.byteOffset < behind(other) && other.byteOffset < behind(one)
}

type Lengths = { readonly [Name in keyof StepArrays]: number }

function readArrays(given: unknown, lengths: Lengths): StepArrays {
  const arrays = given === undefined ? undefined : fields<StepArrays>('arrays', given)
  const read = (name: keyof StepArrays): Int32Array => {
    if (arrays === undefined) return made(name, lengths[name])
    const array = typedArray<Int32Array>(`arrays.${name}`, arrays[name], ['Int32Array'])
    if (arrayLength(array) < lengths[name]) throw invalid(`arrays.${name}.length`, arrayLength(array), `at least ${lengths[name]}`)
    return array
  }
  const [blockTables, slotMapping, positions, starts, queryOffsets] = NAMES.map(read) as [Int32Array, Int32Array, Int32Array, Int32Array, Int32Array]
  return Object.freeze({ blockTables, slotMapping, positions, lengths: starts, queryOffsets })
}

function made(name: string, length: number): Int32Array {
  try {
    return new Int32Array(length)
  } catch {
    throw invalid(`${name}.length`, length, 'an array that there is memory for')
  }
}

/**
 * The tables of one step after another, for `PagedKvCache.prepareStep`: rows that did not change from one step to the next are
 * not written again, of others what was added. The arrays belong to the batch until it is disposed of: who writes to them calls
 * `forget`. Its own arrays are those of the first group of layers; where there are several, {@link StepBatch.groups} has all of them.
 *
 * @example
 * ```ts
 * import { attend, PagedKvCache } from 'kvtide'
 *
 * using cache = new PagedKvCache({ capacity: 8, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 2 })
 * const [one, other] = [cache.openSequence(), cache.openSequence()]
 * using batch = cache.stepBatch({ maxSequences: 4, maxBlocks: 2, maxTokens: 16 })
 * using step = cache.prepareStep(batch, { sequences: [one, other], offsets: [0, 5, 6] })
 * step.write(0, { data: new Float32Array(6 * 2).fill(1), shape: [1, 6, 2] }, { data: new Float32Array(6 * 2).fill(3), shape: [1, 6, 2] })
 * console.log(batch.lengths) // Int32Array [5, 1, 0, 0]
 * console.log(batch.slotMapping.subarray(0, 6)) // Int32Array [0, 1, 2, 3, 4, 8]
 * const { out } = attend({ data: new Float32Array(6 * 2), shape: [6, 1, 2] }, { cache, layer: 0, ...batch })
 * console.log(out.toArray()[11]) // 3
 * step.commit()
 * ```
 */
export class StepBatch extends Owner implements StepArrays {
  declare readonly blockTables: Int32Array
  declare readonly slotMapping: Int32Array
  declare readonly positions: Int32Array
  declare readonly lengths: Int32Array
  declare readonly queryOffsets: Int32Array
  /** The tables of each group of layers, in the order of `PagedKvCache.groups`. */
  declare readonly groups: readonly StepArrays[]

  /** @internal */
  constructor(token: unknown, tables: unknown) {
    checkInternal(token, 'StepBatch', 'PagedKvCache.stepBatch(options) instead')
    const { groups } = tables as Tables
    super(token, tables as Tables, StepBatch)
    settle(this, { ...(groups[0] as StepArrays), groups: Object.freeze([...groups]) })
  }

  /**
   * The next step writes every row anew. To be called when an array was written to from elsewhere: rows that did not change are
   * not written again otherwise.
   */
  forget(): void {
    nativeThis<Tables>(this, StepBatch).native.forget()
  }

  /** Lets go of it; the arrays stay what they are. Any later call throws `DISPOSED`; a second one does nothing. */
  override dispose(): void {
    super.dispose()
  }
}

/** @internal A batch of a cache of so many groups. */
export function stepBatch(engine: Engine, groups: number, options: unknown): StepBatch {
  const { maxSequences, maxBlocks, maxTokens, arrays } = known<StepBatchOptions>('options', options, OPTIONS)
  return new StepBatch(INTERNAL, new Tables(engine, { maxSequences, maxBlocks, maxTokens }, readGroups(groups, arrays)))
}

/** Arrays of the caller's for each group; nothing for each where they are made. */
function readGroups(groups: number, arrays: unknown): readonly unknown[] {
  if (arrays === undefined) return Array.from({ length: groups })
  if (!isArray(arrays)) {
    if (groups > 1) throw invalid('arrays', arrays, `an array of ${groups} objects, one for each group`)
    return [arrays]
  }
  const given = list('arrays', arrays, (argument, entry) => fields<StepArrays>(argument, entry), groups)
  if (given.length !== groups) throw invalid('arrays.length', given.length, `${groups}, one for each group`)
  return given
}

/** @internal The tables of a batch of this cache. */
export function tablesOf(engine: Engine, batch: unknown): Tables {
  const found = liveArgument<Tables>('batch', batch, StepBatch)
  if (found.engine !== engine) throw invalid('batch', batch, 'a batch of this cache')
  return found
}
