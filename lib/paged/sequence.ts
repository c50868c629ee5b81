// A sequence of a paged cache: its tokens in all layers, forks, snapshots, transactions, and the priority of its blocks.
import type { NativePagedPrefix } from '#binding'

import { count, known, milliseconds, type Names, optional } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { checkInternal, endThis, INTERNAL, liveArgument, nativeThis, Owner, settle } from '../border/owner.js'
import { readSnapshot, Snapshot } from '../border/snapshot.js'
import { type Kv, kvOfViews } from '../border/tensor.js'
import type { BeginOptions } from '../contiguous/kv-transaction.js'
import { binding } from '../loading/binding.js'
import type { FileOptions } from '../files/progress.js'
import { saveBytes, saveFile } from '../files/save.js'
import { PrefixMatch, PROMPT, type PromptOptions, readPrompt, refusePrompt } from '../sequences/prompt.js'
import { SequenceHandle, type SharedCache } from '../sequences/shared-cache.js'
import { readStates } from '../sequences/states.js'
import { append, type KvArrays, readTokens, roomFor, type TokenIds, type Tokens } from '../sequences/tokens.js'
import { openOn, type Transaction } from '../sequences/transaction.js'

const SEQUENCE: Names<SequenceOptions> = { ...PROMPT, prefix: 0 }

/** Options for creating a sequence. */
export interface SequenceOptions extends PromptOptions {
  /** A match that the sequence starts with and takes over. Salt and extras are then those of the match. */
  readonly prefix?: PrefixMatch
}

/**
 * One sequence of a {@link PagedKvCache}, in all layers. It exists until it is dropped, even if this object is garbage collected:
 * `PagedKvCache.sequence(id)` returns a new object for it.
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 *
 * using cache = new PagedKvCache({ capacity: 64, blockSize: 4, numLayers: 2, numKvHeads: 1, headDim: 2 })
 * const rows = (n: number) => ({ data: new Float32Array(2 * n * 2).fill(n), shape: [2, 1, n, 2] })
 * using chat = cache.openSequence()
 * chat.append({ tokens: [5, 6, 7, 8, 9], k: rows(5), v: rows(5) })
 * using other = chat.fork() // all blocks are shared; the first write copies one
 * other.append({ tokens: [10], k: rows(1), v: rows(1) })
 * {
 *   using draft = chat.begin()
 *   draft.append({ k: rows(3), v: rows(3), tokens: [11, 12, 13] })
 *   draft.commit(2)
 * }
 * console.log([chat.length, other.length, cache.stats().copiesOnWrite]) // [7, 6, 1]
 * ```
 */
export class Sequence extends Owner {
  /** Its number, which is unique in the cache. */
  declare readonly id: number

  /** @internal */
  constructor(
    token: unknown,
    shared: SharedCache,
    id: number,
    handle: SequenceHandle = new SequenceHandle(shared, id),
  ) {
    checkInternal(token, 'Sequence', 'PagedKvCache.sequence(id) instead')
    super(token, handle, new.target)
    settle(this, { id })
  }

  /** The number of tokens, including those of an open transaction. */
  get length(): number {
    const { shared, id } = own(this)
    return shared.native.sequenceLength(id) || shared.zeroOf(id)
  }

  /** The number of tokens that no transaction can roll back. */
  get committedLength(): number {
    const { shared, id } = own(this)
    return shared.native.committedLength(id) || shared.zeroOf(id)
  }

  /** The number of tokens that all layers still have: without those whose blocks left a window. */
  get retainedLength(): number {
    const { shared, id } = own(this)
    return shared.native.retainedLength(id) || shared.zeroOf(id)
  }

  /** The number of slots in its blocks, in the group with the fewest. */
  get capacity(): number {
    const { shared, id } = own(this)
    return shared.native.sequenceCapacity(id) || shared.zeroOf(id)
  }

  /**
   * Appends tokens in all layers: all of them, or nothing.
   *
   * @throws KvTideError `OUT_OF_BLOCKS`; `TRANSACTION_OPEN` while a transaction or a step is open
   */
  append(input: Tokens): void {
    const { shared, id } = own(this)
    append(shared, id, undefined, input)
  }

