import { binding } from './binding.js'
import { readEvents, type CacheEvents, type EventsOptions } from './cache-events.js'
import type { DType } from './dtype.js'
import { invalid, KvTideError } from './errors.js'
import { ModelEngine } from './model-engine.js'
import { readModelOptions, type ModelCacheOptions } from './model-options.js'
import { ModelSequence } from './model-sequence.js'
import { beginModelStep, type ModelStep, type ModelStepOptions } from './model-step.js'
import { endThis, INTERNAL, nativeThis, Owner, settle } from './owner.js'
import { readCapacities } from './paged-batch.js'
import { modelStats, type ModelStats } from './paged-stats.js'
import type { PrefixMatch } from './prefix-match.js'
import type { PromptOptions, TokenIds } from './prompt.js'
import { readAllocation, readExplanation, readKeys, type AllocationOptions, type Explanation, type PrefixKeys } from './prompt-questions.js'
import { seqOf } from './sequence-id.js'
import { createSequence, findPrefix, type MatchOptions, type SequenceOptions } from './sequence-options.js'
import { modelStepBatch, ModelStepBatch, tablesOf, type ModelStepBatchOptions } from './step-batch.js'

/** Layers of a model that keep the same tokens in the same sizes on the same device: they share block tables. */
export interface ModelGroup {
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
 * Keys and values of all layers of a model: layers that keep everything, layers that slide, layers that share. One step, one
 * transaction, one snapshot for all of them.
 *
 * @example
 * ```ts
 * import { ModelCache } from 'kvtide'
 *
 * const sizes = { numKvHeads: 1, headDim: 2 }
 * const model = { layers: [{ kind: 'sliding', window: 4, ...sizes }, { kind: 'full', ...sizes }, { kind: 'shared', with: 1, ...sizes }] } as const
 * using cache = new ModelCache({ model, kind: 'paged', blockSize: 4, blocks: 16 })
 * const chat = cache.createSequence()
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
export class ModelCache extends Owner {
  /** Whether sequences share blocks, or have tensors of their own. */
  declare readonly kind: 'paged' | 'contiguous'
  /** Layers of the model. */
  declare readonly numLayers: number
  /** The layers that share block tables, in the order of their first ones. */
  declare readonly groups: readonly ModelGroup[]
  /** Tokens of a block; nothing in tensors. */
  declare readonly blockSize: number | undefined
  /** The element type of what goes in. */
  declare readonly dtype: DType
  /** Where it lives; the first layer, where others live elsewhere: see {@link groups}. */
  declare readonly device: string

  constructor(options: ModelCacheOptions) {
    const { kind, form, clock } = readModelOptions(options)
    const native = new binding.NativeModelCache(form)
    const kinds = { sequence: ModelSequence, prefix: binding.NativeModelPrefix }
    super(INTERNAL, new ModelEngine(native, clock, form.paged?.events ?? 0, kinds), ModelCache)
    const groups = native.groups().map(({ window, sinks, layers, device, ...sizes }): ModelGroup => {
      const slides = window === undefined ? { kind: 'full' as const } : { kind: 'sliding' as const, window, sinks: sinks ?? 0 }
      return Object.freeze({ ...slides, layers: Object.freeze(layers), ...sizes, device: form.devices[device] ?? 'cpu' })
    })
    settle(this, { kind, numLayers: native.numLayers(), groups: Object.freeze(groups), blockSize: form.paged?.blockSize, dtype: form.dtype, device: form.devices[0] ?? 'cpu' })
  }

  /** A new sequence: empty, or with what a prompt has found. In tensors nothing is found, and salt and extras change nothing. */
  createSequence(options: SequenceOptions = {}): ModelSequence {
    const engine = own(this)
    return new ModelSequence(INTERNAL, engine, createSequence(engine, options))
  }

  /** As {@link createSequence}: of a {@link PagedKvCache} that gives the number of a sequence, and this its object. */
  openSequence(options: SequenceOptions = {}): ModelSequence {
    const engine = own(this)
    return new ModelSequence(INTERNAL, engine, createSequence(engine, options))
  }

  /** The object of a sequence. */
  sequence(id: number): ModelSequence {
    const engine = own(this)
    const found = seqOf(engine, 'id', id)
    engine.native.checkSequence(found)
    return new ModelSequence(INTERNAL, engine, found)
  }

  /** The ids of the sequences there are, ascending. */
  sequenceIds(): number[] {
    return own(this).native.sequenceIds()
  }

  /**
   * The longest start of a prompt that is there in all layers: it stays there while the match lives. At most all tokens but the
   * last, whose logits are needed; in tensors nothing is found.
   */
  match(tokens: TokenIds, options: MatchOptions = {}): PrefixMatch {
    return findPrefix(own(this), tokens, options)
  }

  /**
   * Whether every group has room for a new sequence, of so many tokens or of a prompt, appended at once: the scarcest one answers.
   * Of a prompt, blocks that others hold cost nothing, those that nobody holds are taken again; a group that slides needs of
   * what is found only what it keeps. In tensors, whether a sequence may be so long.
   */
  canAllocate(tokens: number | TokenIds, options: AllocationOptions = {}): boolean {
    return readAllocation(own(this), tokens, options)
  }

  /** How far a prompt is found in all layers, and why no further. For who runs the cache: it tells of other tenants' prompts. */
  explain(tokens: TokenIds, options: PromptOptions = {}): Explanation {
    return readExplanation(own(this), tokens, options)
  }

  /** From now on nothing that is in it is found by a prompt. */
  forgetPrefixes(): void {
    own(this).change(native => native.forgetPrefixes())
  }

  /**
   * What happens to the blocks that prompts find, as of a {@link PagedKvCache}: to those of the first group that keeps everything,
   * which is what a prompt needs most of, or of the first group where all slide. Refused in tensors.
   */
  events(options: EventsOptions = {}): CacheEvents {
    return readEvents(own(this), options)
  }

  /**
   * The names of the whole blocks of a prompt, as events and {@link indexedKeys} have them, whether they are there or not: each
   * names all tokens up to its block's end. What they depend on, and how to have them without a cache: see {@link PrefixNamer}.
   */
  keys(tokens: TokenIds, options: PromptOptions = {}): string[] {
    return readKeys(own(this).native, tokens, options)
  }

  /** The names of all blocks that prompts find in the group that {@link events} are of, for a router that begins to follow or has missed events. O(blocks). */
  indexedKeys(): PrefixKeys {
    return own(this).native.indexedKeys()
  }

  /**
   * Gives sequences room for so many tokens in total each: in blocks all that are missing in every group, or it throws
   * `OUT_OF_BLOCKS` and takes none; in tensors the layers that keep everything grow, and layers that slide have theirs.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while a step is open on one of them
   */
  ensureCapacity(seq: number | ModelSequence, tokens: number): void
  ensureCapacity(seq: ModelStepOptions['sequences'], tokens: readonly number[] | Int32Array): void
  ensureCapacity(seq: number | ModelSequence | ModelStepOptions['sequences'], tokens: number | readonly number[] | Int32Array): void {
    const engine = own(this)
    const wanted = readCapacities(engine, seq, tokens)
    engine.change(native => native.ensureCapacities(wanted))
  }

  /** Begins a step: tokens that a model computes layer by layer. */
  beginStep(options: ModelStepOptions): ModelStep {
    return beginModelStep(own(this), options)
  }

  /** Arrays that {@link prepareStep} fills, of each group of layers; refused in tensors. */
  stepBatch(options: ModelStepBatchOptions): ModelStepBatch {
    const engine = own(this)
    if (this.kind !== 'paged') throw invalid('kind', this.kind, 'paged: in tensors there are no blocks')
    return modelStepBatch(engine, this.groups.length, options)
  }

  /** As {@link beginStep}, and writes down where the tokens go and what the sequences hold in each group; where that is refused, nothing has begun. */
  prepareStep(batch: ModelStepBatch, options: ModelStepOptions): ModelStep {
    const engine = own(this)
    return beginModelStep(engine, options, tablesOf(engine, batch, ModelStepBatch))
  }

  /** What it costs, and what its pools hold. */
  stats(): ModelStats {
    return modelStats(own(this).native.stats())
  }

  /** Throws `INTERNAL` when its bookkeeping is not in order: a defect of this package. O(blocks). */
  checkInvariants(): void {
    const reason = own(this).native.checkInvariants()
    if (reason !== null) throw new KvTideError('INTERNAL', `internal error: ${reason}`, { reason })
  }

  /** Ends it. Any later call throws `DISPOSED`; a second one does nothing. */
  dispose(): void {
    endThis(this, ModelCache)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, ModelCache)
  }
}

function own(self: unknown): ModelEngine {
  return nativeThis<ModelEngine>(self, ModelCache)
}
