import type { NativePagedPrefix } from '#binding'

import { count, known, milliseconds, type Names, optional } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { checkInternal, endThis, INTERNAL, liveArgument, nativeThis, Owner, settle } from '../border/owner.js'
import { readSnapshot, Snapshot } from '../border/snapshot.js'
import { type Kv, kvOfViews } from '../border/tensor.js'
import type { BeginOptions } from '../contiguous/kv-transaction.js'
import { binding } from '../loading/binding.js'
import type { FileOptions } from '../store/progress.js'
import { saveBytes, saveFile } from '../store/save.js'
import { PrefixMatch, PROMPT, type PromptOptions, readPrompt, refusePrompt } from './prompt.js'
import { SequenceHandle, type SharedCache } from './shared-cache.js'
import { append, type KvArrays, readTokens, roomFor, type TokenIds, type Tokens } from './tokens.js'
import { openOn, type Transaction } from './transaction.js'

const SEQUENCE: Names<SequenceOptions> = { ...PROMPT, prefix: 0 }

/** How a sequence starts. */
export interface SequenceOptions extends PromptOptions {
  /** A match that it starts with and takes over. Salt and extras are then those of the match. */
  readonly prefix?: PrefixMatch
}

/**
 * One sequence of a {@link PagedKvCache}, in all layers. It exists until it is dropped, even when this object is collected:
 * `PagedKvCache.sequence(id)` makes another object for it.
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
  /** Its number, which no other sequence of the cache gets. */
  declare readonly id: number

  /** @internal */
  constructor(token: unknown, shared: SharedCache, id: number, handle: SequenceHandle = new SequenceHandle(shared, id)) {
    checkInternal(token, 'Sequence', 'PagedKvCache.sequence(id) instead')
    super(token, handle, Sequence)
    settle(this, { id })
  }

  /** How many tokens it has, including those of an open transaction. */
  get length(): number {
    const { shared, id } = own(this)
    return shared.native.sequenceLength(id) || shared.zeroOf(id)
  }

  /** How many tokens no transaction can take back. */
  get committedLength(): number {
    const { shared, id } = own(this)
    return shared.native.committedLength(id) || shared.zeroOf(id)
  }

  /** How many tokens all layers still have, which leaves out those whose blocks left a window. */
  get retainedLength(): number {
    const { shared, id } = own(this)
    return shared.native.retainedLength(id) || shared.zeroOf(id)
  }

  /** How many slots its blocks have, in the group with the fewest. */
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
   * Drops all but the first `len` tokens, in all layers.
   *
   * @throws KvTideError `CANNOT_ROLL_BACK` where a window has dropped tokens that would be seen again
   */
  truncate(len: number): void {
    const { shared, id } = own(this)
    const tokens = count('len', len)
    shared.change(native => native.truncate(id, tokens))
  }

  /**
   * Makes the sequence ready for a prompt: keeps the tokens that it begins with, drops all behind them, and returns how many are kept.
   * Only the rest of the prompt is to be computed and appended. The last token of the prompt is never kept, since the model needs its logits.
   *
   * Tokens are compared by their ids: nothing behind a token without one is kept. Where a window has dropped what the next token would
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
   * Says which ids the tokens have that were appended without: `tokens` are those of the sequence from the first one on, as far as they are
   * known. Prompts find its full blocks from now on. Returns how many tokens have ids then. Fewer than were given where a fork, a snapshot or a match
   * holds a block whose ids it may know otherwise, and none of what was there when `forgetPrefixes` was called.
   *
   * @throws KvTideError `INVALID_ARGUMENT` for another id than one that is known; `TRANSACTION_OPEN` while a transaction or a step is open
   */
  identify(tokens: TokenIds): number {
    const { shared, id } = own(this)
    const ids = readTokens('tokens', tokens)
    return shared.change(native => native.identify(id, ids))
  }

  /**
   * A new sequence with the same tokens, in O(1). All blocks are shared; the first to write into one gets a copy. Tokens of an open
   * transaction are committed in the fork, and prompts find nothing of the fork from them on.
   */
  fork(): Sequence {
    const { shared, id } = own(this)
    return new Sequence(INTERNAL, shared, shared.change(native => native.fork(id)))
  }

  /** Keeps what the sequence holds now, in O(1). Nothing is copied until it is written over. Tokens of an open transaction are treated as by {@link fork}. */
  snapshot(): Snapshot {
    const { shared, id } = own(this)
    return new Snapshot(INTERNAL, shared.native.snapshot(id))
  }

  /**
   * Makes the sequence hold what a snapshot of the same cache holds, in O(1).
   *
   * @throws KvTideError `SNAPSHOT_INVALID` for one of a sequence with another salt, or other extras
   */
  restore(snapshot: Snapshot): void {
    const { shared, id } = own(this)
    const held = readSnapshot(snapshot, binding.NativePagedSnapshot)
    shared.change(native => native.restore(id, held))
  }

  /**
   * Opens a transaction: drafted tokens leave no trace unless they are committed.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while one is open; open a child with that one's `begin()`
   */
  begin(options: BeginOptions = {}): Transaction {
    const { shared, id } = own(this)
    return openOn(shared, id, options)
  }

  /**
   * Copies of what a layer holds, `[1, numKvHeads, tokens, headDim]`. A shared layer has what the other layer holds, a sliding one what it
   * retains, and `keyPositions` has the positions. To read all layers, see {@link readInto}.
   */
  kv(layer: number): Kv {
    const { shared, id } = own(this)
    shared.native.checkSequence(id)
    return kvOfViews(shared.native.kv(id, count('layer', layer)))
  }

  /**
   * Copies what all layers hold into your own arrays, once: what they retain, `[numKvHeads, tokens, headDim]` of each layer. Where all layers
   * are alike, `k` and `v` are one array each, with the layers one behind the other; else `layers` has a pair for each layer with keys and
   * values of its own. As in {@link append}. The arrays have exactly as many elements, 32-bit floats where pages are low-bit.
   *
   * Costs a copy of the whole sequence: do it once a turn, not for each token.
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
   * Saves the sequence in a file, to its last token, and answers how many bytes it has. {@link PagedKvCache.loadSequence} goes on from there, also in
   * another process. What is appended meanwhile is not in the file, which is the old one or the new one at every moment. It holds the conversation:
   * only its owner may read it. Refused while a transaction or a step is open.
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

  /** As {@link save}, but answers what would be in the file. */
  async saveBytes(options: FileOptions = {}): Promise<Uint8Array> {
    const { shared, id } = own(this)
    return saveBytes(shared, () => shared.native.beginSaveOf(id, undefined), options)
  }

  /**
   * Gives blocks of its tokens a priority, which decides how long they are kept once nobody holds them: those of the lowest priority
   * make room first, the longest released before others. {@link RetainOptions} has the whole rule.
   */
  retain(options: RetainOptions): void {
    const { shared, id } = own(this)
    retain(shared, id, options)
  }

  /** Ends the sequence and gives its blocks back. Its open transaction or step ends too. */
  drop(): void {
    const { shared, id } = own(this)
    shared.change(native => native.dropSequence(id))
  }

  /**
   * As {@link drop}, but never refused: while `attendAsync` reads the cache, the blocks are given back at the next change. Later calls
   * on this object throw `DISPOSED`; a second `dispose()` does nothing.
   */
  override dispose(): void {
    super.dispose()
  }
}

