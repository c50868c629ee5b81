import type { NativeModelCache } from '#binding'

import { count } from './check.js'
import { draftOn, Ending, type BeginOptions, type Draft } from './kv-transaction.js'
import type { ModelEngine } from './model-engine.js'
import { LayersArgument, type ModelDraftTokens } from './model-tokens.js'
import { INTERNAL, nativeArgument } from './owner.js'
import { SequenceDrafts } from './sequence-drafts.js'
import { tensorOf, type Tensor } from './tensor.js'

/**
 * Tokens of a {@link ModelSequence} that leave no trace unless they are committed, in all layers at once. Those of steps are
 * drafted here as well while it is open. What {@link KvTransaction} says of its ends holds here.
 *
 * @example
 * ```ts
 * import { ModelCache } from 'kvtide'
 *
 * const sizes = { numKvHeads: 1, headDim: 2 }
 * using cache = new ModelCache({ model: { layers: [{ kind: 'sliding', window: 2, ...sizes }, { kind: 'full', ...sizes }] }, kind: 'contiguous' })
 * const rows = (n: number) => ({ data: new Float32Array(n * 2).fill(n), shape: [1, n, 2] })
 * const layers = (n: number) => [{ k: rows(n), v: rows(n) }, { k: rows(n), v: rows(n) }]
 * const chat = cache.createSequence()
 * chat.append({ layers: layers(5) })
 * using draft = chat.begin({ maxTokens: 8 })
 * draft.append({ layers: layers(3), parents: [-1, -1, 1] })
 * console.log(draft.treePositions().join(), draft.treeMask(0).shape, draft.treeMask(1).shape) // '5,5,6' [3, 5] [3, 8]
 * draft.commitPath([1, 2])
 * console.log(chat.length) // 7
 * ```
 */
export interface ModelTransaction extends Disposable {
  /** Tokens drafted here; those of an open child are not among them. */
  readonly length: number
  /** Drafts tokens of all layers, or nothing. */
  append(input: ModelDraftTokens): void
  /** Keeps the first `n` drafted tokens, all unless said otherwise, drops the rest, and ends. Those of a child become its parent's. */
  commit(n?: number): void
  /**
   * Keeps the tokens on an accepted path of the draft tree, drops the rest, and ends.
   *
   * @param nodes drafted tokens counted from 0, each the child of the one before
   * @throws KvTideError `INVALID_PATH` when they are no path
   */
  commitPath(nodes: Int32Array | Uint32Array | readonly number[]): void
  /** Drops what was drafted, and ends: the sequence is as it was before. */
  rollback(): void
  /** Opens a transaction on top of this one; until that has ended, calls on this one throw `TRANSACTION_OPEN`. */
  begin(options?: BeginOptions): ModelTransaction
  /**
   * The attention mask of the draft in a layer, the first unless said otherwise: f32 `[length, before + length]` over what the layer
   * keeps, 0 where a token sees and -Infinity elsewhere. A window counts positions in it.
   *
   * @throws KvTideError `TRANSACTION_OPEN` while a step of its sequence is open
   */
  treeMask(layer?: number): Tensor
  /** The position of each drafted token, the same in all layers: that of the first one + its depth. As {@link treeMask}, between steps. */
  treePositions(): Int32Array
  /** Rolls it back, with its children, if it is still open. Any number of times. */
  dispose(): void
  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void
}

/** What is drafted on one sequence. */
class ModelDrafting extends SequenceDrafts<NativeModelCache> {
  append(draft: number, input: unknown): void {
    const tokens = new LayersArgument(input)
    this.engine.change(native => native.appendTo(this.sequence, draft, tokens.put(), tokens.described, tokens.parents, tokens.tokens))
  }
}

/** What `begin()` returns. */
class Transaction extends Ending implements ModelTransaction {
  constructor(draft: Draft<ModelDrafting>) {
    super(INTERNAL, draft, Transaction)
  }

  append(input: ModelDraftTokens): void {
    const { drafting, id } = own(this)
    drafting.append(id, input)
  }

  begin(options: BeginOptions = {}): ModelTransaction {
    const { drafting, id } = own(this)
    return new Transaction(draftOn(drafting, options, id))
  }

  override treeMask(layer = 0): Tensor {
    const { drafting, id } = own(this)
    return tensorOf(drafting.draftMask(id, count('layer', layer)))
  }
}

/** @internal Opens a transaction on a sequence. */
export function openModelDraft(engine: ModelEngine, sequence: number, options: unknown): ModelTransaction {
  return new Transaction(draftOn(new ModelDrafting(engine, sequence), options))
}

function own(self: unknown): Draft<ModelDrafting> {
  return nativeArgument('this', self, Transaction)
}
