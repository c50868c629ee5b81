// Step batches: the typed arrays that describe a step to attention kernels (block tables, slot mapping, lengths), one set per group of layers. They are reused:
// from one step to the next, only changed entries are written.
import type { NativeStepBatch } from '#binding'

import { arrayLength, count, fields, isArray, known, list, type Names, typedArray } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { checkInternal, INTERNAL, liveArgument, nativeThis, Owner, settle } from '../border/owner.js'
import { binding } from '../loading/binding.js'
import type { SharedCache } from './shared-cache.js'

/** The tables of a step in one group of layers, for attention over all its sequences in one call. */
export interface StepArrays {
  /**
   * A row of `maxBlocks` block indices for each sequence, in the step's order. Entries behind a sequence's blocks keep their old values.
   * A block that left the window is -1; a kernel that respects the window does not read it.
   */
  readonly blockTables: Int32Array
  /** The slot of each token: its block * `blockSize` + its place in the block. */
  readonly slotMapping: Int32Array
  /** The position of each token. The position of a node of a draft tree follows from its depth. */
  readonly positions: Int32Array
  /** The number of tokens of each sequence, including those of the step; 0 in rows that the step does not use. */
  readonly lengths: Int32Array
  /** The start of each sequence's tokens, and the end of the last ones. */
  readonly queryOffsets: Int32Array
}

/** Options of a {@link StepBatch}: the maximum sizes of its steps. */
export interface StepBatchOptions {
  /** The maximum number of sequences in a step. */
  readonly maxSequences: number
  /** The maximum number of blocks of a sequence, which is the length of a row. */
  readonly maxBlocks: number
  /** The maximum number of tokens in a step, of all sequences together. */
  readonly maxTokens: number
  /** Your own arrays, for one group or for each; by default they are allocated. Each must be at least as long as the sizes require, and none may overlap another. */
  readonly arrays?: StepArrays | readonly StepArrays[]
}

const OPTIONS: Names<StepBatchOptions> = { maxSequences: 0, maxBlocks: 0, maxTokens: 0, arrays: 0 }
const NAMES = ['blockTables', 'slotMapping', 'positions', 'lengths', 'queryOffsets'] as const

/** @internal The arrays of all groups, and the addon's record of their content. */
export class BatchArrays {
  readonly shared: SharedCache
  readonly native: NativeStepBatch
  readonly groups: readonly StepArrays[]
  /** The arrays of all groups in one list, as they cross to the addon. */
  readonly arrays: Int32Array[]
  readonly #sequences: number
  readonly #tokens: number

  constructor(
    shared: SharedCache,
    sizes: { readonly [Name in 'maxSequences' | 'maxBlocks' | 'maxTokens']?: unknown },
    given: readonly unknown[],
  ) {
    const [sequences, blocks, tokens] = [
      count('maxSequences', sizes.maxSequences, 1),
      count('maxBlocks', sizes.maxBlocks, 1),
      count('maxTokens', sizes.maxTokens, 1),
    ]
    const rows = count('maxSequences * maxBlocks', sequences * blocks)
    const lengths = {
      blockTables: rows,
      slotMapping: tokens,
      positions: tokens,
      lengths: sequences,
      queryOffsets: sequences + 1,
    }
    this.shared = shared
    this.#sequences = sequences
    this.#tokens = tokens
    this.groups = given.map(arrays => readArrays(arrays, lengths))
    this.arrays = this.groups.flatMap(group => NAMES.map(name => group[name]))
    checkApart(this.arrays)
    this.native = new binding.NativeStepBatch(blocks, given.length)
  }

