// Sequences of an OnnxModel: a `Sequence` with the ids of its tokens. The ids and the pending tokens are kept in sequence-state.
import type { NativeSave } from '#binding'

import { count } from '../errors/check.js'
import { invalid, KvTideError } from '../errors/errors.js'
import { checkInternal, INTERNAL, liveArgument, nativeThis } from '../border/owner.js'
import type { Kv } from '../border/tensor.js'
import { Snapshot } from '../border/snapshot.js'
import type { BeginOptions } from '../contiguous/kv-transaction.js'
import { findPrefix, type PrefixMatch } from '../sequences/prompt.js'
import { createSequence, Sequence } from '../paged/sequence.js'
import type { SharedCache } from '../sequences/shared-cache.js'
import { append, type KvArrays, type TokenIds, type Tokens } from '../sequences/tokens.js'
import { openOn, type Transaction } from '../sequences/transaction.js'
import type { FileOptions } from '../files/progress.js'
import { saveBytes, saveFile } from '../files/save.js'
import { namesAt } from './long-rope.js'
import { type SequenceKind, SequenceState, stateOf } from './sequence-state.js'
import { readKnown } from './token-log.js'

/** The ids of sequences at the time of their snapshots. */
const idsOf = new WeakMap<Snapshot, { readonly ids: Uint32Array; readonly isLong: boolean }>()

/**
 * A sequence of an {@link OnnxModel}: a `Sequence` of its cache that has the ids of its tokens. The first `length` of them are
 * computed, the others are *pending*: the next `generate` or `run` computes them first.
 *
 * While a generation or a call of `run` works on the sequence, changes are refused with `BUSY`. Reads, forks, snapshots and files have the tokens
 * that were returned so far. Disposing of the sequence always succeeds, and ends the generation with `DISPOSED`.
 */
export class OnnxSequence extends Sequence {
  readonly #state: SequenceState

  /** @internal */
  constructor(token: unknown, state: SequenceState, id: number) {
    checkInternal(token, 'OnnxSequence', 'open(options) of an OnnxModel instead')
    super(token, state.shared, id, state.handle)
    this.#state = state
    state.own(this)
  }

  /** The ids of all its tokens, including pending ones. */
  get tokens(): Uint32Array {
    settled(this)
    return this.#state.log.copy(0, this.#state.visible)
  }

  /** The number of computed tokens. */
  override get length(): number {
    const state = stateThis(this)
    return state.isAhead ? Math.min(state.computed, state.visible) : state.held
  }

  /** The number of computed tokens that no transaction can roll back. */
  override get committedLength(): number {
    const { held, computed, visible, isAhead } = stateThis(this)
    return Math.min(isAhead ? Math.min(computed, visible) : held, super.committedLength)
  }

  override get retainedLength(): number {
    return still(this, sequence => sequence.retainedLength) ?? super.retainedLength
  }

  override kv(layer: number): Kv {
    return still(this, sequence => sequence.kv(layer)) ?? super.kv(layer)
  }

  override states(): Uint8Array {
    return still(this, sequence => sequence.states()) ?? super.states()
  }

  override readInto<T extends KvArrays>(out: T): T {
    return still(this, sequence => sequence.readInto(out)) ?? super.readInto(out)
  }

  /** As {@link Sequence.append}, but ids are required, and no tokens may be pending. */
  override append(input: Tokens): void {
    const state = settled(this)
    state.checkFree()
    if (state.pending > 0)
      throw invalid('input', input, `no append while ${state.pending} tokens are pending: compute those first`)
    const ids = append(state.shared, this.id, undefined, input, true)
    state.log.push(ids as Uint32Array)
    state.computed = this.length
  }

  /**
   * Drops all tokens behind the first `len`, computed or pending. If layers keep states and there is none at `len`, the sequence goes back to the last state
   * before it, which `length` shows; the tokens from there to `len` are pending.
   */
  override truncate(len: number): void {
    const state = settled(this)
    state.checkFree()
    state.truncate(count('len', len, 0, state.log.length))
  }

  /**
   * Makes the sequence consist of exactly these tokens. Computed tokens at the start that are the same are kept, and their number is returned;
   * the others are pending. The last token always is, since its logits are needed.
   */
  override resume(tokens: TokenIds): number {
    const state = settled(this)
    state.checkFree()
    const ids = readKnown('tokens', tokens, state.vocabulary)
    state.spans.check('tokens', 0, ids)
    state.align(ids.length)
    const kept = super.resume(ids)
    state.log.cut(0)
    state.log.push(ids)
    state.computed = kept
    return kept
  }

