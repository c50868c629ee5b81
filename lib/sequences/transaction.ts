import type { NativeView } from '#binding'

import { count } from '../border/check.js'
import { INTERNAL, nativeArgument } from '../border/owner.js'
import { type Tensor, tensorOf } from '../border/tensor.js'
import { AnyTransaction, beginDraft, type BeginOptions, type Draft, type KvTransaction, type NativeDrafts } from '../contiguous/kv-transaction.js'
import type { SharedCache } from './shared-cache.js'
import { append, type Tokens } from './tokens.js'

/**
 * Tokens of a {@link Sequence} that leave no trace unless they are committed, in all layers at once. While it is open, tokens of steps
 * are drafted in it too. It ends as a {@link KvTransaction} does.
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
   * The attention mask of the draft in a layer, by default the first: f32 `[length, before + length]` over what the layer keeps, 0
   * where a token sees and -Infinity elsewhere. A window counts positions, not slots.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while a step of its sequence is open; attention of the step knows the tree
   */
  treeMask(layer?: number): Tensor
}

/** @internal The drafts of one sequence. */
class SequenceDrafts implements NativeDrafts {
  readonly shared: SharedCache
  readonly sequence: number

  constructor(shared: SharedCache, sequence: number) {
    this.shared = shared
    this.sequence = sequence
  }

  get native(): this {
    return this
  }

  beginDraft(parent?: number, maxTokens?: number): number {
    return this.shared.change(native => native.beginDraft(this.sequence, parent, maxTokens))
  }

  commitDraft(draft: number, tokens?: number): void {
    this.shared.change(native => native.commitDraft(this.sequence, draft, tokens))
  }

  commitDraftPath(draft: number, path: Uint32Array): void {
    this.shared.change(native => native.commitDraftPath(this.sequence, draft, path))
  }

  rollbackDraft(draft: number): void {
    this.shared.change(native => native.rollbackDraft(this.sequence, draft))
  }

  dropDraft(draft: number): void {
    this.shared.native.dropDraft(this.sequence, draft)
    this.shared.changed()
  }

  drafted(draft: number): number {
    return this.shared.native.drafted(this.sequence, draft)
  }

  draftMask(draft: number, layer = 0): NativeView {
    return this.shared.native.draftMask(this.sequence, draft, layer)
  }

  draftPositions(draft: number): number[] {
    return this.shared.native.draftPositions(this.sequence, draft)
  }
}

/** A transaction of a sequence. */
class SequenceTransaction extends AnyTransaction implements Transaction {
  constructor(draft: Draft<SequenceDrafts>) {
    super(INTERNAL, draft, SequenceTransaction)
  }

  append(input: Tokens): void {
    const { on, id } = own(this)
    append(on.shared, on.sequence, id, input)
  }

  begin(options: BeginOptions = {}): Transaction {
    const { on, id } = own(this)
    return new SequenceTransaction(beginDraft(on, options, id))
  }

  override treeMask(layer = 0): Tensor {
    const { on, id } = own(this)
    return tensorOf(on.draftMask(id, count('layer', layer)))
  }
}

/** @internal Opens a transaction on a sequence. */
export function openOn(shared: SharedCache, sequence: number, options: unknown): Transaction {
  return new SequenceTransaction(beginDraft(new SequenceDrafts(shared, sequence), options))
}

function own(self: unknown): Draft<SequenceDrafts> {
  return nativeArgument('this', self, SequenceTransaction)
}