  /**
   * Drops all tokens behind the first `len`, in all layers.
   *
   * @throws KvTideError `CANNOT_ROLL_BACK` if a window has dropped tokens that would become visible again
   */
  truncate(len: number): void {
    const { shared, id } = own(this)
    const tokens = count('len', len)
    shared.change(native => native.truncate(id, tokens))
  }

  /**
   * Prepares the sequence for a prompt: keeps its longest common prefix with the prompt, drops all tokens behind it, and returns the number of kept
   * tokens. Compute and append only the rest of the prompt. The last token of the prompt is never kept, since the model needs its logits.
   *
   * Tokens are compared by their ids: no token is kept behind one without an id. If a window has dropped tokens that the next token would
   * see, only sinks are kept, or nothing.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while a transaction or a step is open
   *
   * @example
   * ```ts
   * import { PagedKvCache } from 'kvtide'
   *
   * using cache = new PagedKvCache({ capacity: 64, blockSize: 4, numLayers: 2, numKvHeads: 1, headDim: 2 })
   * const rows = (n: number) => ({ data: new Float32Array(2 * n * 2), shape: [2, 1, n, 2] })
   * using chat = cache.openSequence()
   * chat.append({ tokens: [5, 6, 7, 8, 9], k: rows(5), v: rows(5) })
   * console.log(chat.resume([5, 6, 7, 1, 2, 3])) // 3: the history was edited
   * chat.append({ tokens: [1, 2, 3], k: rows(3), v: rows(3) })
   * ```
   */
  resume(tokens: TokenIds): number {
    const { shared, id } = own(this)
    const ids = readTokens('tokens', tokens)
    return shared.change(native => native.resume(id, ids))
  }

  /**
   * Sets the ids of tokens that were appended without ids. `tokens` are the ids of the sequence from its first token on, as far as they are known. Full
   * blocks are then added to the prefix cache. Returns the number of tokens that have ids afterwards. Some given ids may not be set: those of a block for
   * which a fork, a snapshot or a match may know other ids, and those of tokens from before a call of `forgetPrefixes`.
   *
   * @throws KvTideError `INVALID_ARGUMENT` for an id other than the known one; `TRANSACTION_OPEN` while a transaction or a step is open
   */
  identify(tokens: TokenIds): number {
    const { shared, id } = own(this)
    const ids = readTokens('tokens', tokens)
    return shared.change(native => native.identify(id, ids))
  }

  /**
   * Returns a new sequence with the same tokens, in O(1). All blocks are shared, copy-on-write. In the fork, tokens of an open transaction are committed,
   * and blocks from them on are not added to the prefix cache. Tokens of an open step are not in the fork: during a step, the fork has the tokens from
   * before it.
   */
  fork(): Sequence {
    const { shared, id } = own(this)
    return new Sequence(
      INTERNAL,
      shared,
      shared.change(native => native.fork(id)),
    )
  }

  /** Takes a snapshot, in O(1). Blocks are copied only when they are overwritten. Tokens of an open transaction or step are treated as by {@link fork}. */
  snapshot(): Snapshot {
    const { shared, id } = own(this)
    return new Snapshot(INTERNAL, shared.native.snapshot(id), () => shared.changed())
  }

  /**
   * Restores the content of a snapshot of the same cache, in O(1).
   *
   * @throws KvTideError `SNAPSHOT_INVALID` for a snapshot of a sequence with another salt, or other extras
   */
  restore(snapshot: Snapshot): void {
    const { shared, id } = own(this)
    const held = readSnapshot(snapshot, binding.NativePagedSnapshot)
    shared.change(native => native.restore(id, held))
  }

  /**
   * Opens a transaction: drafted tokens leave no trace unless they are committed.
   *
   * @throws KvTideError `TRANSACTION_OPEN` if a transaction is already open; open a child with its `begin()`
   */
  begin(options: BeginOptions = {}): Transaction {
    const { shared, id } = own(this)
    return openOn(shared, id, { options })
  }

