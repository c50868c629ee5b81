import type { NativePagedKvCache, NativeView } from '#binding'

import { count, known, type Names, optional } from '../border/check.js'
import { type DType, dtypeRow, type TensorData } from '../border/dtype.js'
import { KvTideError } from '../border/errors.js'
import { meta } from '../border/host-array.js'
import { put, readTensor, type TokenSource } from '../border/host-tensor.js'
import { INTERNAL, nativeThis, Owner, settle } from '../border/owner.js'
import { type Kv, tensorOf } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { Batch, readCapacities, seqOf, type SequenceList } from './batch.js'
import { type CacheEvents, type EventsOptions, readEvents } from './cache-events.js'
import { Engine } from './engine.js'
import { type PagedKvCacheOptions, readOptions } from './options.js'
import { type PageFormat, readDType } from './page-format.js'
import type { PrefixMatch } from './prefix-match.js'
import { type AllocationOptions, type Explanation, type PrefixKeys, type PromptOptions, readAllocation, readExplanation, readKeys, readTokens, type TokenIds } from './prompt.js'
import { type AppendOptions, createSequence, findPrefix, type MatchOptions, type SequenceOptions } from './sequence-options.js'
import { Sequence } from './sequence.js'
import { pagedStats, type PagedStats } from './stats.js'
import { type StepBatch, stepBatch, type StepBatchOptions, tablesOf } from './step-batch.js'
import { beginStep, type Step, type StepOptions } from './step.js'
import { room, type TokenVector, vector } from './token-vector.js'

const APPEND: Names<AppendOptions> = { tokens: 0 }

/** Layers that keep the same tokens in the same sizes on the same device: they share block tables, and have a pool of their own. */
export interface LayerGroup {
  /** They keep every token, or a window. */
  readonly kind: 'full' | 'sliding'
  /** Positions that a query sees, its own among them. */
  readonly window?: number
  /** Tokens at the start that stay visible besides. */
  readonly sinks?: number
  /** The layers with keys and values of their own, ascending. */
  readonly layers: readonly number[]
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Elements of one head of K. */
  readonly headDim: number
  /** Elements of one head of V. */
  readonly valueHeadDim: number
  /** Where they live. */
  readonly device: string
}

/**
 * Keys and values of many sequences, all layers, in blocks that sequences share: of layers that are alike, or of a model whose layers
 * keep everything, slide, or share those of others. One step, one transaction, one snapshot for all layers.
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 *
 * using cache = new PagedKvCache({ capacity: 64, numLayers: 2, numKvHeads: 1, headDim: 4 })
 * const seq = cache.createSequence()
 * cache.writeKv(seq, 0, 0, new Float32Array([1, 2, 3, 4]), new Float32Array([5, 6, 7, 8]))
 * console.log(cache.readKv(seq, 0, 0).value) // Float32Array [5, 6, 7, 8]
 * cache.dropSequence(seq)
 * console.log(cache.poolUtilization()) // 0
 * ```
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 *
 * const sizes = { numKvHeads: 1, headDim: 2 }
 * const model = { layers: [{ kind: 'sliding', window: 4, ...sizes }, { kind: 'full', ...sizes }, { kind: 'shared', with: 1, ...sizes }] } as const
 * using cache = new PagedKvCache({ model, blockSize: 4, capacity: 16 })
 * const chat = cache.openSequence()
 * const rows = (n: number) => ({ data: new Float32Array(n * 2).fill(n), shape: [1, n, 2] })
 * using step = cache.beginStep({ sequences: [chat], offsets: [0, 6] })
 * for (let layer = 0; layer < cache.numLayers; layer++) {
 *   if (layer < 2) step.write(layer, rows(6), rows(6)) // the last one has none of its own
 *   const { out } = step.attend(layer, { data: new Float32Array(6 * 2), shape: [6, 1, 2] })
 *   console.log(out.shape) // [6, 1, 2]
 * }
 * step.commit()
 * console.log(chat.length, cache.groups.map(group => group.kind).join()) // 6 'sliding,full'
 * ```
 */
