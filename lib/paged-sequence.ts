import type { NativePagedSnapshot } from '#binding'

import { count, known, type Names, optional } from './check.js'
import { meta, put, readTensor, type TokenSource } from './host-tensor.js'
import { openDraft, type BeginOptions } from './kv-transaction.js'
import { checkInternal, endThis, INTERNAL, liveArgument, nativeThis, Owner, settle } from './owner.js'
import type { PagedEngine } from './paged-engine.js'
import { PagedSnapshot } from './paged-snapshot.js'
import { SequenceDrafting, type PagedTransaction } from './paged-transaction.js'
import { readTokens, type TokenIds } from './prompt.js'
import { retain, type RetainOptions } from './retain.js'
import { absent } from './sequence-id.js'

const TOKENS: Names<PagedTokens> = { k: 0, v: 0, tokens: 0 }

/** Tokens of all layers for one sequence. */
export interface PagedTokens {
  /** Their keys, `[numLayers, numKvHeads, n, headDim]`; with the layout `bshd` `[numLayers, n, numKvHeads, headDim]`. */
  readonly k: TokenSource
  /** Their values, as many. */
  readonly v: TokenSource
  /** Their ids: full blocks of known tokens can be found by other prompts. Left out, nothing from here on is. */
  readonly tokens?: TokenIds
}

/** A sequence: its number, and its cache. */
class Sequence {
  readonly engine: PagedEngine
  readonly id: number

  constructor(engine: PagedEngine, id: number) {
    this.engine = engine
    this.id = id
  }

  dispose(): void {
    this.engine.native.releaseSequence(this.id)
    this.engine.changed()
  }
}

/**
 * One sequence of a {@link PagedKvCache}. It stays until it is dropped, also when this object is collected:
 * `PagedKvCache.sequence(id)` gives another one for it.
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
 *   draft.append(rows(3), rows(3), { tokens: [11, 12, 13] })
 *   draft.commit(2)
 * }
 * console.log([chat.length, other.length, cache.stats().copiesOnWrite]) // [7, 6, 1]
 * ```
 */
export class PagedSequence extends Owner {
  /** Its number, which no other sequence of the cache gets. */
  declare readonly id: number

  /** @internal */
  constructor(token: unknown, engine: PagedEngine, id: number) {
    checkInternal(token, 'PagedSequence', 'PagedKvCache.sequence(id) instead')
    super(token, new Sequence(engine, id), PagedSequence)
    settle(this, { id })
  }

  /** Tokens in it, those of an open transaction among them. */
  get length(): number {
    const { engine, id } = own(this)
    return engine.native.sequenceLength(id) || absent(engine, id)
  }

  /** Tokens that no transaction can take back. */
  get committedLength(): number {
    const { engine, id } = own(this)
    return engine.native.committedLength(id) || absent(engine, id)
  }

  /** Tokens that are still there: all, but for those whose blocks a window has left behind. So many a gather has. */
  get retainedLength(): number {
    const { engine, id } = own(this)
    return engine.native.retainedLength(id) || absent(engine, id)
  }

  /** Slots of its blocks. */
  get capacity(): number {
    const { engine, id } = own(this)
    return engine.native.sequenceCapacity(id) || absent(engine, id)
  }

  /**
   * Appends tokens of all layers, or nothing.
   *
   * @throws KvTideError `OUT_OF_BLOCKS`, before anything changes
   */
  append(input: PagedTokens): void {
    const { engine, id } = own(this)
    const { k, v, tokens } = known<PagedTokens>('input', input, TOKENS)
    const ids = optional(readTokens, 'tokens', tokens)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    engine.ticked().appendTo(id, put(keys, 0), put(values, 1), meta, ids)
    engine.changed()
  }

  /** Drops all but the first `len` tokens. */
  truncate(len: number): void {
    const { engine, id } = own(this)
    engine.ticked().truncate(id, count('len', len))
    engine.changed()
  }

  /**
   * A new sequence with the same tokens: O(1), all blocks are shared, and who first writes into one gets a copy of it. Those of an
   * open transaction are committed there; from them on, prompts do not find what the fork holds.
   */
  fork(): PagedSequence {
    const { engine, id } = own(this)
    const fork = engine.ticked().fork(id)
    engine.changed()
    return new PagedSequence(INTERNAL, engine, fork)
  }

  /** What it holds now, those of an open transaction as in {@link fork}: O(1), nothing is copied until it is written over. */
  snapshot(): PagedSnapshot {
    const { engine, id } = own(this)
    return new PagedSnapshot(INTERNAL, engine.native.snapshot(id))
  }

  /**
   * Gives it what a snapshot of its cache holds: O(1).
   *
   * @throws KvTideError `SNAPSHOT_INVALID` for one of a sequence with another salt, or other extras
   */
  restore(snapshot: PagedSnapshot): void {
    const { engine, id } = own(this)
    const native = liveArgument<NativePagedSnapshot>('snapshot', snapshot, PagedSnapshot)
    engine.ticked().restore(id, native)
    engine.changed()
  }

  /**
   * Opens a transaction: what it drafts leaves no trace unless it is committed.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while one is open; open a child on that one
   */
  begin(options: BeginOptions = {}): PagedTransaction {
    const { engine, id } = own(this)
    return openDraft(new SequenceDrafting(engine, id), options)
  }

  /**
   * Says how long blocks of its tokens are kept once nobody holds them: those of the lowest priority make room first, and among
   * them those that were let go of first. {@link RetainOptions} has the whole rule.
   */
  retain(options: RetainOptions): void {
    const { engine, id } = own(this)
    retain(engine, id, options)
  }

  /** Ends it, and gives all its blocks back; an open transaction or step of it ends with it. */
  drop(): void {
    const { engine, id } = own(this)
    engine.ticked().dropSequence(id)
    engine.changed()
  }

  /**
   * As {@link drop}, any number of times: while `attendAsync` reads the cache, its blocks are given back at the next change. Any
   * later call on this object throws `DISPOSED`.
   */
  dispose(): void {
    endThis(this, PagedSequence)
  }

  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    endThis(this, PagedSequence)
  }
}

function own(self: unknown): Sequence {
  return nativeThis<Sequence>(self, PagedSequence)
}
