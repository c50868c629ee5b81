import type { NativeSave } from '#binding'

import { count } from '../border/check.js'
import { invalid, isKvTideError, KvTideError } from '../border/errors.js'
import { checkInternal, INTERNAL, liveArgument, nativeThis } from '../border/owner.js'
import { Snapshot } from '../border/snapshot.js'
import { type BeginOptions, draftOf } from '../contiguous/kv-transaction.js'
import { findPrefix, type PrefixMatch, type PromptOptions, readExplanation, readPrompt } from '../sequences/prompt.js'
import { createSequence, Sequence } from '../sequences/sequence.js'
import { SequenceHandle, type SharedCache } from '../sequences/shared-cache.js'
import { append, type TokenIds, type Tokens } from '../sequences/tokens.js'
import { openOn, type Transaction } from '../sequences/transaction.js'
import type { FileOptions } from '../store/progress.js'
import { saveBytes, saveFile } from '../store/save.js'
import { readKnown, TokenLog } from './token-log.js'

/**
 * Sequences that know the ids of their tokens.
 *
 * ```text
 * [ computed: in the cache too | pending: ids alone ]
 * ```
 * The cache may be changed by other hands: ids are brought in line with it before they are used. Each call is O(1), but for what the cache does and
 * for copies of ids.
 */

/** @internal Who computes a sequence: a generation, or a call of `run`. */
export interface SequenceUser {
  /** How many tokens others see: those from before, and those that were given out. */
  readonly visible: number
}

/** A sequence whose object was disposed of in the middle of a step is released behind it. */
class DeferredHandle extends SequenceHandle {
  #isInStep = false
  #isReleased = false