  /**
   * Returns copies of a layer's keys and values, `[1, numKvHeads, tokens, headDim]`. A shared layer returns those of its owner, a sliding one
   * those that it retains, and `keyPositions` has their positions. To read all layers, see {@link readInto}.
   */
  kv(layer: number): Kv {
    const { shared, id } = own(this)
    shared.native.checkSequence(id)
    return kvOfViews(shared.native.kv(id, count('layer', layer)))
  }

  /**
   * Copies the states of the sequence after its tokens, those of a transaction included: all tensors of the cache's group of states, at their offsets. An empty
   * sequence has zeros.
   *
   * @throws KvTideError `INVALID_ARGUMENT` if no layer keeps a state
   */
  states(): Uint8Array {
    const { shared, id } = own(this)
    return readStates(shared.native, out => shared.native.statesOf(id, out))
  }

  /**
   * Copies the retained keys and values of all layers into your own arrays, in one call: `[numKvHeads, tokens, headDim]` for each layer. For uniform
   * layers, `k` and `v` are one array each, with the layers concatenated; otherwise `layers` has a pair for each layer with keys and values of its
   * own, as in {@link append}. The arrays have exactly as many elements, as 32-bit floats if pages are low-bit.
   *
   * Costs a copy of the whole sequence: call it once per turn, not for each token.
   *
   * @example
   * ```ts
   * import { PagedKvCache } from 'kvtide'
   *
   * using cache = new PagedKvCache({ capacity: 64, blockSize: 4, numLayers: 2, numKvHeads: 1, headDim: 2 })
   * using chat = cache.openSequence()
   * const rows = { data: new Float32Array(2 * 5 * 2).fill(3), shape: [2, 1, 5, 2] }
   * chat.append({ tokens: [5, 6, 7, 8, 9], k: rows, v: rows })
   * const [k, v] = [new Float32Array(2 * 5 * 2), new Float32Array(2 * 5 * 2)]
   * chat.readInto({ k, v })
   * console.log(k[19]) // 3
   * ```
   */
  readInto<T extends KvArrays>(out: T): T {
    const { shared, id } = own(this)
    shared.native.readInto(id, roomFor(shared, out))
    return out
  }

  /**
   * Saves the sequence to a file, up to its last token, and returns the number of bytes written. {@link PagedKvCache.loadSequence} loads it, possibly in
   * another process. Tokens that are appended meanwhile are not in the file. At every moment the path has the old file or the complete new one. The file
   * contains the conversation: only its owner may read it. Tokens of an open step are not in it. Refused while a transaction is open.
   *
   * @example
   * ```ts
   * import { PagedKvCache } from 'kvtide'
   *
   * using cache = new PagedKvCache({ capacity: 8, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 2 })
   * const chat = cache.openSequence()
   * const rows = { data: new Float32Array(3 * 2), shape: [1, 1, 3, 2] }
   * chat.append({ tokens: [5, 6, 7], k: rows, v: rows })
   * const bytes = await chat.saveBytes() // or: await chat.save('chat.kv')
   * const again = await cache.loadSequence(bytes)
   * console.log(again.length) // 3
   * ```
   */
  async save(path: string | URL, options: FileOptions = {}): Promise<number> {
    const { shared, id } = own(this)
    return saveFile(shared, () => shared.native.beginSaveOf(id, undefined), path, options)
  }

  /** As {@link save}, but returns the bytes instead of writing a file. */
  async saveBytes(options: FileOptions = {}): Promise<Uint8Array> {
    const { shared, id } = own(this)
    return saveBytes(shared, () => shared.native.beginSaveOf(id, undefined), options)
  }

  /**
   * Gives blocks of its tokens a priority, which decides how long they stay cached once they are no longer held: blocks of the lowest priority
   * are evicted first, of equal ones the block that was released first. {@link RetainOptions} has the whole rule.
   */
  retain(options: RetainOptions): void {
    const { shared, id } = own(this)
    retain(shared, id, options)
  }

  /** Drops the sequence and releases its blocks. Its open transaction or step ends too. */
  drop(): void {
    const { shared, id } = own(this)
    shared.change(native => native.dropSequence(id))
  }

