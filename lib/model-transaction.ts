import { Draft, Ending, type NativeEnding } from './kv-transaction.js'
import type { ModelEngine } from './model-engine.js'
import { LayersArgument, type ModelDraftTokens } from './model-tokens.js'
import { INTERNAL, nativeArgument } from './owner.js'

/**
 * Tokens of a {@link ModelSequence} that leave no trace unless they are committed, in all layers at once. Those of steps are
 * drafted here as well while it is open. What {@link KvTransaction} says of its ends holds here.
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
  begin(): ModelTransaction
  /** Rolls it back, with its children, if it is still open. Any number of times. */
  dispose(): void
  /** As {@link dispose}, for `using`. */
  [Symbol.dispose](): void
}

/** What is drafted on one sequence. */
class ModelDrafting implements NativeEnding {
  readonly #engine: ModelEngine
  readonly #sequence: number

  constructor(engine: ModelEngine, sequence: number) {
    this.#engine = engine
    this.#sequence = sequence
  }

  get native(): NativeEnding {
    return this
  }

  beginDraft(parent?: number): number {
    return this.#engine.change(native => native.beginDraft(this.#sequence, parent))
  }

  append(draft: number, input: unknown): void {
    const tokens = new LayersArgument(input)
    this.#engine.change(native => native.appendTo(this.#sequence, draft, tokens.put(), tokens.described, tokens.parents, tokens.tokens))
  }

  commitDraft(draft: number, tokens?: number): void {
    this.#engine.change(native => native.commitDraft(this.#sequence, draft, tokens))
  }

  commitDraftPath(draft: number, path: Uint32Array): void {
    this.#engine.change(native => native.commitDraftPath(this.#sequence, draft, path))
  }

  rollbackDraft(draft: number): void {
    this.#engine.change(native => native.rollbackDraft(this.#sequence, draft))
  }

  dropDraft(draft: number): void {
    this.#engine.native.dropDraft(this.#sequence, draft)
    this.#engine.changed()
  }

  drafted(draft: number): number {
    return this.#engine.native.drafted(this.#sequence, draft)
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

  begin(): ModelTransaction {
    const { drafting, id } = own(this)
    return new Transaction(new Draft(drafting, drafting.beginDraft(id)))
  }
}

/** @internal Opens a transaction on a sequence. */
export function openModelDraft(engine: ModelEngine, sequence: number): ModelTransaction {
  const drafting = new ModelDrafting(engine, sequence)
  return new Transaction(new Draft(drafting, drafting.beginDraft()))
}

function own(self: unknown): Draft<ModelDrafting> {
  return nativeArgument('this', self, Transaction)
}