  override dispose(): void {
    this.#isReleased = true
    if (!this.#isInStep) super.dispose()
  }

  set isInStep(value: boolean) {
    this.#isInStep = value
    if (!value && this.#isReleased) super.dispose()
  }
}

/** @internal What the forks of a sequence have in common with it. */
export interface SequenceKind {
  readonly prompt: PromptOptions
  readonly vocabulary: number | undefined
}

/** Where a transaction of the caller's began, and what was pending there. */
interface Mark {
  readonly length: number
  readonly pending: Uint32Array
  readonly draft: { readonly ended: 'committed' | 'dropped' | undefined }
}

/** The ids of sequences when snapshots of them were taken. */
const idsOf = new WeakMap<Snapshot, Uint32Array>()

let stateOf: (value: object) => SequenceState | undefined

/** @internal What is known of a sequence besides what the cache holds: the ids of its tokens, computed or pending, and who computes it. */
export class SequenceState {
  readonly shared: SharedCache
  readonly handle: DeferredHandle
  readonly prompt: PromptOptions
  /** How many tokens its model knows, where that is known. */
  readonly vocabulary: number | undefined
  readonly log: TokenLog
  /** How many tokens the cache had when it was last looked at. */
  computed: number
  user: SequenceUser | undefined
  declare sequence: OnnxSequence
  readonly #marks: Mark[] = []

  constructor(shared: SharedCache, id: number, { prompt, vocabulary }: SequenceKind, ids: Uint32Array, computed: number) {
    this.shared = shared
    this.handle = new DeferredHandle(shared, id)
    this.prompt = prompt
    this.vocabulary = vocabulary
    this.log = new TokenLog(ids)
    this.computed = computed
  }

  /** The state of a sequence of this cache. */
  static of(shared: SharedCache, argument: string, sequence: unknown): SequenceState {
    const found = typeof sequence === 'object' && sequence !== null ? stateOf(sequence) : undefined
    if (found === undefined) throw invalid(argument, sequence, 'an OnnxSequence')
    if (found.shared !== shared) throw invalid(argument, sequence, 'a sequence of this model')
    return found
  }

  get pending(): number {
    return this.log.length - this.computed
  }

  get visible(): number {
    return this.user?.visible ?? this.log.length
  }

  /**
   * Brings the ids in line with what the cache holds, which other hands may have changed: what was cut there is cut here, what a
   * transaction took back is pending again. Refused where others have appended tokens, whose ids nobody knows.
   */
  reconcile(): void {
    const { length } = this.sequence
    // Whoever computes it knows what it has.
    if (this.user !== undefined) return
    if (length > this.computed) throw invalid('sequence.length', length, `${this.computed}: tokens were appended to it by other hands`)
    if (length < this.computed) this.log.cut(length)
    this.computed = length
    for (let mark = this.#marks.at(-1); mark?.draft.ended !== undefined; mark = this.#marks.at(-1)) {
      this.#marks.pop()
      if (mark.draft.ended === 'committed' || mark.length !== length) continue
      this.log.cut(length)
      this.log.push(mark.pending)
    }
  }

  /** Refuses a change by others while tokens are computed. */
  checkFree(): void {
    if (this.user !== undefined) throw new KvTideError('BUSY', 'the sequence is being generated or run: end that first', {})
  }

  /**
   * Drops what comes behind `length` tokens. Where a window has dropped what would be seen again, all of them are pending. What cannot be taken
   * back stays: in a transaction of the caller's, and of a sequence that is gone.
   */
  cut(length: number): void {
    if (length < this.computed) {
      try {
        cutCache(this.sequence, length)
        this.computed = length
      } catch (error) {
        if (!isKvTideError(error)) throw error
        if (!this.release()) return this.log.cut(this.computed)
      }
    }
    this.log.cut(length)
  }

  /** Makes the last token pending again, where nothing is; refused in a transaction of the caller's. */
  redo(): void {
    const length = this.log.length - 1
    if (this.hasTransaction) throw new KvTideError('TRANSACTION_OPEN', 'the last token is computed, and in a transaction it cannot be computed again: give tokens', { object: 'sequence' })
    const last = this.log.copy(length)
    this.cut(length)
    this.log.push(last)
  }

  /** Whether the caller has a transaction open: nothing can be taken back then. */
  get hasTransaction(): boolean {
    try {
      openOn(this.shared, this.sequence.id, {}).dispose()
      return false
    } catch (error) {
      if (isKvTideError(error)) return true
      throw error
    }
  }

  /** Makes all tokens pending and gives their blocks back, where no transaction is open. Says whether it did. */
  release(): boolean {
    try {
      cutCache(this.sequence, 0)
    } catch (error) {
      if (isKvTideError(error)) return false
      throw error
    }
    this.computed = 0
    return true
  }

  /** Brings what lies in tiers below the cache of its tokens and of those that follow, unless that takes too long. */
  async bring(more: Uint32Array): Promise<void> {
    const { tiers } = this.shared
    if (tiers === undefined) return
    const ids = new Uint32Array(this.log.length + more.length)
    ids.set(this.log.view())
    ids.set(more, this.log.length)
    // Whatever stands against it stands against the generation as well, and is told there.
    await tiers.bring(ids, readPrompt(this.prompt), { tiers: 'all' }).catch(() => 0)
  }

  /** Takes what the cache has of the first `length` tokens without the last of them, where that is more than the sequence has. */
  resume(length: number): void {
    if (length - this.computed < 2) return
    const ids = this.log.view(0, length)
    // What is asked for in vain would count as a miss a second time.
    if (readExplanation(this.shared, ids, this.prompt).matched <= this.computed) return
    const found = findPrefix(this.shared, ids, this.prompt)
    if (found.length <= this.computed) return found.dispose()
    const [id, computed] = [createSequence(this.shared, { prefix: found }), found.length]
    const native = this.shared.ticked()
    try {
      const snapshot = native.snapshot(id)
      try {
        native.restore(this.sequence.id, snapshot)
        this.computed = computed
      } finally {
        snapshot.dispose()
      }
    } catch (error) {
      // A transaction is open: it goes on with what it has.
      if (!isKvTideError(error)) throw error
    } finally {
      native.releaseSequence(id)
      this.shared.changed()
    }
  }

  /** Notes where a transaction of the caller's began. */
  mark(transaction: Transaction): void {
    this.#marks.push({ length: this.computed, pending: this.log.copy(this.computed), draft: draftOf(transaction) })
  }
}

/**
 * A sequence of an {@link OnnxModel}: a `Sequence` of its cache that knows the ids of its tokens. The first `length` of them are
 * computed, the others are *pending*: the next `generate` or `run` computes them first.
 *
 * While a generation or a call of `run` works on it, changes are refused with `BUSY`; forks and snapshots have what was given out by then. To
 * dispose of it is never refused, and ends the generation with `DISPOSED`.
 */
export class OnnxSequence extends Sequence {
  readonly #state: SequenceState

  static {
    stateOf = value => (#state in value ? value.#state : undefined)
  }

  /** @internal */
  constructor(token: unknown, state: SequenceState, id: number) {
    checkInternal(token, 'OnnxSequence', 'open(options) of an OnnxModel instead')
    super(token, state.shared, id, state.handle)
    this.#state = state
    state.sequence = this
  }

  /** The ids of all its tokens, those that are pending too. */
  get tokens(): Uint32Array {
    settled(this)
    return this.#state.log.copy(0, this.#state.visible)
  }

  /** As {@link Sequence.append}; the ids are needed, and nothing may be pending. */
  override append(input: Tokens): void {
    const state = settled(this)
    state.checkFree()
    if (state.pending > 0) throw invalid('input', input, `nothing: ${state.pending} tokens are pending before it`)
    const ids = append(state.shared, this.id, undefined, input, true)
    state.log.push(ids as Uint32Array)
    state.computed = this.length
  }

  /** Drops all but the first `len` tokens, computed or pending. */
  override truncate(len: number): void {
    const state = settled(this)
    state.checkFree()
    const tokens = count('len', len, 0, state.log.length)
    if (tokens < state.computed) super.truncate(tokens)
    state.computed = Math.min(state.computed, tokens)
    state.log.cut(tokens)
  }

  /**
   * Makes the sequence one of exactly these tokens. Those at the start that are the same and computed are kept, and it says how many that are;
   * the others are pending. The last token always is, since its logits are needed.
   */
  override resume(tokens: TokenIds): number {
    const state = settled(this)
    state.checkFree()
    const ids = readKnown('tokens', tokens, state.vocabulary)
    const kept = super.resume(ids)
    state.log.cut(0)
    state.log.push(ids)
    state.computed = kept
    return kept
  }

  /** As {@link Sequence.fork}; what is pending is pending in the fork as well. */
  override fork(): OnnxSequence {
    const from = settled(this)
    const { shared, log, visible } = from
    const id = shared.change(native => native.fork(this.id))
    const state = new SequenceState(shared, id, from, log.view(0, visible), shared.native.sequenceLength(id))
    const fork = new OnnxSequence(INTERNAL, state, id)
    state.cut(visible)
    return fork
  }

  /** As {@link Sequence.snapshot}, with the ids. */
  override snapshot(): Snapshot {
    const { log, visible } = settled(this)
    if (visible < this.length) {
      using fork = this.fork()
      return fork.snapshot()
    }
    const snapshot = super.snapshot()
    idsOf.set(snapshot, log.copy(0, visible))
    return snapshot
  }

  /** As {@link Sequence.restore}, for snapshots of sequences of this model. */
  override restore(snapshot: Snapshot): void {
    const state = settled(this)
    state.checkFree()
    const ids = idsOf.get(snapshot)
    if (ids === undefined) {
      liveArgument('snapshot', snapshot, Snapshot)
      const reason = 'it is of a sequence whose ids are not known'
      throw new KvTideError('SNAPSHOT_INVALID', `the snapshot cannot be used: ${reason}`, { reason })
    }
    super.restore(snapshot)
    state.log.cut(0)
    state.log.push(ids)
    state.computed = this.length
  }

  /** As {@link Sequence.save}, with the ids: what is pending is pending again in the sequence that {@link OnnxModel.loadSequence} makes of it. */
  override async save(path: string | URL, options: FileOptions = {}): Promise<number> {
    const { shared } = settled(this)
    return saveFile(shared, () => this.#beginSave(), path, options)
  }

  /** As {@link save}, but answers what would be in the file. */
  override async saveBytes(options: FileOptions = {}): Promise<Uint8Array> {
    const { shared } = settled(this)
    return saveBytes(shared, () => this.#beginSave(), options)
  }

  #beginSave(): NativeSave {
    const { shared, log, visible } = settled(this)
    const ids = log.copy(0, visible)
    // What a generation has computed and not given out is not in it.
    using fork = this.fork()
    return shared.native.beginSaveOf(fork.id, ids)
  }

  /** As {@link Sequence.begin}. When it is rolled back, the ids are those from before it, and what was pending is pending again. */
  override begin(options: BeginOptions = {}): Transaction {
    const state = settled(this)
    state.checkFree()
    const transaction = super.begin(options)
    state.mark(transaction)
    return transaction
  }

  /** As {@link dispose}. */
  override drop(): void {
    settled(this)
    this.dispose()
  }
}

/** The state of `this`, with what others have changed. */
function settled(self: unknown): SequenceState {
  nativeThis(self, Sequence)
  const state = stateOf(self as object)
  if (state === undefined) throw invalid('this', self, 'an OnnxSequence')
  state.reconcile()
  return state
}

/** Cuts what the cache has of a sequence; its ids stay. */
function cutCache(sequence: OnnxSequence, length: number): void {
  Sequence.prototype.truncate.call(sequence, length)
}

/** @internal A new sequence with a prompt: it starts with what the cache has of it. */
export function openSequence(shared: SharedCache, ids: Uint32Array, kind: SequenceKind): OnnxSequence {
  const { prompt } = kind
  let found: PrefixMatch | undefined = findPrefix(shared, ids, prompt)
  if (found.length === 0) {
    found.dispose()
    found = undefined
  }
  return sequenceOf(shared, createSequence(shared, found === undefined ? prompt : { prefix: found }), ids, kind)
}

/** @internal The object of a new sequence, whose first tokens are those that the cache has of it. */
export function sequenceOf(shared: SharedCache, id: number, ids: Uint32Array, kind: SequenceKind): OnnxSequence {
  return new OnnxSequence(INTERNAL, new SequenceState(shared, id, kind, ids, shared.native.sequenceLength(id)), id)
}
