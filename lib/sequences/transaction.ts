// Transactions on sequences: drafted tokens in all layers at once. What they share with those of contiguous caches is in contiguous/kv-transaction.
import { count } from '../errors/check.js'
import { INTERNAL, nativeArgument } from '../border/owner.js'
import { type Tensor, tensorOf } from '../border/tensor.js'
import { AnyTransaction, type BeginOptions, Draft, type KvTransaction } from '../contiguous/kv-transaction.js'
import type { SharedCache } from './shared-cache.js'
import { append, type Tokens } from './tokens.js'

/**
 * Tokens of a {@link Sequence} that leave no trace unless they are committed, in all layers at once. While it is open, tokens of steps
 * are drafted in it too. It ends like a {@link KvTransaction}.
 *
 * @example
 * ```ts
 * import { PagedKvCache } from 'kvtide'
 *
 * const sizes = { numKvHeads: 1, headDim: 2 }
 * const model = { layers: [{ kind: 'sliding', window: 2, ...sizes }, { kind: 'full', ...sizes }] } as const
 * using cache = new PagedKvCache({ model, blockSize: 1, capacity: 16 })
 * const rows = (n: number) => ({ data: new Float32Array(n * 2).fill(n), shape: [1, n, 2] })
 * const layers = (n: number) => [{ k: rows(n), v: rows(n) }, { k: rows(n), v: rows(n) }]
 * const chat = cache.openSequence()
 * chat.append({ layers: layers(5) })
 * using draft = chat.begin({ maxTokens: 8 })
 * draft.append({ layers: layers(3), parents: [-1, -1, 1] })
 * console.log(draft.treePositions().join(), draft.treeMask(0).shape, draft.treeMask(1).shape) // '5,5,6' [3, 4] [3, 8]
 * draft.commitPath([1, 2])
 * console.log(chat.length) // 7
 * ```
 */
export interface Transaction extends Omit<KvTransaction, 'append' | 'begin' | 'treeMask'> {
  /** Drafts tokens in all layers: all of them, or nothing. */
  append(input: Tokens): void
  /** Opens a child on top of this transaction, one at a time. Until the child has ended, calls on this one throw `TRANSACTION_OPEN`. */
  begin(options?: BeginOptions): Transaction
  /**
   * The attention mask of the draft in a layer, by default the first: f32 `[length, before + length]` over the tokens that the layer keeps, 0
   * for a token that is seen and -Infinity for one that is not. A window counts positions, not slots.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while a step of its sequence is open; attention of that step uses the tree by itself
   */
  treeMask(layer?: number): Tensor<'f32'>
}

/** @internal Options for opening a transaction on a sequence. */
export interface OpenTransaction {
  /** The caller's options. */
  readonly options?: unknown
  /** The number of the parent transaction. */
  readonly parent?: number | undefined
  /** Called with the transaction, and with those that are opened on it. */
  readonly begun?: (transaction: Transaction) => void
}

class SequenceTransaction extends AnyTransaction implements Transaction {
  readonly #begun: OpenTransaction['begun']

  constructor(draft: Draft<SharedCache>, begun: OpenTransaction['begun']) {
    super(INTERNAL, draft, SequenceTransaction)
    this.#begun = begun
    begun?.(this)
  }

  append(input: Tokens): void {
    const {
      cache,
      sequence: [sequence = 0],
      id,
    } = own(this)
    append(cache, sequence, id, input)
  }

  begin(options: BeginOptions = {}): Transaction {
    const { cache, sequence, id } = own(this)
    return new SequenceTransaction(new Draft(cache, sequence, options, id), this.#begun)
  }

  override treeMask(layer = 0): Tensor<'f32'> {
    const { cache, at } = own(this)
    return tensorOf(cache.native.draftMask(...(at as [sequence: number, draft: number]), count('layer', layer)))
  }
}

/** @internal Opens a transaction on a sequence. */
export function openOn(
  shared: SharedCache,
  sequence: number,
  { options = {}, parent, begun }: OpenTransaction = {},
): Transaction {
  return new SequenceTransaction(new Draft(shared, [sequence], options, parent), begun)
}

function own(self: unknown): Draft<SharedCache> {
  return nativeArgument('this', self, SequenceTransaction)
}
