// Transactions: drafted tokens that are committed or dropped as a whole, in contiguous caches and, through `Draft` and `AnyTransaction`, in sequences.
// The addon keeps the state of a transaction; an object here is its number. Every call on one crosses to the addon once.
import type { NativeBuffer, NativeView } from '#binding'

import { count, known, type Names, numbers, optional, whole } from '../errors/check.js'
import { type DType, meta } from '../border/host-array.js'
import { INTERNAL, nativeArgument, Owner } from '../border/owner.js'
import type { CacheHandle } from '../border/tensor-storage.js'
import { type Kv, kvOf, put, readTensor, type Tensor, tensorOf, type TokenSource } from '../border/tensor.js'

const BEGIN: Names<BeginOptions> = { maxTokens: 0 }
const DRAFT: Names<DraftOptions> = { parents: 0 }

/** Options of `begin()`. */
export interface BeginOptions {
  /**
   * Reserves room for this many tokens in all layers, so that appends up to that number neither move rows nor allocate memory. If
   * there is not enough room, `begin` throws what an append of as many tokens would: `CACHE_OVERFLOW`, `OUT_OF_BLOCKS` or
   * `OUT_OF_MEMORY`. You may draft more tokens than you reserved. A cache that never had tokens does not know their shape yet, and
   * reserves with the first ones. Without `maxTokens`, memory is allocated as needed.
   */
  readonly maxTokens?: number
}

/** Options for drafting tokens, in a transaction or as tentative tokens of a `RollbackCache`. */
export interface DraftOptions {
  /**
   * Makes the tokens nodes of a draft tree. For each one, `parents` has the number of the drafted or tentative token that it follows,
   * counted from 0, or -1 for the last token before the draft. A parent comes before its children. Without `parents`, each token
   * follows the one before.
   */
  readonly parents?: Int32Array | readonly number[]
}

/**
 * Tokens that leave no trace in a cache unless they are committed. Transactions work the same on every cache that has `begin()`.
 *
 * While a transaction is open, every other change of the cache throws `TRANSACTION_OPEN`. Reads still work, and see the drafted
 * tokens as if they had been appended. A refused call leaves the transaction open and unchanged. After the transaction has ended,
 * each call on it throws `TRANSACTION_CLOSED`, or `DISPOSED` if its cache was disposed of. A transaction stays open until it is
 * committed, rolled back or disposed of: declare it with `using`.
 *
 * @example
 * ```ts
 * import { KvCache, type KvTransaction } from 'kvtide'
 *
 * using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 8, maxSeqLen: 64, headDim: 1 })
 * const row = (...values: number[]) => ({ data: Float32Array.from(values), shape: [1, 1, values.length, 1] })
 * cache.update(row(1, 2), row(1, 2))
 * {
 *   using draft: KvTransaction = cache.begin()
 *   draft.append(row(3, 4, 5), row(3, 4, 5))
 *   draft.commit(2) // the first two were accepted
 * }
 * {
 *   using tree = cache.begin()
 *   const { k } = tree.append(row(5, 6, 7), row(5, 6, 7), { parents: [-1, -1, 1] })
 *   console.log(k.length, tree.treePositions().join()) // 7 '4,4,5'
 *   tree.commitPath([1, 2])
 * }
 * console.log(cache.getKv().k.toArray()) // Float32Array [1, 2, 3, 4, 6, 7]
 * ```
 */
export interface KvTransaction<D extends DType = DType> extends Disposable {
  /** The number of tokens drafted in this transaction, not counting those of an open child. */
  readonly length: number
  /**
   * Drafts tokens, and returns what an append to the cache would return. After a call with `parents`, a cache with a window returns all
   * tokens that it keeps, because {@link treeMask} covers all of them.
   */
  append(k: TokenSource, v: TokenSource, options?: DraftOptions): Kv<D>
  /**
   * Keeps the first `n` drafted tokens (all by default), drops the rest, and ends. Committed tokens of a child become tokens of its parent. If layers keep states,
   * throws `CANNOT_ROLL_BACK` unless `n` is 0 or all, or the states after the tokens of its last step were kept.
   */
  commit(n?: number): void
  /**
   * Keeps the tokens on an accepted path of the draft tree, in order, right behind the tokens from before the draft. Drops the
   * rest, and ends.
   *
   * @param nodes drafted tokens counted from 0, each the child of the one before
   * @throws KvTideError `INVALID_PATH` if the nodes are not such a path
   */
  commitPath(nodes: Int32Array | Uint32Array | readonly number[]): void
  /** Drops the drafted tokens, and ends. The cache returns to its state before the draft, even if its window has moved. */
  rollback(): void
  /** Opens a child transaction on top of this one, one at a time. Until the child has ended, calls on this one throw `TRANSACTION_OPEN`. */
  begin(options?: BeginOptions): KvTransaction<D>
  /**
   * The attention mask of the draft: f32 `[length, before + length]`, 0 for a token that is seen and -Infinity for one that is not. A
   * window counts positions, not slots.
   */
  treeMask(): Tensor<'f32'>
  /** The position of each drafted token: the number of tokens before the draft + its depth. */
  treePositions(): Int32Array
  /** Rolls the transaction back, with its children, if it is still open. May be called any number of times. */
  dispose(): void
  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void
}

