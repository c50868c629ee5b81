/** What crosses between the process and the page. Nothing of node and nothing of browsers is in here: both read it. */

/** @internal What a block is shown as. Numbers from {@link OWNED} on stand for the one sequence that has it. */
export const BLOCK = { free: 0, cached: 1, held: 2, shared: 3 } as const
export const OWNED = 4

/** A node of the tree of sequences: what several of them begin with, or one of them. */
export interface Branch {
  /** Blocks that all sequences of the node have in common, from the first to the last. */
  readonly from: number
  readonly to: number
  /** The sequences that end here. */
  readonly sequences: readonly number[]
  readonly children: readonly Branch[]
}

/** What a cache was like at one moment. */
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
}

/** What a page is told, one message after the other. */
export type Message =
  | { readonly kind: 'hello'; readonly name: string; readonly blockSize: number; readonly groups: readonly GroupShape[]; readonly history: readonly Sample[] }
  /** All codes of the group's blocks: 16 bits each, in base64. */
  | { readonly kind: 'blocks'; readonly codes: string }
  /** Those that changed: pairs of 32 bits, the block and its code, in base64. */
  | { readonly kind: 'changes'; readonly pairs: string }
  | { readonly kind: 'sample'; readonly sample: Sample; readonly limitBytes: number | null }
  | { readonly kind: 'tree'; readonly tree: readonly Branch[]; readonly lengths: Readonly<Record<number, number>> }
  | { readonly kind: 'ended' }

export interface GroupShape {
  readonly kind: 'full' | 'sliding'
  readonly layers: number
  readonly window?: number
  readonly blocks: number
}
