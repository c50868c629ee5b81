// The paged cache: sequences of a model over blocks that they share, in all layers, with a prefix cache. This folder checks arguments and keeps objects; the
// addon does the bookkeeping and the copies. A refused call changes nothing. Numbers cross to the addon in typed arrays that are reused, so that calls per token
// allocate little. Changes are synchronous; while `attendAsync` or a step run uses pages, changes that would touch them throw `BUSY`.
import { duration, known, type Names, optional } from '../errors/check.js'
import { invalid, isKvTideError, KvTideError } from '../errors/errors.js'
import { type DType, type Float16ArrayLike, meta, type TensorData } from '../border/host-array.js'
import { endThis, INTERNAL, nativeArgument, nativeThis, orDisposed, Owner, settle } from '../border/owner.js'
import { type Kv, put, readTensor, type TokenSource } from '../border/tensor.js'
import { binding } from '../loading/binding.js'
import { loadCache, type LoadOptions, loadPrompts, loadSequence, type LoadSequenceOptions } from './load.js'
import type { FileOptions } from '../files/progress.js'
import { saveBytes, saveFile } from '../files/save.js'
import type { SavedSource } from '../files/source.js'
import { type BringOptions, readTiers } from '../tiers/tier-options.js'
import { CacheTiers } from '../tiers/tiers.js'
import {
  type CacheEvents,
  type CacheReplay,
  type EventsOptions,
  readEvents,
  readReplay,
} from '../sequences/cache-events.js'
import { type CacheForm, formOf, type LayerGroup, readGroups } from '../sequences/layer-group.js'
import { type PagedKvCacheOptions, readOptions } from '../sequences/options.js'
import type { PageFormat } from '../sequences/page-format.js'
import {
  type AdmissionOptions,
  admitPrompt,
  type AllocationOptions,
  type Explanation,
  type Lacking,
  type MatchOptions,
  matchPrompt,
  type PrefixKeys,
  type PrefixMatch,
  type PromptOptions,
  readAllocation,
  readExplanation,
  readKeys,
} from '../sequences/prompt.js'
import { readCapacities, seqOf, SequenceBatch, type SequenceList } from '../sequences/sequence-batch.js'
import { gather, gatherInto, readKv, readKvInto, writeKv, writeTokens } from './layer-tokens.js'
import { createSequence, Sequence, type SequenceOptions } from './sequence.js'
import { SharedCache } from '../sequences/shared-cache.js'
import { pagedStats, type PagedStats } from '../sequences/stats.js'
import { type StepBatch, stepBatch, type StepBatchOptions, tablesOf } from '../sequences/step-batch.js'
import { beginStep, type Step, type StepOptions } from '../sequences/step.js'
import { readTokens, type TokenIds } from '../sequences/tokens.js'

const APPEND: Names<AppendOptions> = { tokens: 0 }

/** The maximum time that disposing waits for the offload queue. */
const FLUSH_MS = 10_000

/** Properties of appended tokens besides their keys and values. */
interface AppendOptions {
  /** The ids of the tokens. Only full blocks of tokens with ids are added to the prefix cache. */
  readonly tokens?: TokenIds
}

/** The result of admission: a sequence, whose `length` is the number of prompt tokens that were cached, or the shortage. */
export type Admission =
  | { readonly sequence: Sequence; readonly lacking?: undefined }
  | { readonly sequence?: undefined; readonly lacking: Lacking }

