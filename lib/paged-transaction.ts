import type { NativePagedKvCache } from '#binding'

import { known, type Names, optional } from './check.js'
import { meta, put, readTensor, type TokenSource } from './host-tensor.js'
import { parentsOf, type BeginOptions, type DraftOptions, type Drafting, type KvTransaction } from './kv-transaction.js'
import { readTokens, type TokenIds } from './prompt.js'
import { SequenceDrafts } from './sequence-drafts.js'

const DRAFT: Names<PagedDraftOptions> = { parents: 0, tokens: 0 }

/** How tokens are drafted on a {@link PagedSequence}. */
export interface PagedDraftOptions extends DraftOptions {
  /** The ids of the tokens: those that are committed can be found by other prompts. */
  readonly tokens?: TokenIds
}

/**
 * A transaction of a {@link PagedSequence}: K and V of an append are `[numLayers, numKvHeads, n, headDim]` each, and it shows
 * nothing. Its mask and its positions are refused with `TRANSACTION_OPEN` while a step of its sequence is open: attention of the
 * step knows the tree.
 */
export interface PagedTransaction extends KvTransaction<void> {
  append(k: TokenSource, v: TokenSource, options?: PagedDraftOptions): void
  begin(options?: BeginOptions): PagedTransaction
}

/** @internal What is drafted on one sequence. */
export class SequenceDrafting extends SequenceDrafts<NativePagedKvCache> implements Drafting<void> {
  append(draft: number, k: TokenSource, v: TokenSource, options: unknown): void {
    const { parents, tokens } = known<PagedDraftOptions>('options', options, DRAFT)
    const [nodes, ids] = [optional(parentsOf, 'parents', parents), optional(readTokens, 'tokens', tokens)]
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    this.engine.change(native => native.appendDraft(Float64Array.of(this.sequence, draft), put(keys, 0), put(values, 1), meta, nodes, ids))
  }
}