export class PagedKvCache extends Owner {
  /** Blocks of all pools. */
  declare readonly capacity: number
  /** Tokens of a block. */
  declare readonly blockSize: number
  /** Layers of the model. */
  declare readonly numLayers: number
  /** The layers that share block tables, in the order of their first ones: one group where all layers are alike. */
  declare readonly groups: readonly LayerGroup[]
  /** Heads of K and V, of the first group. */
  declare readonly numKvHeads: number
  /** Elements of one head of K, of the first group. */
  declare readonly headDim: number
  /** Elements of one head of V, of the first group. */
  declare readonly valueHeadDim: number
  /** The element type of what goes in. */
  declare readonly dtype: DType
  /** How pages keep K. */
  declare readonly keyFormat: PageFormat
  /** How pages keep V. */
  declare readonly valueFormat: PageFormat
  /** True when K is rotated before it is quantised. */
  declare readonly hadamard: boolean
  /** Bytes of pages that one token of all layers takes, its share of scales included. */
  declare readonly bytesPerToken: number
  /** Where it lives; the first group, where others live elsewhere. */
  declare readonly device: string

  constructor(options: PagedKvCacheOptions) {
    const { form, clock } = readOptions(options)
    const native = 'model' in form ? binding.NativePagedKvCache.ofModel(form) : new binding.NativePagedKvCache(form)
    super(INTERNAL, new Engine(native, clock, form.events, Sequence), PagedKvCache)
    const { blockSize, dtype, keyFormat, valueFormat, hadamard } = form
    const groups = readGroups(native.groups(), 'model' in form ? form.devices : [form.device])
    const { numKvHeads, headDim, valueHeadDim, device } = groups[0] as LayerGroup
    const [capacity, numLayers, bytesPerToken] = [native.totalCount(), native.numLayers(), native.bytesPerToken()]
    settle(this, { capacity, blockSize, numLayers, groups, numKvHeads, headDim, valueHeadDim, dtype, keyFormat, valueFormat, hadamard, bytesPerToken, device })
  }

  /** Blocks that can be taken, those that only prompts find included. */
  get freeCount(): number {
    return own(this).native.freeCount()
  }

  /** Blocks in all. */
  get totalCount(): number {
    return own(this).native.totalCount()
  }

  /** A new sequence, as its number: empty, or with what a prompt has found. Numbers count up from 0 and are never used again. */
  createSequence(options: SequenceOptions = {}): number {
    return createSequence(own(this), options)
  }

  /** As {@link createSequence}, as its object. */
  openSequence(options: SequenceOptions = {}): Sequence {
    const engine = own(this)
    return new Sequence(INTERNAL, engine, createSequence(engine, options))
  }

  /** The object of a sequence. */
  sequence(id: number): Sequence {
    const engine = own(this)
    const seq = seqOf(engine, 'id', id)
    engine.native.checkSequence(seq)
    return new Sequence(INTERNAL, engine, seq)
  }

  /** Ends a sequence and gives all its blocks back; those that prompts find stay until they have to make room. */
  dropSequence(seq: number | Sequence): void {
    const engine = own(this)
    engine.change(native => native.dropSequence(seqOf(engine, 'seq', seq)))
  }

  /**
   * The longest start of a prompt that is in the cache, in all layers, in whole blocks: it stays there while the match lives. At most all tokens
   * but the last, whose logits are needed; of a window, its sinks, what the next token sees and the last token found have to be there.
   */
  match(tokens: TokenIds, options: MatchOptions = {}): PrefixMatch {
    return findPrefix(own(this), tokens, options)
  }

  /**
   * Whether every group has room for a new sequence, of so many tokens or of a prompt, appended at once: the scarcest one answers.
   * Of a prompt, blocks that others hold cost nothing, those that nobody holds are taken again; a group that slides needs of
   * what is found only what it keeps.
   */
  canAllocate(tokens: number | TokenIds, options: AllocationOptions = {}): boolean {
    return readAllocation(own(this), tokens, options)
  }

  /** How far a prompt is found, and why no further. For who runs the cache: it tells of other tenants' prompts. */
  explain(tokens: TokenIds, options: PromptOptions = {}): Explanation {
    return readExplanation(own(this), tokens, options)
  }

  /** From now on nothing that is in it is found by a prompt. */
  forgetPrefixes(): void {
    own(this).change(native => native.forgetPrefixes())
  }