/**
 * Keys and values of many sequences in all layers, in blocks that sequences share. The layers are uniform, or those of a model, which may
 * keep all tokens, a window or states, or share the keys and values of another layer. A step, a transaction and a snapshot cover all layers together.
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
  /** The number of blocks in all pools. */
  declare readonly capacity: number
  /** Tokens per block. */
  declare readonly blockSize: number
  /** Layers of the model. */
  declare readonly numLayers: number
  /** The groups of layers, in the order of their first layers; a single one if all layers are alike. */
  declare readonly groups: readonly LayerGroup[]
  /** Heads of K and V, in the first group. */
  declare readonly numKvHeads: number
  /** Elements per head of K, in the first group. */
  declare readonly headDim: number
  /** Elements per head of V, in the first group. */
  declare readonly valueHeadDim: number
  /** The element type of appended tokens. */
  declare readonly dtype: DType
  /** The page format of K. */
  declare readonly keyFormat: PageFormat
  /** The page format of V. */
  declare readonly valueFormat: PageFormat
  /** True if K is rotated before it is quantised. */
  declare readonly hadamard: boolean
  /** True if V is rotated before it is quantised. */
  declare readonly valueHadamard: boolean
  /** Bytes of pages that one token takes in all layers, including its share of the scales. */
  declare readonly bytesPerToken: number
  /** The device; the first group's if groups differ. */
  declare readonly device: string
  /** Everything that the keys of its blocks depend on besides the secret: `new PrefixNamer({ ...cache.form, prefixKey })` computes the same keys as this cache. */
  declare readonly form: CacheForm

  constructor(options: PagedKvCacheOptions) {
    const { form, tiers: given, clock } = readOptions(options)
    const tiers = optional((_, value) => readTiers(value), 'tiers', given)
    const native = 'model' in form ? binding.NativePagedKvCache.ofModel(form) : new binding.NativePagedKvCache(form)
    const shared = new SharedCache(native, clock, form.events, Sequence, [form.keyFormat, form.valueFormat])
    super(INTERNAL, shared, PagedKvCache)
    if (tiers !== undefined) shared.tiers = orDisposed(shared, () => new CacheTiers(shared, tiers, form.dtype))
    const { namespace, blockSize, dtype, keyFormat, valueFormat, hadamard, valueHadamard } = form
    const groups = readGroups(native.groups(), 'model' in form ? form.devices : [form.device])
    const { numKvHeads, headDim, valueHeadDim, device } = groups[0] as LayerGroup
    const [capacity, numLayers, bytesPerToken] = [native.totalCount(), native.numLayers(), native.bytesPerToken()]
    const sizes = { capacity, blockSize, numLayers, groups, numKvHeads, headDim, valueHeadDim }
    const pages = { dtype, keyFormat, valueFormat, hadamard, valueHadamard }
    const described = formOf({ namespace, blockSize, ...pages }, groups)
    settle(this, { ...sizes, ...pages, bytesPerToken, device, form: described })
  }

  /**
   * Loads a saved prefix cache into a new cache. The file describes the cache, so no options are needed. Everything is verified, off the main
   * thread, before prompts can reuse it.
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
   * @throws KvTideError `CORRUPT` if the file is damaged, `INCOMPATIBLE` if it does not fit `options`
   */
  static async load(source: SavedSource, options: LoadOptions = {}): Promise<PagedKvCache> {
    return loadCache(source, options, given => {
      const cache = new PagedKvCache(given as PagedKvCacheOptions)
      return { cache, shared: own(cache) }
    })
  }

  /**
   * Saves the prefix cache to a file and returns the number of bytes written. The cache stays usable meanwhile: blocks that are evicted before they
   * are written are not in the file. At every moment the path has the old file or the complete new one, even if the process is killed. The file
   * contains prompts: only its owner may read it.
   */
  async save(path: string | URL, options: FileOptions = {}): Promise<number> {
    const shared = own(this)
    return saveFile(shared, () => shared.native.beginSave(), path, options)
  }

  /** As {@link save}, but returns the bytes instead of writing a file. */
  async saveBytes(options: FileOptions = {}): Promise<Uint8Array> {
    const shared = own(this)
    return saveBytes(shared, () => shared.native.beginSave(), options)
  }

  /**
   * Loads another cache's saved prefix cache into this one, and returns the number of blocks that were loaded. Only free blocks are used: the most
   * recently used blocks of the file come first, and prefixes that are already cached stay unchanged. Keys depend on a secret: give both caches the
   * same `prefixKey`, or load into an empty cache.
   *
   * @throws KvTideError `CORRUPT`, or `INCOMPATIBLE` with the field that differs; the cache is then unchanged
   */
  async loadPrompts(source: SavedSource, options: FileOptions = {}): Promise<number> {
    return loadPrompts(own(this), source, options)
  }

  /**
   * Opens a new sequence with the content that {@link Sequence.save} saved, possibly in another process. Salt and extras must be those of the saved
   * sequence. Its blocks are added to the prefix cache as far as the ids of its tokens are known. Nothing changes until everything is verified.
   *
   * @throws KvTideError `CORRUPT`, `INCOMPATIBLE` with the field that differs, or `OUT_OF_BLOCKS`
   */
  async loadSequence(source: SavedSource, options: LoadSequenceOptions = {}): Promise<Sequence> {
    const shared = own(this)
    const { id } = await loadSequence(shared, source, options)
    return new Sequence(INTERNAL, shared, id)
  }

  /** The number of blocks that can be taken: free ones, and cached ones that are not held. */
  get freeCount(): number {
    return own(this).native.freeCount()
  }

  /** The number of blocks. */
  get totalCount(): number {
    return own(this).native.totalCount()
  }

  /** Creates a sequence, empty or from a match, and returns its number. Numbers count up from 0 and are never reused. */
  createSequence(options: SequenceOptions = {}): number {
    return createSequence(own(this), options)
  }

  /** As {@link createSequence}, but returns the sequence as an object. */
  openSequence(options: SequenceOptions = {}): Sequence {
    const shared = own(this)
    return new Sequence(INTERNAL, shared, createSequence(shared, options))
  }

  /**
   * Opens a sequence for a prompt if there is room for the rest of the prompt and for its answer; otherwise returns the shortage. The blocks are
   * taken at once, so later appends are not refused for lack of blocks. A prompt counts toward `hitRate` once it is admitted, so retry as often as
   * you like. Each call of {@link match} counts as well.
   *
   * In layers with a window, the sequence takes the blocks that it needs at one time, and frees them as the window slides.
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
    return sequence === undefined
      ? { lacking: lacking as Lacking }
      : { sequence: new Sequence(INTERNAL, shared, sequence) }
  }

  /** Returns the object of a sequence, given its number. Throws `SEQUENCE_NOT_FOUND` if there is none. */
  sequence(id: number): Sequence {
    const shared = own(this)
    const seq = seqOf(shared, 'id', id)
    shared.native.checkSequence(seq)
    return new Sequence(INTERNAL, shared, seq)
  }

  /** Drops a sequence and releases its blocks. Blocks in the prefix cache stay until they are evicted. */
  dropSequence(seq: number | Sequence): void {
    const shared = own(this)
    shared.change(native => native.dropSequence(seqOf(shared, 'seq', seq)))
  }

  /**
   * Returns the longest prefix of a prompt that is cached in all layers, in full blocks. The match holds these blocks. The last token of
   * the prompt is never matched, since its logits are needed. In a sliding group, the sinks, the tokens that the next token sees and the
   * last matched token must be cached.
   */
  match(tokens: TokenIds, options?: MatchOptions): PrefixMatch
  /**
   * As above, but also looks in the tiers: blocks that are found there are restored first, as far as there is room and until the deadline.
   * Every restored block is verified. Other calls are allowed meanwhile.
   */
  match(tokens: TokenIds, options: MatchOptions & BringOptions): Promise<PrefixMatch>
  match(tokens: TokenIds, options: MatchOptions & Partial<BringOptions> = {}): PrefixMatch | Promise<PrefixMatch> {
    return matchPrompt(own(this), tokens, options)
  }

  /**
   * Waits until all blocks that were offloaded so far are written to their tiers, for example before the process ends. Returns `false` if that took
   * longer than this many milliseconds. `await using` does this by itself.
   */
  async flush(milliseconds: number = FLUSH_MS): Promise<boolean> {
    const shared = own(this)
    if (shared.tiers === undefined) throw invalid('this', 'a cache without tiers', 'a cache made with the option tiers')
    return shared.tiers.flush(duration('milliseconds', milliseconds))
  }

  /** As {@link dispose}, for `await using`. Waits until the offload queue is empty, for at most ten seconds. */
  async [Symbol.asyncDispose](): Promise<void> {
    const shared = nativeArgument<SharedCache>('this', this, PagedKvCache)
    try {
      if (!shared.isEnded) await shared.tiers?.flush(FLUSH_MS)
    } catch (error) {
      // The cache was disposed of meanwhile, or is poisoned, so there is nothing left to write.
      if (!isKvTideError(error)) throw error
    } finally {
      endThis(this, PagedKvCache)
    }
  }

  /**
   * True if every group has room for a new sequence of this many tokens, or of a prompt, appended at once. Blocks of a prompt that are
   * already held cost nothing; cached ones count as taken. A sliding group needs only the blocks that it keeps.
   */
  canAllocate(tokens: number | TokenIds, options: AllocationOptions = {}): boolean {
    return readAllocation(own(this), tokens, options)
  }

  /** Tells how much of a prompt is cached, and the reason for the first miss. For operators: the answer may reveal prompts of other tenants. */
  explain(tokens: TokenIds, options: PromptOptions = {}): Explanation {
    return readExplanation(own(this), tokens, options)
  }

  /**
   * Invalidates the prefix cache. From now on no prompt matches a block that is now in the cache or in a tier in memory, or that an earlier call of
   * {@link match}, {@link loadPrompts} or {@link loadSequence} is still restoring. Entries in a folder or a store stay there for other caches, but this
   * cache no longer reads or writes them; one write that is in progress may still finish.
   */
  forgetPrefixes(): void {
    const shared = own(this)
    shared.change(native => native.forgetPrefixes())
    shared.tiers?.forget()
  }

  /**
   * The changes of the prefix cache as events, for routers. They are those of the first group that keeps all tokens or, if all groups
   * slide, of the first group; and those of states, if layers keep any. The option `events` is the number of events that the cache
   * keeps. A reader that is too slow misses the oldest events, and learns how many.
   */
  events(options: EventsOptions = {}): CacheEvents {
    return readEvents(own(this), options)
  }

  /**
   * The current content of the prefix cache as events, for a router that starts to follow this cache or has missed some. Blocks whose parent is not
   * cached are left out, because no prompt can match them. O(blocks).
   */
  replay(): CacheReplay {
    return readReplay(own(this))
  }

  /** Returns the keys of a prompt's full blocks, cached or not. {@link PrefixNamer} documents what keys depend on, and needs no cache. */
  keys(tokens: TokenIds, options: PromptOptions = {}): string[] {
    return readKeys(own(this).native, tokens, options)
  }

  /** Returns the keys of all blocks in the prefix cache, for a router that starts to follow events or has missed some. O(blocks). */
  indexedKeys(): PrefixKeys {
    const { keys, states, next } = own(this).native.indexedKeys()
    return { keys, ...(states !== undefined && { states }), next }
  }

  /** Allocates the blocks that each sequence needs for this many tokens in total, or throws `OUT_OF_BLOCKS` and allocates none. */
  ensureCapacity(seq: number | Sequence, tokens: number): void
  ensureCapacity(seq: SequenceList, tokens: readonly number[] | Int32Array): void
  ensureCapacity(seq: number | Sequence | SequenceList, tokens: number | readonly number[] | Int32Array): void {
    const shared = own(this)
    const wanted = readCapacities(shared, seq, tokens)
    shared.change(native => native.ensureCapacities(wanted))
  }

  /** Writes one token of one layer; the sequence grows as needed. Refused if the layers are in several groups: use steps or appends then. */
  writeKv(
    seq: number | Sequence,
    layer: number,
    pos: number,
    key: TensorData | Float16ArrayLike | TokenSource,
    value: TensorData | Float16ArrayLike | TokenSource,
  ): void {
    writeKv(own(this), [seq, layer, pos], key, value, this.dtype)
  }

  /**
   * Writes neighbouring tokens of one layer from `pos` on, as {@link writeKv}: `[numKvHeads, n, headDim]`, or with a 1 before it; with
   * the layout `bshd` `[n, numKvHeads, headDim]`.
   */
  writeTokens(seq: number | Sequence, layer: number, pos: number, k: TokenSource, v: TokenSource): void {
    writeTokens(own(this), [seq, layer, pos], k, v)
  }

  /**
   * Appends tokens of all layers to sequences: all of them, or nothing. For uniform layers.
   *
   * @param k `[numLayers, numKvHeads, tokens, headDim]`; with the layout `bshd` `[numLayers, tokens, numKvHeads, headDim]`
   * @param offsets sequence i gets the tokens from `offsets[i]` to `offsets[i + 1]`; by default each gets one
   * @throws KvTideError `OUT_OF_BLOCKS`; the cache is then unchanged
   */
  append(
    sequences: SequenceList,
    k: TokenSource,
    v: TokenSource,
    offsets?: readonly number[] | Int32Array,
    options: AppendOptions = {},
  ): void {
    const shared = own(this)
    const batch = new SequenceBatch(shared, sequences, offsets)
    const { tokens } = known<AppendOptions>('options', options, APPEND)
    const ids = optional(readTokens, 'tokens', tokens)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    shared.change(native => native.append(batch.put(), batch.length, put(keys, 0), put(values, 1), meta, ids))
  }

  /** Begins a step: tokens that a model computes layer by layer. Throws `OUT_OF_BLOCKS` if there is no room for them. */
  beginStep(options: StepOptions): Step {
    return beginStep(own(this), options)
  }

  /** Returns arrays for each group of layers with keys and values, your own or new ones, for {@link prepareStep} to fill. */
  stepBatch(options: StepBatchOptions): StepBatch {
    const shared = own(this)
    return stepBatch(shared, shared.native.tableGroups(), options)
  }

  /** As {@link beginStep}, and fills `batch` with the slots of the tokens and the block tables of the sequences. If that is refused, no step has begun. */
  prepareStep(batch: StepBatch, options: StepOptions): Step {
    const shared = own(this)
    return beginStep(shared, options, tablesOf(shared, batch))
  }

  /**
   * Returns copies of all tokens of a layer, `[numKvHeads, n, headDim]`, without blocks outside the window; `keyPositions` has their
   * positions. Low-bit pages are returned as 32-bit floats. Slots that were never written are zeros.
   */
  gather(seq: number | Sequence, layer: number): Kv {
    return gather(own(this), seq, layer)
  }

  /** As {@link gather}, into your own arrays of exactly as many elements: see {@link Sequence.retainedLength}. */
  gatherInto<T extends TensorData>(seq: number | Sequence, layer: number, k: T, v: T): { k: T; v: T } {
    return gatherInto(own(this), seq, layer, k, v)
  }

  /**
   * Reads one token of one layer: as bits if pages are f16 or bf16, as 32-bit floats if they are low-bit. Throws `POSITION_OUT_OF_RANGE` if the position was
   * never written.
   */
  readKv(seq: number | Sequence, layer: number, pos: number): { readonly key: TensorData; readonly value: TensorData } {
    return readKv(own(this), this.groups, [seq, layer, pos])
  }

  /** As {@link readKv}, into your own arrays. */
  readKvInto<T extends TensorData>(
    seq: number | Sequence,
    layer: number,
    pos: number,
    key: T,
    value: T,
  ): { key: T; value: T } {
    return readKvInto(own(this), [seq, layer, pos], key, value)
  }

  /** The share of blocks in use, 0 to 1. */
  poolUtilization(): number {
    return own(this).native.poolUtilization()
  }

  /** The number of tokens of a sequence: the highest written position + 1; 0 for an unknown sequence. */
  sequenceLength(seq: number | Sequence): number {
    return own(this).native.sequenceLength(seqOf(own(this), 'seq', seq))
  }

  /** The number of slots in a sequence's blocks; 0 for an unknown sequence. */
  sequenceCapacity(seq: number | Sequence): number {
    return own(this).native.sequenceCapacity(seqOf(own(this), 'seq', seq))
  }

  /** The numbers of all sequences, ascending. */
  sequenceIds(): number[] {
    return own(this).native.sequenceIds()
  }

  /** Returns memory use, the blocks of each pool, and cache hits. */
  stats(): PagedStats {
    const shared = own(this)
    return pagedStats(shared.native.stats(), shared.tiers?.stats())
  }

  /** Throws `INTERNAL` if the cache's bookkeeping is inconsistent, which would be a defect of this package. O(blocks). */
  checkInvariants(): void {
    const reason = own(this).native.checkInvariants()
    if (reason !== null) throw new KvTideError('INTERNAL', `internal error: ${reason}`, { reason })
  }
}

/** The native cache and the state that its objects share. */
function own(self: unknown): SharedCache {
  return nativeThis<SharedCache>(self, PagedKvCache)
}
