import type { NativeBuffer, NativeView } from '#binding'

import { count, known, type Names, numbers, optional, whole } from '../border/check.js'
import { meta, put, readTensor, type TokenSource } from '../border/host-tensor.js'
import { INTERNAL, nativeArgument, Owner } from '../border/owner.js'
import type { Shower, Shown } from '../border/shown.js'
import { kvOf, tensorOf, type Kv, type Tensor } from '../border/tensor.js'

const BEGIN: Names<BeginOptions> = { maxTokens: 0 }
const DRAFT: Names<DraftOptions> = { parents: 0 }

/** How a transaction is opened. */
export interface BeginOptions {
  /**
   * Takes room for so many tokens at once, in all layers, so that no append up to them has to move rows or take memory; where
   * there is none, the transaction is refused as an append of so many would be: `CACHE_OVERFLOW`, `OUT_OF_BLOCKS` or
   * `OUT_OF_MEMORY`. More may be drafted. A cache that has had no tokens, and knows no shape, takes it with the first ones. Left
   * out, room is made as it is needed.
   */
  readonly maxTokens?: number
}

/** How tokens are drafted, in a transaction or as tentative tokens of a `RollbackCache`. */
export interface DraftOptions {
  /**
   * The tokens are nodes of a draft tree. For each one, `parents` has the number of the drafted or tentative token that it follows,
   * counted from 0, or -1 for the last token before the draft. A parent comes before its children. Without `parents` each token
   * follows the one before.
   */
  readonly parents?: Int32Array | readonly number[]
}

/**
 * Tokens that leave no trace in a cache unless they are committed. It means the same on every cache that has `begin()`.
 *
 * While it is open, all else that would change the cache throws `TRANSACTION_OPEN`; reads go on, and show what they would had
 * the drafted tokens been appended. A call that is refused leaves it open, and as it was. Once it has ended, each call throws
 * `TRANSACTION_CLOSED`; `DISPOSED` when its cache was disposed of. One that is neither ended nor disposed of stays open: `using`
 * never forgets.
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
export interface KvTransaction extends Disposable {
  /** Tokens drafted here; those of an open child are not among them. */
  readonly length: number
  /**
   * Drafts tokens, and shows what an append of the cache's own would. Once `parents` were given, a window shows everything that
   * it keeps instead: what {@link treeMask} is over.
   */
  append(k: TokenSource, v: TokenSource, options?: DraftOptions): Kv
  /** Keeps the first `n` drafted tokens, all unless said otherwise, drops the rest, and ends. Those of a child become its parent's. */
  commit(n?: number): void
  /**
   * Keeps the tokens on an accepted path of the draft tree, in order, right behind what was there before; drops the rest, and
   * ends.
   *
   * @param nodes drafted tokens counted from 0, each the child of the one before
   * @throws KvTideError `INVALID_PATH` when they are no path
   */
  commitPath(nodes: Int32Array | Uint32Array | readonly number[]): void
  /** Drops what was drafted, and ends: the cache is as it was before, also when its window has moved. */
  rollback(): void
  /** Opens a transaction on top of this one; until that has ended, calls on this one throw `TRANSACTION_OPEN`. One at a time. */
  begin(options?: BeginOptions): KvTransaction
  /**
   * The attention mask of the draft: f32 `[length, before + length]`, 0 where a token sees and -Infinity elsewhere. A window
   * counts positions in it.
   */
  treeMask(): Tensor
  /** The position of each drafted token: that of the first one + its depth. */
  treePositions(): Int32Array
  /** Rolls it back, with its children, if it is still open. Any number of times. */
  dispose(): void
  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void
}

/** @internal How transactions begin and end, and what their tokens see, by their numbers. */
export interface NativeDrafting {
  beginDraft(parent?: number, maxTokens?: number): number
  commitDraft(draft: number, tokens?: number): void
  commitDraftPath(draft: number, path: Uint32Array): void
  rollbackDraft(draft: number): void
  dropDraft(draft: number): void
  drafted(draft: number): number
  draftMask(draft: number): NativeView
  draftPositions(draft: number): number[]
}