/** @internal The calls of a native cache on its transactions. Their first arguments identify the transaction: see {@link Draft.at}. */
interface NativeDrafts {
  beginDraft(...args: (number | undefined)[]): number
  commitDraft(...args: (number | undefined)[]): void
  commitDraftPath(...args: (number | Uint32Array)[]): void
  rollbackDraft(...at: number[]): void
  dropDraft(...at: number[]): void
  drafted(...at: number[]): number
  draftMask(...at: number[]): NativeView
  draftPositions(...at: number[]): number[]
}

interface NativeCache extends NativeDrafts {
  dispose(): void
  letGo(): boolean
  appendDraft(draft: number, k: object, v: object, meta: object, parents?: Int32Array): NativeBuffer | null
}

/** @internal A cache with transactions. */
interface Drafting {
  readonly native: NativeDrafts
  change<R>(call: (native: NativeDrafts) => R): R
  changed(): void
}

/** @internal A transaction: its number, preceded by the number of its sequence if it has one. */
export class Draft<C extends Drafting> {
  readonly cache: C
  readonly sequence: readonly number[]
  readonly id: number
  /** The way the transaction ended; `undefined` while it may be open. */
  ended: 'committed' | 'dropped' | undefined

  /** Begins a transaction, or a child of `parent`. */
  constructor(cache: C, sequence: readonly number[], options: unknown, parent?: number) {
    const { maxTokens } = known<BeginOptions>('options', options, BEGIN)
    const room = optional(count, 'maxTokens', maxTokens)
    this.cache = cache
    this.sequence = sequence
    this.id = cache.change(native => native.beginDraft(...sequence, parent, room))
  }

  /** The numbers that identify the transaction, as the addon takes them. */
  get at(): number[] {
    return [...this.sequence, this.id]
  }

  /** Ends the transaction with a call that may be refused. If it is refused, the transaction stays open. */
  end(how: 'committed' | 'dropped', call: (native: NativeDrafts) => void): void {
    this.cache.change(call)
    this.ended = how
  }

  dispose(): void {
    if (this.ended !== undefined) return
    this.cache.native.dropDraft(...this.at)
    this.cache.changed()
    this.ended = 'dropped'
  }
}

/** @internal The methods that transactions of all kinds share: those that end them, and those that describe their draft tree. */
export abstract class AnyTransaction extends Owner {
  get length(): number {
    const { cache, at } = draftOf(this)
    return cache.native.drafted(...at)
  }

  commit(n?: number): void {
    const draft = draftOf(this)
    const tokens = optional(whole, 'n', n)
    draft.end('committed', native => native.commitDraft(...draft.at, tokens))
  }

  commitPath(nodes: Int32Array | Uint32Array | readonly number[]): void {
    const draft = draftOf(this)
    const path = Uint32Array.from(numbers('nodes', nodes, ['Int32Array', 'Uint32Array'], count))
    draft.end('committed', native => native.commitDraftPath(...draft.at, path))
  }

  rollback(): void {
    const draft = draftOf(this)
    draft.end('dropped', native => native.rollbackDraft(...draft.at))
  }

  treeMask(): Tensor<'f32'> {
    const { cache, at } = draftOf(this)
    return tensorOf(cache.native.draftMask(...at))
  }

  treePositions(): Int32Array {
    const { cache, at } = draftOf(this)
    return Int32Array.from(cache.native.draftPositions(...at))
  }
}

/** @internal The draft of a transaction of any kind. It may have ended: the addon knows, and refuses calls then. */
export function draftOf(self: unknown): Draft<Drafting> {
  return nativeArgument('this', self, AnyTransaction)
}

class CacheTransaction<D extends DType> extends AnyTransaction implements KvTransaction<D> {
  constructor(draft: Draft<CacheHandle<NativeCache>>) {
    super(INTERNAL, draft, CacheTransaction)
  }

  append(k: TokenSource, v: TokenSource, options: DraftOptions = {}): Kv<D> {
    const { cache, id } = own(this)
    const nodes = readDraft(options)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    return kvOf(cache.view(cache.native.appendDraft(id, put(keys, 0), put(values, 1), meta, nodes)))
  }

  begin(options: BeginOptions = {}): KvTransaction<D> {
    const { cache, id } = own(this)
    return new CacheTransaction<D>(new Draft(cache, [], options, id))
  }
}

function own(self: unknown): Draft<CacheHandle<NativeCache>> {
  return nativeArgument('this', self, CacheTransaction)
}

/** @internal Opens a transaction on a contiguous cache. */
export function openTransaction<D extends DType>(cache: CacheHandle<NativeCache>, options: unknown): KvTransaction<D> {
  return new CacheTransaction<D>(new Draft(cache, [], options))
}

/** @internal Checks the options of a draft and returns its parents. */
export function readDraft(options: unknown): Int32Array | undefined {
  const { parents } = known<DraftOptions>('options', options, DRAFT)
  return optional(parentsOf, 'parents', parents)
}

/** @internal Parents of drafted tokens: -1, or the number of an earlier token. */
export function parentsOf(argument: string, parents: unknown): Int32Array {
  return Int32Array.from(numbers(argument, parents, ['Int32Array'], (name, value) => count(name, value, -1)))
}
