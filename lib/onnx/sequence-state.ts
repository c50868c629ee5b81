// The token ids of a sequence, and how many of its tokens are computed.
//
//     [ computed: in the cache too | pending: ids only ]
//
// Callers may change the sequence through the cache itself, so the ids are reconciled with the cache before they are used. Each call is O(1), except for
// operations of the cache and copies of ids.
import { invalid, isKvTideError, KvTideError } from '../errors/errors.js'
import { nativeThis, settle } from '../border/owner.js'
import { readSnapshot, type Snapshot } from '../border/snapshot.js'
import { draftOf } from '../contiguous/kv-transaction.js'
import { findPrefix, type PromptOptions, readExplanation, readPrompt } from '../sequences/prompt.js'
import { binding } from '../loading/binding.js'
import { createSequence, Sequence } from '../paged/sequence.js'
import { SequenceHandle, type SharedCache } from '../sequences/shared-cache.js'
import { openOn, type Transaction } from '../sequences/transaction.js'
import type { Encoding } from './encoding.js'
import { growthAt, isLongAt, type LongRope, namesAt, namesOf } from './long-rope.js'
import { Spans } from './spans.js'
import { TokenLog } from './token-log.js'

/** @internal The task that computes a sequence: a generation, or a call of `run`. */
export interface SequenceUser {
  /** The number of tokens that others see: those from before the task, and those that were given out. */
  readonly visible: number
  /** Tokens that were generated and are not read yet. */
  readonly unread?: readonly unknown[]
}

/** Releases a sequence whose object was disposed of during a step after that step. */
class DeferredHandle extends SequenceHandle {
  #isInStep = false
  #isReleased = false