  /** As {@link Sequence.fork}; pending tokens are pending in the fork as well. */
  override fork(): OnnxSequence {
    const from = settled(this)
    const { shared, log, visible, settled: computed } = from
    const id = shared.change(native => native.fork(this.id))
    const state = new SequenceState(shared, id, from, log.view(0, visible), shared.native.sequenceLength(id))
    state.log.name(log.named.filter(position => position <= visible))
    const fork = new OnnxSequence(INTERNAL, state, id)
    state.limit(computed)
    return fork
  }

  /** As {@link Sequence.snapshot}, with the ids. */
  override snapshot(): Snapshot {
    const { log, visible, held, settled: computed, isLong } = settled(this)
    if (held > computed) {
      using fork = this.fork()
      return fork.snapshot()
    }
    const snapshot = super.snapshot()
    idsOf.set(snapshot, { ids: log.copy(0, visible), isLong })
    return snapshot
  }

  /** As {@link Sequence.restore}, for snapshots of sequences of this model. */
  override restore(snapshot: Snapshot): void {
    const state = settled(this)
    state.checkFree()
    const known = idsOf.get(snapshot)
    if (known === undefined) {
      liveArgument('snapshot', snapshot, Snapshot)
      const reason = 'it was taken of a sequence without token ids'
      throw new KvTideError('SNAPSHOT_INVALID', `the snapshot cannot be used: ${reason}`, { reason })
    }
    // In a transaction the call below is refused.
    if (known.isLong !== state.isLong && !state.hasTransaction) {
      state.checkContent(snapshot, known.isLong)
      state.become(known.isLong)
      state.log.cut(0)
    }
    super.restore(snapshot)
    state.log.cut(0)
    state.log.push(known.ids)
    state.computed = this.length
  }

  /** As {@link Sequence.save}, with the ids: pending tokens are pending again after {@link OnnxModel.loadSequence}. */
  override async save(path: string | URL, options: FileOptions = {}): Promise<number> {
    const { shared } = settled(this)
    return saveFile(shared, () => this.#beginSave(), path, options)
  }

  /** As {@link save}, but returns the bytes instead of writing a file. */
  override async saveBytes(options: FileOptions = {}): Promise<Uint8Array> {
    const { shared } = settled(this)
    return saveBytes(shared, () => this.#beginSave(), options)
  }

  #beginSave(): NativeSave {
    const { shared, log, visible } = settled(this)
    const ids = log.copy(0, visible)
    // Tokens that a generation has computed but not given out are left out.
    using fork = this.fork()
    stateThis(fork).align(ids.length)
    return shared.native.beginSaveOf(fork.id, ids)
  }

  /** As {@link Sequence.begin}. A rollback restores the ids from before the transaction, and tokens that were pending are pending again. */
  override begin(options: BeginOptions = {}): Transaction {
    const state = settled(this)
    state.checkFree()
    return openOn(state.shared, this.id, { options, begun: transaction => state.mark(transaction) })
  }

  /** As {@link dispose}. */
  override drop(): void {
    settled(this)
    this.dispose()
  }
}

/** The state of `this`. */
function stateThis(self: unknown): SequenceState {
  nativeThis(self, Sequence)
  const state = stateOf(self as object)
  if (state === undefined) throw invalid('this', self, 'an OnnxSequence')
  return state
}

/** The state of `this`, reconciled with the cache. */
function settled(self: unknown): SequenceState {
  const state = stateThis(self)
  state.reconcile()
  return state
}

/** Reads from a fork of `self` if the cache may have tokens that were not given out; otherwise returns `undefined`. */
function still<R>(self: OnnxSequence, read: (sequence: Sequence) => R): R | undefined {
  if (!stateThis(self).isAhead) return undefined
  using fork = OnnxSequence.prototype.fork.call(self)
  return read(fork)
}

/** @internal Opens a new sequence for a prompt, which starts with the cached prefix. */
export function openSequence(
  shared: SharedCache,
  ids: Uint32Array,
  kind: SequenceKind,
  checkpoints: readonly number[] = [],
): OnnxSequence {
  const names = namesAt(kind.rope, kind.spans?.named(kind.prompt) ?? kind.prompt, ids.length)
  let found: PrefixMatch | undefined = findPrefix(shared, ids, names)
  if (found.length === 0) {
    found.dispose()
    found = undefined
  }
  const id = createSequence(shared, found === undefined ? names : { prefix: found })
  return sequenceOf(shared, id, ids, kind, checkpoints)
}

/** @internal Makes the object of a new sequence. The tokens that it has in the cache are the first of `ids`. */
export function sequenceOf(
  shared: SharedCache,
  id: number,
  ids: Uint32Array,
  kind: SequenceKind,
  checkpoints: readonly number[] = [],
): OnnxSequence {
  const state = new SequenceState(shared, id, kind, ids, shared.native.sequenceLength(id))
  state.log.name(checkpoints)
  return new OnnxSequence(INTERNAL, state, id)
}
