import type { NativeView } from '#binding'

import { binding } from '../loading/binding.js'
import { count } from '../border/check.js'
import type { BeginOptions } from '../contiguous/kv-transaction.js'
import { checkInternal, INTERNAL, nativeThis, Owner, settle } from '../border/owner.js'
import { readSnapshot, Snapshot } from '../border/snapshot.js'
import { tensorOf, type Kv } from '../border/tensor.js'
import type { Engine } from './engine.js'
import { retain, type RetainOptions } from './retain.js'
import { append, type Tokens } from './tokens.js'
import { openOn, type Transaction } from './transaction.js'

/** A sequence: its number, and its cache. */
class Handle {
  readonly engine: Engine
  readonly id: number

  constructor(engine: Engine, id: number) {
    this.engine = engine
    this.id = id
  }

  dispose(): void {
    this.engine.native.releaseSequence(this.id)
    this.engine.changed()
  }
}

/**
 * One sequence of a {@link PagedKvCache}, in all layers. It stays until it is dropped, also when this object is collected:
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
  constructor(token: unknown, engine: Engine, id: number) {
    checkInternal(token, 'Sequence', 'PagedKvCache.sequence(id) instead')
    super(token, new Handle(engine, id), Sequence)
    settle(this, { id })
  }

  /** Tokens in it, those of an open transaction among them. */
  get length(): number {
    const { engine, id } = own(this)
    return engine.native.sequenceLength(id) || engine.zeroOf(id)
  }

  /** Tokens that no transaction can take back. */
  get committedLength(): number {
    const { engine, id } = own(this)
    return engine.native.committedLength(id) || engine.zeroOf(id)
  }

  /** Tokens that are still there in all layers: all, but for those whose blocks a window has left behind. */
  get retainedLength(): number {
    const { engine, id } = own(this)
    return engine.native.retainedLength(id) || engine.zeroOf(id)
  }

  /** Slots of its blocks, in the group of layers with the fewest. */
  get capacity(): number {
    const { engine, id } = own(this)
    return engine.native.sequenceCapacity(id) || engine.zeroOf(id)
  }

  /**
   * Appends tokens to all layers, or nothing.
   *
   * @throws KvTideError `OUT_OF_BLOCKS`, before anything changes; `TRANSACTION_OPEN` while a transaction or a step is open
   */
  append(input: Tokens): void {
    const { engine, id } = own(this)
    append(engine, id, undefined, input)
  }

  /**
   * Drops all but the first `len` tokens, in all layers.
   *
   * @throws KvTideError `CANNOT_ROLL_BACK` where a window has let go of what would have to be seen again
   */
  truncate(len: number): void {
    const { engine, id } = own(this)
    const tokens = count('len', len)
    engine.change(native => native.truncate(id, tokens))
  }

  /**
   * A new sequence with the same tokens: O(1), all blocks are shared, and who first writes into one gets a copy of it. Those of an
   * open transaction are committed there; from them on, prompts do not find what the fork holds.
   */
  fork(): Sequence {
    const { engine, id } = own(this)
    return new Sequence(INTERNAL, engine, engine.change(native => native.fork(id)))
  }

  /** What it holds now, those of an open transaction as in {@link fork}: O(1), nothing is copied until it is written over. */
  snapshot(): Snapshot {
    const { engine, id } = own(this)
    return new Snapshot(INTERNAL, engine.native.snapshot(id))
  }

  /**
   * Gives it what a snapshot of its cache holds: O(1).
   *
   * @throws KvTideError `SNAPSHOT_INVALID` for one of a sequence with another salt, or other extras
   */
  restore(snapshot: Snapshot): void {
    const { engine, id } = own(this)
    const held = readSnapshot(snapshot, binding.NativePagedSnapshot)
    engine.change(native => native.restore(id, held))
  }

  /**
   * Opens a transaction: what it drafts leaves no trace unless it is committed.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while one is open; open a child on that one
   */
  begin(options: BeginOptions = {}): Transaction {
    const { engine, id } = own(this)
    return openOn(engine, id, options)
  }

  /**
   * What a layer holds, as copies: `[1, numKvHeads, tokens, headDim]`; `null` where there is nothing. A layer that shares shows what
   * the other one holds, a window what it retains; `keyPositions` says where it stands.
   */
  kv(layer: number): Kv | null {
    const { engine, id } = own(this)
    engine.native.checkSequence(id)
    const found = engine.native.kv(id, count('layer', layer)) as [NativeView, NativeView] | null
    return found && { k: tensorOf(found[0]), v: tensorOf(found[1]) }
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
    engine.change(native => native.dropSequence(id))
  }

  /**
   * As {@link drop}, any number of times: while `attendAsync` reads the cache, its blocks are given back at the next change. Any
   * later call on this object throws `DISPOSED`.
   */
  override dispose(): void {
    super.dispose()
  }
}

function own(self: unknown): Handle {
  return nativeThis<Handle>(self, Sequence)
}