  override dispose(): void {
    this.#isReleased = true
    if (!this.#isInStep) super.dispose()
  }

  /** True if the object was disposed of. */
  get isReleased(): boolean {
    return this.#isReleased
  }

  set isInStep(value: boolean) {
    this.#isInStep = value
    if (!value && this.#isReleased) super.dispose()
  }
}

/** @internal The properties that a sequence shares with its forks. */
export interface SequenceKind {
  readonly prompt: PromptOptions
  readonly vocabulary: number | undefined
  /** The rotary tables of the model, if it has one for long sequences. */
  readonly rope?: LongRope | undefined
  /** The encoding that it attends to, for a decoder with an encoder: part of `prompt` as well. */
  readonly encoding?: Encoding | undefined
  /** True if the computed tokens are those of a long sequence; by default, the length of the sequence decides. */
  readonly isLong?: boolean
  /** The images in its prompt; none by default. */
  readonly spans?: Spans
}

/** The start of a transaction of the caller's, and the tokens that were pending there. */
interface Mark {
  readonly length: number
  readonly pending: Uint32Array
  readonly draft: { readonly ended: 'committed' | 'dropped' | undefined }
  /** The task that computed the sequence then. */
  readonly user: SequenceUser | undefined
}

const NO_SPANS = new Spans()

const states = new WeakMap<object, SequenceState>()

/** @internal The state of a sequence of a model; `undefined` for any other object. */
export const stateOf = (value: object): SequenceState | undefined => states.get(value)

/** @internal The state of a sequence besides the rows in the cache: the ids of its tokens, computed or pending, and the task that computes it. */
export class SequenceState {
  readonly shared: SharedCache
  readonly handle: DeferredHandle
  readonly prompt: PromptOptions
  /** The size of the model's vocabulary, if known. */
  readonly vocabulary: number | undefined
  readonly rope: LongRope | undefined
  readonly spans: Spans
  /** Salt and extras, with those of the images. */
  readonly #named: PromptOptions
  readonly encoding: Encoding | undefined
  /** True if the computed tokens are those of a long sequence. */
  isLong: boolean
  readonly log: TokenLog
  /** The number of tokens that the cache had at the last reconciliation. */
  computed: number
  /** The number of its tokens that a prompt would have found in the cache, at the last call of {@link resume}. */
  reached = 0
  user: SequenceUser | undefined
  declare readonly sequence: Sequence
  /** The starts of the caller's open transactions, each on top of the one before. */
  readonly #marks: Mark[] = []
  /** True if the cache has tokens behind the computed ones, which are dropped later: see {@link cut}. */
  #hasSurplus = false

  constructor(
    shared: SharedCache,
    id: number,
    { prompt, vocabulary, rope, isLong, encoding, spans = NO_SPANS }: SequenceKind,
    ids: Uint32Array,
    computed: number,
  ) {
    this.shared = shared
    this.handle = new DeferredHandle(shared, id)
    this.prompt = prompt
    this.spans = spans
    this.#named = spans.named(prompt)
    this.vocabulary = vocabulary
    this.rope = rope
    this.encoding = encoding
    this.isLong = isLong ?? isLongAt(rope, ids.length)
    this.log = new TokenLog(ids)
    this.computed = computed
  }

  /** Registers the sequence object of this state. */
  own(sequence: Sequence): void {
    settle<SequenceState, 'sequence'>(this, { sequence })
    states.set(sequence, this)
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

  /** The number of its tokens in the cache. Refused after it was disposed of. */
  get held(): number {
    const { shared, id } = nativeThis<SequenceHandle>(this.sequence, Sequence)
    return shared.native.sequenceLength(id) || shared.zeroOf(id)
  }

  /** True if the cache may have tokens that others do not see. */
  get isAhead(): boolean {
    return this.user !== undefined || this.#hasSurplus
  }

  /** The number of computed tokens that others see and that no draft of a generation can roll back. */
  get settled(): number {
    const {
      shared: { native },
      handle: { id },
    } = this
    const seen = Math.min(this.computed, this.visible)
    // Tokens that the caller drafts in transactions belong to the caller.
    return this.user === undefined || this.#marks.length > 0 ? seen : Math.min(seen, native.committedLength(id))
  }

  /**
   * Brings the ids in line with the cache, through which callers may have changed the sequence: ids of truncated tokens are dropped, and tokens of a
   * transaction that was rolled back are pending again. Refused if callers have appended tokens through the cache, whose ids are unknown.
   */
  reconcile(): void {
    const { held } = this
    // While a task computes it, the task keeps the state up to date.
    if (this.user !== undefined) return
    if (held > this.computed && !this.#hasSurplus)
      throw invalid('sequence.length', held, `${this.computed}: tokens were appended to it through the cache`)
    attempt(() => this.#trim())
    if (held < this.computed) {
      this.log.cut(held)
      this.computed = held
    }
    const ended = this.#marks.findIndex(({ draft }) => draft.ended !== undefined)
    if (ended < 0) return
    // Transactions on top of one that has ended have ended as well.
    for (const { draft, length, pending } of this.#marks.splice(ended).toReversed()) {
      if (draft.ended === 'committed' || length !== this.computed) continue
      this.log.cut(length)
      this.log.push(pending)
    }
  }

  /** Refuses a change while a task computes the sequence, or while the cache cannot drop tokens behind the computed ones. */
  checkFree(): void {
    if (this.user !== undefined)
      throw new KvTideError('BUSY', 'a generation or a call of run uses the sequence: end it first', {})
    this.#trim()
  }

  /** Refuses a step unless the cache has exactly the computed tokens: otherwise a caller has changed the sequence. */
  checkComputed(): void {
    const { computed } = this
    this.#trim()
    if (this.computed < computed)
      throw new KvTideError(
        'BUSY',
        'tokens before the step have to be computed again first: the cache cannot go back to them, because of a window or the state of a layer',
        {},
      )
    this.check()
    if (this.held !== computed)
      throw invalid('sequence.length', this.held, `${computed}: it was changed through the cache while it was computed`)
  }

  /** Refuses a sequence that was disposed of, or whose transaction was rolled back while its tokens were computed or waited for that. */
  check(): void {
    void this.held
    const isGone = this.#marks.some(({ draft, user }) => draft.ended === 'dropped' && user !== this.user)
    if (isGone)
      throw new KvTideError(
        'TRANSACTION_CLOSED',
        'the transaction in which its tokens were to be computed was rolled back',
        {},
      )
  }

  /**
   * Drops all tokens behind the first `length`. If a window has dropped tokens that would become visible again, all tokens become pending; if layers keep
   * states, those behind the last position with a state. If the cache cannot drop them now, because it is being read or a caller has a transaction open, it drops them before the sequence is used again.
   */
  cut(length: number): void {
    this.log.cut(length)
    this.limit(length)
  }

  /** Makes computed tokens behind the first `length` pending. */
  limit(length: number): void {
    if (length >= this.computed) return
    this.computed = length
    this.#hasSurplus = true
    attempt(() => this.#trim())
  }

  /** Drops the tokens in the cache behind the computed ones. */
  #trim(): void {
    if (!this.#hasSurplus) return
    if (this.held > this.computed) {
      try {
        this.computed = cutToState(this.sequence, this.computed)
      } catch (error) {
        if (!isKvTideError(error) || error.code !== 'CANNOT_ROLL_BACK') throw error
        cutCache(this.sequence, 0)
        this.computed = 0
      }
    }
    this.#hasSurplus = false
  }

  /**
   * Drops all tokens behind the first `length`. If layers keep states and none is kept at `length`, all tokens behind the last kept state become pending.
   * Refused if a window has dropped tokens that would become visible again.
   */
  truncate(length: number): void {
    if (length < this.computed) this.computed = cutToState(this.sequence, length)
    this.log.cut(length)
  }

  /** Makes the last token pending again, if no token is pending. Refused in a transaction of the caller's. */
  redo(): void {
    const length = this.log.length - 1
    if (this.hasTransaction)
      throw new KvTideError(
        'TRANSACTION_OPEN',
        'nothing is pending, and inside a transaction the last token cannot be computed again: pass tokens',
        { object: 'sequence' },
      )
    const last = this.log.copy(length)
    this.cut(length)
    this.log.push(last)
  }

  /** True if the caller has a transaction open. */
  get hasTransaction(): boolean {
    return this.shared.native.innermostDraft(this.sequence.id) !== null
  }

  /** Opens a transaction on the caller's innermost one, if there is one, so that computed tokens can be rolled back. */
  nest(): Transaction | undefined {
    const parent = this.shared.native.innermostDraft(this.sequence.id)
    return parent === null ? undefined : openOn(this.shared, this.sequence.id, { parent })
  }

  /** The options under which its blocks are found. */
  get names(): PromptOptions {
    return namesOf(this.#named, this.isLong)
  }

  /** The number of tokens that it can grow by with the same rotary factors. */
  get growth(): number {
    return growthAt(this.rope, this.log.length)
  }

  /** The number that its positions start from. */
  get firstPosition(): number {
    return this.isLong ? (this.rope as LongRope).offset : 0
  }

  /**
   * Makes all tokens pending if those in the cache have the rotary factors of another length. Refused in a transaction of the caller's, which keeps its tokens.
   * Returns true if tokens were released.
   */
  align(length: number = this.log.length): boolean {
    const isLong = isLongAt(this.rope, length)
    if (isLong === this.isLong) return false
    if (this.hasTransaction) {
      const { threshold } = this.rope as LongRope
      throw new KvTideError(
        'TRANSACTION_OPEN',
        `beyond ${threshold} tokens the model has other rotary factors, so all tokens have to be computed again: end the transaction first`,
        { object: 'sequence' },
      )
    }
    this.become(isLong)
    return true
  }

  /** Refuses a snapshot that the sequence could not restore as a long sequence, or as a short one. */
  checkContent(snapshot: Snapshot, isLong: boolean): void {
    const { shared } = this
    const held = readSnapshot(snapshot, binding.NativePagedSnapshot)
    const id = createSequence(shared, namesOf(this.#named, isLong))
    try {
      shared.native.restore(id, held)
    } finally {
      shared.native.releaseSequence(id)
      shared.changed()
    }
  }

  /** Makes all tokens pending, and those that are computed from now on tokens of a long sequence, or of a short one. */
  become(isLong: boolean): void {
    if (this.held > 0) cutCache(this.sequence, 0)
    this.computed = 0
    this.#hasSurplus = false
    const { salt, saltFrom, extra } = readPrompt(namesOf(this.#named, isLong))
    this.shared.change(native => native.renameSequence(this.sequence.id, salt, saltFrom, extra))
    this.isLong = isLong
  }

  /** Makes all tokens pending and releases their blocks. Returns false, without a change, if a transaction is open or a caller has truncated the sequence. */
  release(): boolean {
    if (!attempt(() => this.check()) || this.held < this.computed || !attempt(() => cutCache(this.sequence, 0)))
      return false
    this.computed = 0
    this.#hasSurplus = false
    return true
  }

  /** Restores cached blocks of its tokens and of `more` from tiers, until the deadline. */
  async bring(more: Uint32Array): Promise<void> {
    const { tiers } = this.shared
    if (tiers === undefined) return
    const ids = new Uint32Array(this.log.length + more.length)
    ids.set(this.log.view())
    ids.set(more, this.log.length)
    // Errors are ignored here, because the generation will meet them again and report them.
    const names = namesAt(this.rope, this.#named, ids.length)
    await tiers.restore(ids, readPrompt(names), undefined, { tiers: 'all' }).catch(() => undefined)
  }

  /** The tokens that {@link resume} would look up in the cache; `undefined` if it would not look up any. */
  prefix(length: number): Uint32Array | undefined {
    return length - this.computed < 2 || this.hasTransaction ? undefined : this.log.view(0, length)
  }

  /** Takes over the cached prefix of the first `length` tokens without the last of them, if it is longer than the computed part of the sequence. */
  resume(length: number): void {
    const ids = this.prefix(length)
    this.reached = 0
    if (ids === undefined) return
    // A lookup without a result would count as a miss a second time.
    this.reached = readExplanation(this.shared, ids, this.names).matched
    if (this.reached <= this.computed) return
    const found = findPrefix(this.shared, ids, this.names)
    if (found.length <= this.computed) return found.dispose()
    const [id, computed] = [createSequence(this.shared, { prefix: found }), found.length]
    const native = this.shared.ticked()
    try {
      const snapshot = native.snapshot(id)
      try {
        native.restore(this.sequence.id, snapshot)
        this.computed = computed
        this.#hasSurplus = false
      } finally {
        snapshot.dispose()
      }
    } catch (error) {
      // A transaction is open: the sequence continues with its own tokens.
      if (!isKvTideError(error)) throw error
    } finally {
      native.releaseSequence(id)
      this.shared.changed()
    }
  }

  /** Notes the start of a caller's transaction. */
  mark(transaction: Transaction): void {
    // An error is reported by the next call on the sequence.
    attempt(() => this.reconcile())
    const length = Math.min(this.computed, this.visible)
    this.#marks.push({
      length,
      pending: this.log.copy(length, this.visible),
      draft: draftOf(transaction),
      user: this.user,
    })
  }
}

/** Makes a call that the cache may refuse. Returns false if it was refused. */
function attempt(call: () => void): boolean {
  try {
    call()
    return true
  } catch (error) {
    if (isKvTideError(error)) return false
    throw error
  }
}

/** Truncates a sequence in the cache to the last position at or before `length` that its layers have a state of. Returns that position. */
function cutToState(sequence: Sequence, length: number): number {
  try {
    cutCache(sequence, length)
    return length
  } catch (error) {
    const below = stateBelow(error)
    if (below === undefined) throw error
    cutCache(sequence, below)
    return below
  }
}

/** @internal The position to which a sequence can be truncated instead, if an error names it. */
export function stateBelow(error: unknown): number | undefined {
  if (!isKvTideError(error) || error.code !== 'CANNOT_ROLL_BACK') return undefined
  const { below } = error.details as { readonly below?: unknown }
  return typeof below === 'number' ? below : undefined
}

/** Truncates a sequence in the cache; its ids stay. */
function cutCache(sequence: Sequence, length: number): void {
  Sequence.prototype.truncate.call(sequence, length)
}