  /**
   * As {@link drop}, but never refused: while `attendAsync` reads the cache, the blocks are released at the next change. Later calls
   * on this object throw `DISPOSED`; a second `dispose()` does nothing.
   */
  override dispose(): void {
    super.dispose()
  }
}

/** @internal Creates a sequence, empty or from a match. */
export function createSequence(shared: SharedCache, options: unknown): number {
  const { prefix, salt, saltFrom, extra } = known<SequenceOptions>('options', options, SEQUENCE)
  if (prefix === undefined) {
    const prompt = readPrompt({ salt, saltFrom, extra })
    return shared.ticked().createSequence(prompt.salt, prompt.saltFrom, prompt.extra)
  }
  const native = liveArgument<NativePagedPrefix>('prefix', prefix, PrefixMatch)
  refusePrompt({ salt, saltFrom, extra }, 'no value together with prefix: a match has its own')
  const id = shared.ticked().createSequenceFrom(native)
  endThis(prefix, PrefixMatch)
  return id
}

function own(self: unknown): SequenceHandle {
  return nativeThis<SequenceHandle>(self, Sequence)
}

const OPTIONS: Names<RetainOptions> = { from: 0, to: 0, priority: 0, forMs: 0, until: 0 }

/**
 * A priority for the blocks of some tokens. It decides which cached blocks are evicted first when blocks are needed.
 *
 * 1. The block of the lowest *rank* is evicted first; of equal ranks the block that was released first.
 * 2. A block's own rank is its priority, or the rank that the {@link EvictionPolicy} computes from its priority and its place in the
 *    sequence. The priority is 50 unless one was given, and again after its time limit.
 * 3. When a sequence releases a block (by a truncation, a restore, the end of a fork, a copy-on-write), all blocks before it in that
 *    sequence inherit its rank, whether they are released too or not. A block's rank is the highest of its own and the inherited ones,
 *    and is inherited in turn. So no block is evicted before blocks that cannot be reused without it.
 * 4. Ranks with time limits are joined: the highest rank until the limit, and the highest rank after it. Of two limits the later one
 *    counts if the rank falls, the earlier one if it rises. So the joined rank is never lower than either of the two.
 * 5. A new priority removes the ranks that the block had inherited before. Blocks before it keep theirs. The block itself may then be
 *    evicted before blocks that followed it and were already released.
 * 6. A block that left the window is released before the blocks that follow it, which can be reused without it. Only the sinks inherit
 *    its rank.
 * 7. The copy made by a copy-on-write starts without a priority and without inherited ranks.
 */
export interface RetainOptions {
  /** The first token, 0 by default. */
  readonly from?: number
  /** The position behind the last token, the sequence's length by default. Every block with one of these tokens gets the priority. */
  readonly to?: number
  /** 0 to 100; blocks with 0 are evicted first. */
  readonly priority: number
  /** The time limit of the priority in milliseconds; unlimited by default. */
  readonly forMs?: number
  /** The time at which the priority ends, by the cache's clock, instead of `forMs`. */
  readonly until?: number
}

/** @internal Gives blocks of a sequence a priority. */
export function retain(shared: SharedCache, id: number, options: unknown): void {
  const { from, to, priority, forMs, until } = known<RetainOptions>('options', options, OPTIONS)
  const start = optional(count, 'from', from) ?? 0
  const end = optional(count, 'to', to) ?? shared.native.sequenceLength(id)
  if (to !== undefined && end < start) throw invalid('to', to, `at least ${start}, the value of from`)
  const rank = count('priority', priority, 0, 100)
  if (forMs !== undefined && until !== undefined) throw invalid('until', until, 'no value together with forMs')
  const [lasts, limit] = [optional(milliseconds, 'forMs', forMs), optional(milliseconds, 'until', until)]
  const over = lasts === undefined ? limit : milliseconds('forMs', shared.clock.read() + lasts)
  const native = shared.ticked()
  native.retain(id, Math.min(start, end), end, rank, over)
  if (over !== undefined) shared.clock.limit(over)
  shared.changed()
}
