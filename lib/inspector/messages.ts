// The messages from the process to the page. This file uses neither node nor the browser, because both import it.

/** @internal The states of a block. Numbers from {@link OWNED} on stand for the one sequence that has it. */
export const BLOCK = { free: 0, cached: 1, held: 2, shared: 3 } as const
export const OWNED = 4

/** A node of the tree of sequences: a common prefix of several, or the rest of one. */
export interface Branch {
  /** The blocks that all sequences of the node have in common: from the first to the one before the end. */
  readonly from: number
  readonly to: number
  /** The sequences that end here. */
  readonly sequences: readonly number[]
  readonly children: readonly Branch[]
}

/** The statistics of a cache at one moment. */
export interface Sample {
  /** Milliseconds since 1970. */
  readonly time: number
  readonly usedBytes: number
  readonly activeBlocks: number
  readonly cachedBlocks: number
  readonly freeBlocks: number
  readonly evictions: number
  readonly promptTokens: number
  readonly hitTokens: number
  /** Prompt tokens that were computed again for want of a checkpoint. */
  readonly lostTokens: number
}

/** A message to the page. */
export type Message =
  | {
      readonly kind: 'hello'
      readonly name: string
      readonly blockSize: number
      readonly groups: readonly GroupShape[]
      readonly history: readonly Sample[]
    }
  /** All codes of the group's blocks: 16 bits each, in base64. */
  | { readonly kind: 'blocks'; readonly codes: string }
  /** The codes that changed: pairs of 32 bits, the block and its code, in base64. */
  | { readonly kind: 'changes'; readonly pairs: string }
  | { readonly kind: 'sample'; readonly sample: Sample; readonly limitBytes: number | null }
  | {
      readonly kind: 'tree'
      readonly tree: readonly Branch[]
      readonly lengths: Readonly<Record<number, number>>
      /** In a cache with states: the lengths of each sequence at which there is a checkpoint. */
      readonly checkpoints?: Readonly<Record<number, readonly number[]>>
    }
  /** For each slot of a group of states: the number of tokens before a checkpoint, 32 bits in base64; 0 for other slots and for unknown numbers. */
  | { readonly kind: 'ends'; readonly ends: string }
  | { readonly kind: 'ended' }

export interface GroupShape {
  readonly kind: 'full' | 'sliding' | 'state'
  readonly layers: number
  readonly window?: number
  readonly blocks: number
  /** The bytes of one slot, in a group of states. */
  readonly bytes?: number
}