  /**
   * What happens to the blocks that prompts find, for a router that follows it: to those of the first group that keeps everything, which
   * is what a prompt needs most of, or of the first group where all slide. The cache keeps as many events as it was made
   * to (`events`); a reader that is slower misses the oldest, and is told how many.
   */
  events(options: EventsOptions = {}): CacheEvents {
    return readEvents(own(this), options)
  }

  /** The names of a prompt's whole blocks, as events have them, there or not. What they depend on: see {@link PrefixNamer}, which needs no cache. */
  keys(tokens: TokenIds, options: PromptOptions = {}): string[] {
    return readKeys(own(this).native, tokens, options)
  }

  /** The names of all blocks that prompts find, for a router that begins to follow or has missed events. O(blocks). */
  indexedKeys(): PrefixKeys {
    return own(this).native.indexedKeys()
  }

  /** Gives sequences blocks for so many tokens in total each: all that are missing, or throws `OUT_OF_BLOCKS` and takes none. */
  ensureCapacity(seq: number | Sequence, tokens: number): void
  ensureCapacity(seq: SequenceList, tokens: readonly number[] | Int32Array): void
  ensureCapacity(seq: number | Sequence | SequenceList, tokens: number | readonly number[] | Int32Array): void {
    const engine = own(this)
    const wanted = readCapacities(engine, seq, tokens)
    engine.change(native => native.ensureCapacities(wanted))
  }

  /** Writes one token of one layer; the sequence grows by itself. Where layers are of several groups, steps and appends write all of them. */
  writeKv(seq: number | Sequence, layer: number, pos: number, key: TokenVector, value: TokenVector): void {
    const engine = own(this)
    const at = place(engine, seq, layer, pos)
    const [k, v] = [vector('key', key, this.dtype), vector('value', value, this.dtype)]
    engine.change(native => native.writeKv(...at, put(k, 0), put(v, 1), meta))
  }

  /**
   * Writes neighbouring tokens of one layer from `pos` on: `[numKvHeads, n, headDim]`, or with a 1 before it; with the layout
   * `bshd` `[n, numKvHeads, headDim]`. The sequence grows by itself. As {@link writeKv}, of layers of one group.
   */
  writeTokens(seq: number | Sequence, layer: number, pos: number, k: TokenSource, v: TokenSource): void {
    const engine = own(this)
    const at = place(engine, seq, layer, pos)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    engine.change(native => native.writeTokens(...at, put(keys, 0), put(values, 1), meta))
  }

  /**
   * Appends tokens of all layers, which are alike, to sequences, in one call: all of it, or nothing.
   *
   * @param k `[numLayers, numKvHeads, tokens, headDim]`; with the layout `bshd` `[numLayers, tokens, numKvHeads, headDim]`
   * @param offsets sequence i gets the tokens `offsets[i]` to `offsets[i + 1]`; left out, each gets one
   * @throws KvTideError `OUT_OF_BLOCKS`, before anything changes
   */
  append(sequences: SequenceList, k: TokenSource, v: TokenSource, offsets?: readonly number[] | Int32Array, options: AppendOptions = {}): void {
    const engine = own(this)
    const batch = new Batch(engine, sequences, offsets)
    const { tokens } = known<AppendOptions>('options', options, APPEND)
    const ids = optional(readTokens, 'tokens', tokens)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    engine.change(native => native.append(batch.put(), batch.length, put(keys, 0), put(values, 1), meta, ids))
  }

  /** Begins a step: tokens that a model computes layer by layer. */
  beginStep(options: StepOptions): Step {
    return beginStep(own(this), options)
  }

  /** Arrays that {@link prepareStep} fills, of yours or its own, for each group of layers. */
  stepBatch(options: StepBatchOptions): StepBatch {
    return stepBatch(own(this), this.groups.length, options)
  }

  /** As {@link beginStep}, and writes down where the tokens go and what the sequences hold; where that is refused, nothing has begun. */
  prepareStep(batch: StepBatch, options: StepOptions): Step {
    const engine = own(this)
    return beginStep(engine, options, tablesOf(engine, batch))
  }

