import type { NativeView } from '#binding'

import { optional } from './check.js'
import { meta, put, readTensor, type TokenSource } from './host-tensor.js'
import { parentsOf, type BeginOptions, type DraftOptions, type Drafting, type KvTransaction, type NativeDrafting } from './kv-transaction.js'
import type { PagedEngine } from './paged-engine.js'
import { readTokens, type TokenIds } from './prompt.js'

/** How tokens are drafted on a {@link PagedSequence}. */
export interface PagedDraftOptions extends DraftOptions {
  /** The ids of the tokens: those that are committed can be found by other prompts. */
  readonly tokens?: TokenIds
}

/**
 * A transaction of a {@link PagedSequence}: K and V of an append are `[numLayers, numKvHeads, n, headDim]` each, and it shows
 * nothing.
 */
export interface PagedTransaction extends KvTransaction<void> {
  append(k: TokenSource, v: TokenSource, options?: PagedDraftOptions): void
  begin(options?: BeginOptions): PagedTransaction
}

/** @internal What is drafted on one sequence. */
export class SequenceDrafting implements Drafting<void>, NativeDrafting {
  readonly #engine: PagedEngine
  readonly #seq: number

  constructor(engine: PagedEngine, seq: number) {
    this.#engine = engine
    this.#seq = seq
  }

  get native(): NativeDrafting {
    return this
  }

  beginDraft(parent?: number, maxTokens?: number): number {
    const draft = this.#engine.ticked().beginDraft(this.#seq, parent, maxTokens)
    this.#engine.changed()
    return draft
  }

  append(draft: number, k: TokenSource, v: TokenSource, options: { readonly [Name in keyof PagedDraftOptions]?: unknown }): void {
    const { parents, tokens } = options
    const [nodes, ids] = [optional(parentsOf, 'parents', parents), optional(readTokens, 'tokens', tokens)]
    const [keys, values] = [readTensor('k', k), readTensor('v', v)]
    this.#engine.ticked().appendDraft(Float64Array.of(this.#seq, draft), put(keys, 0), put(values, 1), meta, nodes, ids)
    this.#engine.changed()
  }

  commitDraft(draft: number, tokens?: number): void {
    this.#engine.ticked().commitDraft(this.#seq, draft, tokens)
    this.#engine.changed()
  }

  commitDraftPath(draft: number, path: Uint32Array): void {
    this.#engine.ticked().commitDraftPath(this.#seq, draft, path)
    this.#engine.changed()
  }

  rollbackDraft(draft: number): void {
    this.#engine.ticked().rollbackDraft(this.#seq, draft)
    this.#engine.changed()
  }

  dropDraft(draft: number): void {
    this.#engine.native.dropDraft(this.#seq, draft)
    this.#engine.changed()
  }

  drafted(draft: number): number {
    return this.#engine.native.drafted(this.#seq, draft)
  }

  draftMask(draft: number): NativeView {
    return this.#engine.native.draftMask(this.#seq, draft)
  }

  draftPositions(draft: number): number[] {
    return this.#engine.native.draftPositions(this.#seq, draft)
  }
}
