import type { NativePagedKvCache } from '#binding'

import { arrayKind, arrayLength, count, known, type Names, optional } from '../border/check.js'
import { invalid, isKvTideError, KvTideError } from '../border/errors.js'
import { type DType, dtypeRow, type Float16ArrayLike, meta, readArray, type TensorData } from '../border/host-array.js'
import { endThis, INTERNAL, nativeArgument, nativeThis, Owner, settle } from '../border/owner.js'
import { type Kv, kvOfViews, put, readTensor, type TensorArgument, type TokenSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { loadCache, type LoadOptions, loadPrompts, loadSequence, type LoadSequenceOptions } from '../store/load.js'
import type { FileOptions } from '../store/progress.js'
import { saveBytes, saveFile } from '../store/save.js'
import type { SavedSource } from '../store/source.js'
import type { BringOptions } from '../store/tier-options.js'
import { CacheTiers } from '../store/tiers.js'
import { type CacheEvents, type CacheReplay, type EventsOptions, readEvents, readReplay } from './cache-events.js'
import { type PagedKvCacheOptions, readOptions } from './options.js'
import { type PageFormat, readDType, roomIn } from './page-format.js'
import { type AdmissionOptions, admitPrompt, type AllocationOptions, type Explanation, type Lacking, type MatchOptions, matchPrompt, type PrefixKeys, type PrefixMatch, type PromptOptions, readAllocation, readExplanation, readKeys } from './prompt.js'
import { readCapacities, seqOf, SequenceBatch, type SequenceList } from './sequence-batch.js'
import { createSequence, Sequence, type SequenceOptions } from './sequence.js'
import { SharedCache } from './shared-cache.js'
import { pagedStats, type PagedStats } from './stats.js'
import { type StepBatch, stepBatch, type StepBatchOptions, tablesOf } from './step-batch.js'
import { beginStep, type Step, type StepOptions } from './step.js'
import { readTokens, type TokenIds } from './tokens.js'

const APPEND: Names<AppendOptions> = { tokens: 0 }

/** For how long what goes down to tiers is waited for. */
const FLUSH_MS = 10_000

/** What is known of appended tokens besides their keys and values. */
interface AppendOptions {
  /** The ids of the tokens. Prompts find full blocks of tokens whose ids are known. */
  readonly tokens?: TokenIds
}

/** Layers that keep the same tokens in the same sizes on the same device. They share block tables and have one pool. */
export interface LayerGroup {
  /** `full` layers keep every token, `sliding` ones a window. */
  readonly kind: 'full' | 'sliding'
  /** How many positions a query sees, its own among them. */
  readonly window?: number
  /** Tokens at the start that stay visible as well. */
  readonly sinks?: number
  /** The layers with keys and values of their own, ascending. */
  readonly layers: readonly number[]
  /** Heads of K and V. */
  readonly numKvHeads: number
  /** Elements per head of K. */
  readonly headDim: number
  /** Elements per head of V. */
  readonly valueHeadDim: number
  /** The device of the pool. */
  readonly device: string
}

/** A sequence that was admitted, whose `length` is how much of the prompt was there; or what was lacking. */
export type Admission = { readonly sequence: Sequence; readonly lacking?: undefined } | { readonly sequence?: undefined; readonly lacking: Lacking }

/**
 * Keys and values of many sequences in all layers, in blocks that sequences share. The layers are alike, or those of a model, which may
 * keep everything, slide, or share those of others. A step, a transaction and a snapshot are of all layers together.
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
 *   if (layer < 2) step.write(layer, rows(6), rows(6)) // the last layer has none of its own
 *   const { out } = step.attend(layer, { data: new Float32Array(6 * 2), shape: [6, 1, 2] })
 *   console.log(out.shape) // [6, 1, 2]
 * }
 * step.commit()
 * console.log(chat.length, cache.groups.map(group => group.kind).join()) // 6 'sliding,full'
 * ```
 */
export class PagedKvCache extends Owner {
  /** How many blocks its pools have. */
  declare readonly capacity: number
  /** Tokens per block. */
  declare readonly blockSize: number
  /** Layers of the model. */
  declare readonly numLayers: number
  /** The groups of layers, in the order of their first layers; a single one where all layers are alike. */
  declare readonly groups: readonly LayerGroup[]
  /** Heads of K and V, in the first group. */
  declare readonly numKvHeads: number
  /** Elements per head of K, in the first group. */
  declare readonly headDim: number
  /** Elements per head of V, in the first group. */
  declare readonly valueHeadDim: number
  /** The element type of tokens that go in. */
  declare readonly dtype: DType
  /** How pages store K. */
  declare readonly keyFormat: PageFormat
  /** How pages store V. */
  declare readonly valueFormat: PageFormat
  /** True when K is rotated before it is quantised. */
  declare readonly hadamard: boolean
  /** Bytes of pages that one token takes in all layers, with its share of the scales. */
  declare readonly bytesPerToken: number
  /** Its device; that of the first group, where groups differ. */
  declare readonly device: string

  constructor(options: PagedKvCacheOptions) {
    const { form, tiers, clock } = readOptions(options)
    const native = 'model' in form ? binding.NativePagedKvCache.ofModel(form) : new binding.NativePagedKvCache(form)
    const shared = new SharedCache(native, clock, form.events, Sequence, [form.keyFormat, form.valueFormat])
    super(INTERNAL, shared, PagedKvCache)
    if (tiers !== undefined) shared.tiers = new CacheTiers(shared, tiers, form.dtype)
    const { blockSize, dtype, keyFormat, valueFormat, hadamard } = form
    const groups = readGroups(native.groups(), 'model' in form ? form.devices : [form.device])
    const { numKvHeads, headDim, valueHeadDim, device } = groups[0] as LayerGroup
    const [capacity, numLayers, bytesPerToken] = [native.totalCount(), native.numLayers(), native.bytesPerToken()]
    settle(this, { capacity, blockSize, numLayers, groups, numKvHeads, headDim, valueHeadDim, dtype, keyFormat, valueFormat, hadamard, bytesPerToken, device })
  }

  /**
   * A new cache with what another one saved: what prompts found is found again. Nothing needs to be said of the cache, the file describes it.
   * Everything is verified before prompts find it, off the main thread.
   *
   * @example
   * ```ts
   * import { PagedKvCache } from 'kvtide'
   *
   * using cache = new PagedKvCache({ capacity: 8, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 2 })
   * const rows = { data: new Float32Array(4 * 2), shape: [1, 1, 4, 2] }
   * cache.openSequence().append({ tokens: [5, 6, 7, 8], k: rows, v: rows })
   * const bytes = await cache.saveBytes() // or: await cache.save('prompts.kv')
   * using again = await PagedKvCache.load(bytes)
   * console.log(again.match([5, 6, 7, 8, 9]).length) // 4
   * ```
   *
   * @throws KvTideError `CORRUPT` where the file is damaged, `INCOMPATIBLE` where it is not of what `options` say
   */
  static async load(source: SavedSource, options: LoadOptions = {}): Promise<PagedKvCache> {
    return loadCache(source, options, given => {
      const cache = new PagedKvCache(given as PagedKvCacheOptions)
      return { cache, shared: own(cache) }
    })
  }

  /**
   * Saves what prompts find in a file, and answers how many bytes it has. The cache goes on meanwhile: what makes room before the file is
   * written is not in it. The file is the old one or the new one at every moment, also when the process is killed. It holds prompts: only its
   * owner may read it.
   */
  async save(path: string | URL, options: FileOptions = {}): Promise<number> {
    const shared = own(this)
    return saveFile(shared, () => shared.native.beginSave(), path, options)
  }

  /** As {@link save}, but answers what would be in the file. */
  async saveBytes(options: FileOptions = {}): Promise<Uint8Array> {
    const shared = own(this)
    return saveBytes(shared, () => shared.native.beginSave(), options)
  }

  /**
   * Brings what another cache saved to this one, and answers how many blocks that were. Only blocks that are free are taken: what was used last comes
   * first, and what prompts find already stays as it is. Names are made under a key: give both caches the same `prefixKey`, or load into a cache
   * in which nothing is yet.
   *
   * @throws KvTideError `CORRUPT`, or `INCOMPATIBLE` with the field that differs; nothing has changed then
   */
  async loadPrompts(source: SavedSource, options: FileOptions = {}): Promise<number> {
    return loadPrompts(own(this), source, options)
  }

  /**
   * A new sequence with what {@link Sequence.save} saved, also in another process. Salt and extras have to be those of the saved sequence. Prompts
   * find its blocks, as far as the ids of its tokens are known. Nothing changes until everything is verified.
   *
   * @throws KvTideError `CORRUPT`, `INCOMPATIBLE` with the field that differs, or `OUT_OF_BLOCKS`
   */
  async loadSequence(source: SavedSource, options: LoadSequenceOptions = {}): Promise<Sequence> {
    const shared = own(this)
    const { id } = await loadSequence(shared, source, options)
    return new Sequence(INTERNAL, shared, id)
  }

  /** How many blocks can be taken, including those that only prompts still find. */
  get freeCount(): number {
    return own(this).native.freeCount()
  }

  /** How many blocks there are. */
  get totalCount(): number {
    return own(this).native.totalCount()
  }

  /** Creates a sequence, which is empty or starts with a match, and returns its number. Numbers count up from 0 and are never used again. */
  createSequence(options: SequenceOptions = {}): number {
    return createSequence(own(this), options)
  }

  /** As {@link createSequence}, but returns the sequence's object. */
  openSequence(options: SequenceOptions = {}): Sequence {
    const shared = own(this)
    return new Sequence(INTERNAL, shared, createSequence(shared, options))
  }

  /**
   * Opens a sequence for a prompt, if there is room for the rest of the prompt and for its answer; otherwise says what is lacking. The blocks are
   * taken at once, so that what follows is not refused for want of one. Only a prompt that is admitted counts in `hitRate`, and once: ask
   * again as often as you like.
   *
   * In layers with a window, the sequence takes the blocks that it has at once, and gives them back as it slides.
   *
   * @example
   * ```ts
   * import { PagedKvCache } from 'kvtide'
   *
   * using cache = new PagedKvCache({ capacity: 4, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 2 })
   * const { sequence, lacking } = cache.admit([1, 2, 3, 4, 5], { answerTokens: 7 })
   * console.log(sequence?.capacity, lacking) // 12 undefined
   * console.log(cache.admit([6, 7], { answerTokens: 7 }).lacking) // { group: 0, needed: 3, free: 1, total: 4 }
   * ```
   */
  admit(tokens: TokenIds, options: AdmissionOptions = {}): Admission {
    const shared = own(this)
    const { sequence, lacking } = admitPrompt(shared, tokens, options)
    return sequence === undefined ? { lacking: lacking as Lacking } : { sequence: new Sequence(INTERNAL, shared, sequence) }
  }

  /** The object of a sequence, by its number. Throws `SEQUENCE_NOT_FOUND` when there is none. */
  sequence(id: number): Sequence {
    const shared = own(this)
    const seq = seqOf(shared, 'id', id)
    shared.native.checkSequence(seq)
    return new Sequence(INTERNAL, shared, seq)
  }

  /** Ends a sequence and gives its blocks back. Blocks that prompts find stay until they have to make room. */
  dropSequence(seq: number | Sequence): void {
    const shared = own(this)
    shared.change(native => native.dropSequence(seqOf(shared, 'seq', seq)))
  }

  /**
   * The longest start of a prompt that is in the cache in all layers, in whole blocks. The match holds these blocks. The last token of
   * the prompt is never found, since its logits are needed. Of a sliding group, its sinks, the tokens that the
   * next token sees and the last token have to be found.
   */
  match(tokens: TokenIds, options?: MatchOptions): PrefixMatch
  /**
   * The same with what lies in tiers below the cache: blocks that are found there are brought back first, as far as there is room and until the
   * deadline. Everything that comes was verified. Other calls go on meanwhile.
   */
  match(tokens: TokenIds, options: MatchOptions & BringOptions): Promise<PrefixMatch>
  match(tokens: TokenIds, options: MatchOptions & Partial<BringOptions> = {}): PrefixMatch | Promise<PrefixMatch> {
    return matchPrompt(own(this), tokens, options)
  }

  /**
   * Waits until everything that went down to the tiers so far lies where it belongs: before a process ends, for example. Answers `false` where
   * that was not so within this many milliseconds. `await using` does so by itself.
   */
  async flush(milliseconds: number = FLUSH_MS): Promise<boolean> {
    const shared = own(this)
    if (shared.tiers === undefined) throw invalid('this', 'a cache without tiers', 'one that was made with the option tiers')
    return shared.tiers.flush(count('milliseconds', milliseconds))
  }

  /** As {@link dispose}, for `await using`: what waits for its tiers is written before, for ten seconds at most. */
  async [Symbol.asyncDispose](): Promise<void> {
    const shared = nativeArgument<SharedCache>('this', this, PagedKvCache)
    try {
      if (!shared.isEnded) await shared.tiers?.flush(FLUSH_MS)
    } catch (error) {
      // It was disposed of meanwhile, or is poisoned: there is nothing to write any more.
      if (!isKvTideError(error)) throw error
    } finally {
      endThis(this, PagedKvCache)
    }
  }

  /**
   * Whether every group has room for a new sequence of this many tokens, or of a prompt, appended at once. Blocks of a prompt
   * that someone holds already cost nothing; cached ones count as taken. A sliding group needs only what it keeps.
   */
  canAllocate(tokens: number | TokenIds, options: AllocationOptions = {}): boolean {
    return readAllocation(own(this), tokens, options)
  }

  /** How far a prompt is found, and why no further. For operators: the answer may reveal prompts of other tenants. */
  explain(tokens: TokenIds, options: PromptOptions = {}): Explanation {
    return readExplanation(own(this), tokens, options)
  }

  /**
   * From now on prompts find nothing that is in the cache now, nor in a tier in memory. What lies in a folder or a store stays there for others, and this
   * cache neither reads nor writes it any more.
   */
  forgetPrefixes(): void {
    const shared = own(this)
    shared.change(native => native.forgetPrefixes())
    shared.tiers?.forget()
  }

  /**
   * What happens to the blocks that prompts find, for routers. Events are those of the first group that keeps everything, or of the
   * first group where all slide. The cache keeps as many events as its option `events` says. A reader that is slower misses the
   * oldest, and learns how many.
   */
  events(options: EventsOptions = {}): CacheEvents {
    return readEvents(own(this), options)
  }

  /**
   * What prompts find now, as events: for a router that begins to follow this cache, or has missed some. Blocks that follow nothing that is
   * there are left out: no prompt finds them. O(blocks).
   */
  replay(): CacheReplay {
    return readReplay(own(this))
  }

  /** The names of a prompt's whole blocks, whether they are in the cache or not. {@link PrefixNamer} says what names depend on, and needs no cache. */
  keys(tokens: TokenIds, options: PromptOptions = {}): string[] {
    return readKeys(own(this).native, tokens, options)
  }

  /** The names of all blocks that prompts find, for a router that starts to follow events or has missed some. O(blocks). */
  indexedKeys(): PrefixKeys {
    return own(this).native.indexedKeys()
  }

  /** Gives each sequence the blocks that it lacks for this many tokens in total, or throws `OUT_OF_BLOCKS` and takes none. */
  ensureCapacity(seq: number | Sequence, tokens: number): void
  ensureCapacity(seq: SequenceList, tokens: readonly number[] | Int32Array): void
  ensureCapacity(seq: number | Sequence | SequenceList, tokens: number | readonly number[] | Int32Array): void {
    const shared = own(this)
    const wanted = readCapacities(shared, seq, tokens)
    shared.change(native => native.ensureCapacities(wanted))
  }

  /** Writes one token of one layer; the sequence grows as needed. Refused if the layers are in several groups: use steps or appends then. */
  writeKv(seq: number | Sequence, layer: number, pos: number, key: TensorData | Float16ArrayLike | TokenSource, value: TensorData | Float16ArrayLike | TokenSource): void {
    const shared = own(this)
    const at = place(shared, seq, layer, pos)
    const [k, v] = [readVector('key', key, this.dtype), readVector('value', value, this.dtype)]
    shared.change(native => native.writeKv(...at, put(k, 0), put(v, 1), meta))
  }

  /**
   * Writes neighbouring tokens of one layer from `pos` on, as {@link writeKv}: `[numKvHeads, n, headDim]`, or with a 1 before it; with
   * the layout `bshd` `[n, numKvHeads, headDim]`.
   */
  writeTokens(seq: number | Sequence, layer: number, pos: number, k: TokenSource, v: TokenSource): void {
    const shared = own(this)
    const at = place(shared, seq, layer, pos)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    shared.change(native => native.writeTokens(...at, put(keys, 0), put(values, 1), meta))
  }

  /**
   * Appends tokens of all layers to sequences: all of them, or nothing. For layers that are alike.
   *
   * @param k `[numLayers, numKvHeads, tokens, headDim]`; with the layout `bshd` `[numLayers, tokens, numKvHeads, headDim]`
   * @param offsets sequence i gets the tokens from `offsets[i]` to `offsets[i + 1]`; left out, each gets one
   * @throws KvTideError `OUT_OF_BLOCKS`; nothing has changed then
   */
  append(sequences: SequenceList, k: TokenSource, v: TokenSource, offsets?: readonly number[] | Int32Array, options: AppendOptions = {}): void {
    const shared = own(this)
    const batch = new SequenceBatch(shared, sequences, offsets)
    const { tokens } = known<AppendOptions>('options', options, APPEND)
    const ids = optional(readTokens, 'tokens', tokens)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    shared.change(native => native.append(batch.put(), batch.length, put(keys, 0), put(values, 1), meta, ids))
  }

  /** Begins a step: tokens that a model computes layer by layer. Throws `OUT_OF_BLOCKS` where they have no room. */
  beginStep(options: StepOptions): Step {
    return beginStep(own(this), options)
  }

  /** Arrays for each group of layers, your own or new ones, for {@link prepareStep} to fill. */
  stepBatch(options: StepBatchOptions): StepBatch {
    return stepBatch(own(this), this.groups.length, options)
  }

  /** As {@link beginStep}, and fills `batch` with where the tokens go and what the sequences hold. If that is refused, no step has begun. */
  prepareStep(batch: StepBatch, options: StepOptions): Step {
    const shared = own(this)
    return beginStep(shared, options, tablesOf(shared, batch))
  }

  /**
   * Copies of all tokens of a layer, `[numKvHeads, n, headDim]`, without blocks that left the window; `keyPositions` has their
   * positions. Low-bit pages come as 32-bit floats. Slots that nobody wrote are zeros.
   */
  gather(seq: number | Sequence, layer: number): Kv {
    const shared = own(this)
    return kvOfViews(shared.native.gather(seqOf(shared, 'seq', seq), count('layer', layer)))
  }

  /** As {@link gather}, into your own arrays of exactly as many elements: see {@link Sequence.retainedLength}. */
  gatherInto<T extends TensorData>(seq: number | Sequence, layer: number, k: T, v: T): { k: T; v: T } {
    const shared = own(this)
    const at = [seqOf(shared, 'seq', seq), count('layer', layer)] as const
    shared.native.gatherInto(...at, roomIn('k', k, this.keyFormat), roomIn('v', v, this.valueFormat))
    return { k, v }
  }

  /**
   * Reads one token of one layer: bits where pages are f16 or bf16, 32-bit floats where they are low-bit. Throws `POSITION_OUT_OF_RANGE` where none was
   * written.
   */
  readKv(seq: number | Sequence, layer: number, pos: number): { readonly key: TensorData; readonly value: TensorData } {
    const group = own(this).groupOf(layer)
    const { numKvHeads, headDim, valueHeadDim } = this.groups[group] as LayerGroup
    const made = (format: PageFormat, dim: number): TensorData => dtypeRow(readDType(format)).make(numKvHeads * dim)
    return this.readKvInto(seq, layer, pos, made(this.keyFormat, headDim), made(this.valueFormat, valueHeadDim))
  }

  /** As {@link readKv}, into your own arrays. */
  readKvInto<T extends TensorData>(seq: number | Sequence, layer: number, pos: number, key: T, value: T): { key: T; value: T } {
    const shared = own(this)
    const at = place(shared, seq, layer, pos)
    shared.native.readKvInto(...at, roomIn('key', key, this.keyFormat), roomIn('value', value, this.valueFormat))
    return { key, value }
  }

  /** The share of blocks in use, 0 to 1. */
  poolUtilization(): number {
    return own(this).native.poolUtilization()
  }

  /** Tokens of a sequence: the highest written position + 1; 0 for an unknown sequence. */
  sequenceLength(seq: number | Sequence): number {
    return own(this).native.sequenceLength(seqOf(own(this), 'seq', seq))
  }

  /** Slots of a sequence's blocks; 0 for an unknown sequence. */
  sequenceCapacity(seq: number | Sequence): number {
    return own(this).native.sequenceCapacity(seqOf(own(this), 'seq', seq))
  }

  /** The numbers of all sequences, ascending. */
  sequenceIds(): number[] {
    return own(this).native.sequenceIds()
  }

  /** What the cache costs, and what its pools hold. */
  stats(): PagedStats {
    const shared = own(this)
    return pagedStats(shared.native.stats(), shared.tiers?.stats())
  }

  /** Throws `INTERNAL` when its bookkeeping is inconsistent, which would be a defect of this package. O(blocks). */
  checkInvariants(): void {
    const reason = own(this).native.checkInvariants()
    if (reason !== null) throw new KvTideError('INTERNAL', `internal error: ${reason}`, { reason })
  }
}

/** The groups, as the cache exports them. */
function readGroups(groups: ReturnType<NativePagedKvCache['groups']>, devices: readonly string[]): readonly LayerGroup[] {
  const shown = groups.map(({ window, sinks, layers, device, ...sizes }): LayerGroup => {
    const slides = window === undefined ? { kind: 'full' as const } : { kind: 'sliding' as const, window, sinks: sinks ?? 0 }
    return Object.freeze({ ...slides, layers: Object.freeze(layers), ...sizes, device: devices[device] ?? 'cpu' })
  })
  return Object.freeze(shown)
}

function own(self: unknown): SharedCache {
  return nativeThis<SharedCache>(self, PagedKvCache)
}

/** One token's key or value; a bare array is of the cache's dtype. */
function readVector(argument: string, value: unknown, dtype: DType): TensorArgument {
  if (arrayKind(value) === undefined) return readTensor(argument, value)
  return readArray(argument, value, [arrayLength(value as TensorData)], dtype)
}

function place(shared: SharedCache, seq: unknown, layer: unknown, pos: unknown): [seq: number, layer: number, pos: number] {
  return [seqOf(shared, 'seq', seq), count('layer', layer), count('pos', pos)]
}