/** A native cache whose appends show what is in it. */
interface NativeShowing extends NativeDrafting {
  dispose(): void
  appendDraft(draft: number, k: object, v: object, meta: object, parents?: Int32Array): NativeBuffer | null
}

/** A cache whose appends show what is in it. */
class Showing {
  readonly #shower: Shower<NativeShowing>

  constructor(shower: Shower<NativeShowing>) {
    this.#shower = shower
  }

  get native(): NativeDrafting {
    return this.#shower.native
  }

  append(draft: number, k: TokenSource, v: TokenSource, options: unknown): Kv {
    const { parents } = known<DraftOptions>('options', options, DRAFT)
    const nodes = optional(parentsOf, 'parents', parents)
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    const { native } = this.#shower
    return kvOf(this.#shower.shown(native.appendDraft(draft, put(keys, 0), put(values, 1), meta, nodes)) as Shown)
  }
}

/** @internal A transaction: its number, and what gave it. */
export class Draft<D extends { readonly native: NativeDrafting }> {
  readonly drafting: D
  readonly id: number
  /** It was committed or rolled back, so that nothing is left to drop. */
  ended = false

  constructor(drafting: D, id: number) {
    this.drafting = drafting
    this.id = id
  }

  get native(): D['native'] {
    return this.drafting.native
  }

  dispose(): void {
    if (!this.ended) this.native.dropDraft(this.id)
    this.ended = true
  }
}

/** @internal How every transaction ends, and what its tokens see. */
export abstract class Ending extends Owner {
  get length(): number {
    const { native, id } = draftOf(this)
    return native.drafted(id)
  }

  commit(n?: number): void {
    const draft = draftOf(this)
    draft.native.commitDraft(draft.id, optional(whole, 'n', n))
    draft.ended = true
  }

  commitPath(nodes: Int32Array | Uint32Array | readonly number[]): void {
    const draft = draftOf(this)
    draft.native.commitDraftPath(draft.id, Uint32Array.from(numbers('nodes', nodes, ['Int32Array', 'Uint32Array'], count)))
    draft.ended = true
  }

  rollback(): void {
    const draft = draftOf(this)
    draft.native.rollbackDraft(draft.id)
    draft.ended = true
  }

  treeMask(): Tensor {
    const { native, id } = draftOf(this)
    return tensorOf(native.draftMask(id))
  }

  treePositions(): Int32Array {
    const { native, id } = draftOf(this)
    return Int32Array.from(native.draftPositions(id))
  }
}

/** The draft of any transaction. One that was disposed of has ended like any other, which the cache knows. */
function draftOf(self: unknown): Draft<{ readonly native: NativeDrafting }> {
  return nativeArgument('this', self, Ending)
}

/** What `begin()` returns. */
class Transaction extends Ending implements KvTransaction {
  constructor(draft: Draft<Showing>) {
    super(INTERNAL, draft, Transaction)
  }

  append(k: TokenSource, v: TokenSource, options: DraftOptions = {}): Kv {
    const { drafting, id } = own(this)
    return drafting.append(id, k, v, options)
  }

  begin(options: BeginOptions = {}): KvTransaction {
    const { drafting, id } = own(this)
    return new Transaction(draftOn(drafting, options, id))
  }
}

/** @internal Opens a transaction on a cache whose appends show what is in it. */
export function openTransaction(shower: Shower<NativeShowing>, options: unknown): KvTransaction {
  return new Transaction(draftOn(new Showing(shower), options))
}

/** @internal Begins a transaction of any kind. */
export function draftOn<D extends { readonly native: NativeDrafting }>(drafting: D, options: unknown, parent?: number): Draft<D> {
  const { maxTokens } = known<BeginOptions>('options', options, BEGIN)
  const room = optional(count, 'maxTokens', maxTokens)
  return new Draft(drafting, drafting.native.beginDraft(parent, room))
}

function own(self: unknown): Draft<Showing> {
  return nativeArgument('this', self, Transaction)
}

/** The parents of drafted tokens: -1, or the number of an earlier token. */
export function parentsOf(argument: string, parents: unknown): Int32Array {
  return Int32Array.from(numbers(argument, parents, ['Int32Array'], (name, value) => count(name, value, -1)))
}