  /**
   * All tokens of a layer, as copies: `[numKvHeads, n, headDim]`; blocks that a window has left behind are not among
   * them, and `keyPositions` says where the others stand. What is low-bit comes as 32-bit floats. Slots that nobody wrote are zeros.
   */
  gather(seq: number | Sequence, layer: number): Kv {
    const engine = own(this)
    const [k, v] = engine.native.gather(seqOf(engine, 'seq', seq), count('layer', layer)) as [NativeView, NativeView]
    return { k: tensorOf(k), v: tensorOf(v) }
  }

  /** As {@link gather}, into arrays of yours, of just as many elements: see {@link Sequence.retainedLength}. */
  gatherInto<T extends TensorData>(seq: number | Sequence, layer: number, k: T, v: T): { k: T; v: T } {
    const engine = own(this)
    const at = [seqOf(engine, 'seq', seq), count('layer', layer)] as const
    engine.native.gatherInto(...at, room('k', k, this.keyFormat, this.dtype), room('v', v, this.valueFormat, this.dtype))
    return { k, v }
  }

  /**
   * Reads one token of one layer; for f16 and bf16 its bits, of low-bit pages 32-bit floats. Throws `POSITION_OUT_OF_RANGE` where
   * none was written.
   */
  readKv(seq: number | Sequence, layer: number, pos: number): { readonly key: TensorData; readonly value: TensorData } {
    const group = own(this).groupOf(layer)
    const { numKvHeads, headDim, valueHeadDim } = this.groups[group] as LayerGroup
    const made = (format: PageFormat, dim: number): TensorData => dtypeRow(readDType(format, this.dtype)).make(numKvHeads * dim)
    return this.readKvInto(seq, layer, pos, made(this.keyFormat, headDim), made(this.valueFormat, valueHeadDim))
  }

  /** Reads one token of one layer into arrays of yours. */
  readKvInto<T extends TensorData>(seq: number | Sequence, layer: number, pos: number, key: T, value: T): { key: T; value: T } {
    const engine = own(this)
    const at = place(engine, seq, layer, pos)
    engine.native.readKvInto(...at, room('key', key, this.keyFormat, this.dtype), room('value', value, this.valueFormat, this.dtype))
    return { key, value }
  }

  /** The used share of the pool, 0 to 1. */
  poolUtilization(): number {
    return own(this).native.poolUtilization()
  }

  /** Tokens written: highest written position + 1; 0 for an unknown sequence. */
  sequenceLength(seq: number | Sequence): number {
    return own(this).native.sequenceLength(seqOf(own(this), 'seq', seq))
  }

  /** Slots of its blocks; 0 for an unknown sequence. */
  sequenceCapacity(seq: number | Sequence): number {
    return own(this).native.sequenceCapacity(seqOf(own(this), 'seq', seq))
  }

  /** The ids of the sequences there are, ascending. */
  sequenceIds(): number[] {
    return own(this).native.sequenceIds()
  }

  /** What it costs, and what its pool holds. */
  stats(): PagedStats {
    return pagedStats(own(this).native.stats())
  }

  /** Throws `INTERNAL` when its bookkeeping is not in order: a defect of this package. O(blocks). */
  checkInvariants(): void {
    const reason = own(this).native.checkInvariants()
    if (reason !== null) throw new KvTideError('INTERNAL', `internal error: ${reason}`, { reason })
  }
}

/** Groups as they are shown. */
function readGroups(groups: ReturnType<NativePagedKvCache['groups']>, devices: readonly string[]): readonly LayerGroup[] {
  const shown = groups.map(({ window, sinks, layers, device, ...sizes }): LayerGroup => {
    const slides = window === undefined ? { kind: 'full' as const } : { kind: 'sliding' as const, window, sinks: sinks ?? 0 }
    return Object.freeze({ ...slides, layers: Object.freeze(layers), ...sizes, device: devices[device] ?? 'cpu' })
  })
  return Object.freeze(shown)
}

function own(self: unknown): Engine {
  return nativeThis<Engine>(self, PagedKvCache)
}

/** Where a token of a layer is. */
function place(engine: Engine, seq: unknown, layer: unknown, pos: unknown): [seq: number, layer: number, pos: number] {
  return [seqOf(engine, 'seq', seq), count('layer', layer), count('pos', pos)]
}