/** @internal A new sequence, empty or with a match. */
export function createSequence(shared: SharedCache, options: unknown): number {
  const { prefix, salt, saltFrom, extra } = known<SequenceOptions>('options', options, SEQUENCE)
  if (prefix === undefined) {
    const prompt = readPrompt({ salt, saltFrom, extra })
    return shared.ticked().createSequence(prompt.salt, prompt.saltFrom, prompt.extra)
  }
  const native = liveArgument<NativePagedPrefix>('prefix', prefix, PrefixMatch)
  refusePrompt({ salt, saltFrom, extra }, 'none: a match has its own')
  const id = shared.ticked().createSequenceFrom(native)
  endThis(prefix, PrefixMatch)
  return id
}

function own(self: unknown): SequenceHandle {
  return nativeThis<SequenceHandle>(self, Sequence)
}

const OPTIONS: Names<RetainOptions> = { from: 0, to: 0, priority: 0, forMs: 0, until: 0 }

/**
 * A priority for the blocks of some tokens. It decides which blocks make room first, once nobody holds them and others are needed.
 *
 * 1. The block of the lowest *rank* goes first; of equal ranks the block that was released first.
 * 2. A block's own rank is its priority, or what the {@link EvictionPolicy} makes of its priority and its place in the sequence. The
 *    priority is 50 unless one was given, and again once its time limit is over.
 * 3. When a sequence releases a block (by a truncation, a restore, the end of a fork, a copy for a writer), the block hands its rank on
 *    to all blocks before it in that sequence, whether they are released too or not. A block's rank is the highest of its own and of
 *    those handed on to it, and it hands that on in turn. So no block goes before blocks that cannot be found without it.
 * 4. Ranks with time limits are joined: the highest rank until the limit, and the highest rank after it. Of two limits the later one
 *    counts where the rank falls, the earlier one where it rises. So the joined rank is never lower than one of its parts.
 * 5. A new priority removes the ranks that were handed on to the block before. Blocks before it keep theirs. The block itself may then
 *    go before blocks that followed it and were already released.
 * 6. A block that left the window is released before the blocks that follow it, which are found without it. It hands its rank on to the
 *    sinks only.
 * 7. The copy that a writer gets starts without a priority, and with no rank handed on to it.
 */
export interface RetainOptions {
  /** The first token, 0 by default. */
  readonly from?: number
  /** The token behind the last, the sequence's length by default. Every block with one of these tokens gets the priority. */
  readonly to?: number
  /** 0 to 100; 0 goes first. */
  readonly priority: number
  /** How many milliseconds it lasts; without a limit it lasts for good. */
  readonly forMs?: number
  /** The time of the cache's clock at which it ends, instead of `forMs`. */
  readonly until?: number
}

/** @internal Gives blocks of a sequence a priority. */
export function retain(shared: SharedCache, id: number, options: unknown): void {
  const { from, to, priority, forMs, until } = known<RetainOptions>('options', options, OPTIONS)
  const start = optional(count, 'from', from) ?? 0
  const end = optional(count, 'to', to) ?? shared.native.sequenceLength(id)
  if (to !== undefined && end < start) throw invalid('to', to, `at least ${start}, where it starts`)
  const rank = count('priority', priority, 0, 100)
  if (forMs !== undefined && until !== undefined) throw invalid('until', until, 'none beside forMs')
  const [lasts, limit] = [optional(milliseconds, 'forMs', forMs), optional(milliseconds, 'until', until)]
  const over = lasts === undefined ? limit : milliseconds('forMs', shared.clock.read() + lasts)
  const native = shared.ticked()
  native.retain(id, Math.min(start, end), end, rank, over)
  if (over !== undefined) shared.clock.limit(over)
  shared.changed()
}
