import type { NativeView } from '#binding'

import type { NativeDrafting } from './kv-transaction.js'
import type { NativeSequences, PagedEngine } from './paged-engine.js'

/** @internal The calls of native caches for drafts on their sequences, by the numbers of both. */
export interface NativeSequenceDrafts extends NativeSequences {
  beginDraft(sequence: number, parent?: number, maxTokens?: number): number
  commitDraft(sequence: number, draft: number, tokens?: number): void
  commitDraftPath(sequence: number, draft: number, path: Uint32Array): void
  rollbackDraft(sequence: number, draft: number): void
  dropDraft(sequence: number, draft: number): void
  drafted(sequence: number, draft: number): number
  draftMask(sequence: number, draft: number, layer: number): NativeView
  draftPositions(sequence: number, draft: number): number[]
}

/** @internal What is drafted on one sequence of a cache of many; how tokens are added is each cache's own. */
export class SequenceDrafts<N extends NativeSequenceDrafts> implements NativeDrafting {
  protected readonly engine: PagedEngine<N>
  protected readonly sequence: number

  constructor(engine: PagedEngine<N>, sequence: number) {
    this.engine = engine
    this.sequence = sequence
  }

  get native(): this {
    return this
  }

  beginDraft(parent?: number, maxTokens?: number): number {
    return this.engine.change(native => native.beginDraft(this.sequence, parent, maxTokens))
  }

  commitDraft(draft: number, tokens?: number): void {
    this.engine.change(native => native.commitDraft(this.sequence, draft, tokens))
  }

  commitDraftPath(draft: number, path: Uint32Array): void {
    this.engine.change(native => native.commitDraftPath(this.sequence, draft, path))
  }

  rollbackDraft(draft: number): void {
    this.engine.change(native => native.rollbackDraft(this.sequence, draft))
  }

  dropDraft(draft: number): void {
    this.engine.native.dropDraft(this.sequence, draft)
    this.engine.changed()
  }

  drafted(draft: number): number {
    return this.engine.native.drafted(this.sequence, draft)
  }

  draftMask(draft: number, layer = 0): NativeView {
    return this.engine.native.draftMask(this.sequence, draft, layer)
  }

  draftPositions(draft: number): number[] {
    return this.engine.native.draftPositions(this.sequence, draft)
  }
}