  /** Returns the arrays for a step of this many sequences and tokens. Refused if they are too small or their buffer was detached. */
  checked(sequences: number, tokens: number): Int32Array[] {
    if (sequences > this.#sequences)
      throw invalid('maxSequences', this.#sequences, `at least ${sequences}, the sequences of the step`)
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

/** Refuses arrays that overlap: a write to one would change the other. */
function checkApart(arrays: readonly Int32Array[]): void {
  for (const [place, array] of arrays.entries()) {
    const over = arrays.findIndex((other, before) => before < place && overlap(array, other))
    if (over >= 0)
      throw invalid(`arrays.${nameAt(place)}`, array, `memory that does not overlap that of ${nameAt(over)}`)
  }
}

function endOf(array: Int32Array): number {
  return array.byteOffset + array.byteLength
}

function overlap(one: Int32Array, other: Int32Array): boolean {
  return one.buffer === other.buffer && one.byteOffset < endOf(other) && other.byteOffset < endOf(one)
}

/** The arrays of a batch if no layer has keys and values. */
function none(): StepArrays {
  const [blockTables, slotMapping, positions, lengths, queryOffsets] = NAMES.map(() => new Int32Array(0)) as [
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
  ]
  return { blockTables, slotMapping, positions, lengths, queryOffsets }
}

type Lengths = { readonly [Name in keyof StepArrays]: number }

function readArrays(given: unknown, lengths: Lengths): StepArrays {
  const arrays = given === undefined ? undefined : fields<StepArrays>('arrays', given)
  const read = (name: keyof StepArrays): Int32Array => {
    if (arrays === undefined) return made(name, lengths[name])
    const array = typedArray<Int32Array>(`arrays.${name}`, arrays[name], ['Int32Array'])
    if (arrayLength(array) < lengths[name])
      throw invalid(`arrays.${name}.length`, arrayLength(array), `at least ${lengths[name]}`)
    return array
  }
  const [blockTables, slotMapping, positions, starts, queryOffsets] = NAMES.map(read) as [
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
  ]
  return Object.freeze({ blockTables, slotMapping, positions, lengths: starts, queryOffsets })
}

function made(name: string, length: number): Int32Array {
  try {
    return new Int32Array(length)
  } catch {
    throw invalid(`${name}.length`, length, 'a length for which there is memory')
  }
}

/**
 * The tables of successive steps, filled by `PagedKvCache.prepareStep`. From one step to the next, only changed entries are written. The
 * arrays belong to the batch until it is disposed of; call `forget` after writing to them yourself. The arrays of the batch itself are
 * those of the first group of layers; {@link StepBatch.groups} has those of all. A group of states has no tables.
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
  /** The tables of each group of layers with keys and values, in the order of `PagedKvCache.groups`. */
  declare readonly groups: readonly StepArrays[]

  /** @internal */
  constructor(token: unknown, tables: unknown) {
    checkInternal(token, 'StepBatch', 'PagedKvCache.stepBatch(options) instead')
    const { groups } = tables as BatchArrays
    super(token, tables as BatchArrays, StepBatch)
    settle(this, { ...(groups[0] ?? none()), groups: Object.freeze([...groups]) })
  }

  /** Makes the next step write every row again. Call it after writing to an array yourself. */
  forget(): void {
    nativeThis<BatchArrays>(this, StepBatch).native.forget()
  }

  /** Disposes of the batch; the arrays keep their content. Later calls throw `DISPOSED`; a second `dispose()` does nothing. */
  override dispose(): void {
    super.dispose()
  }
}

/** @internal Makes a step batch for a cache of this many groups. */
export function stepBatch(shared: SharedCache, groups: number, options: unknown): StepBatch {
  const { maxSequences, maxBlocks, maxTokens, arrays } = known<StepBatchOptions>('options', options, OPTIONS)
  return new StepBatch(
    INTERNAL,
    new BatchArrays(shared, { maxSequences, maxBlocks, maxTokens }, readGroups(groups, arrays)),
  )
}

/** The caller's arrays for each group; `undefined` for each if they are to be allocated. */
function readGroups(groups: number, arrays: unknown): readonly unknown[] {
  if (arrays === undefined) return Array.from({ length: groups })
  if (!isArray(arrays)) {
    if (groups !== 1) throw invalid('arrays', arrays, `an array of ${groups} objects, one for each group`)
    return [arrays]
  }
  const given = list('arrays', arrays, (argument, entry) => fields<StepArrays>(argument, entry), groups)
  if (given.length !== groups) throw invalid('arrays.length', given.length, `${groups}, one for each group`)
  return given
}

/** @internal The arrays of a batch of this cache. */
export function tablesOf(shared: SharedCache, batch: unknown): BatchArrays {
  const found = liveArgument<BatchArrays>('batch', batch, StepBatch)
  if (found.shared !== shared) throw invalid('batch', batch, 'a batch of this cache')
  return found
}
