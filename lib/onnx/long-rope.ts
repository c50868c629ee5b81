// LongRoPE: rotary factors that depend on the length of a sequence. When a sequence grows beyond the threshold, or is cut below it, the keys of all its tokens
// change, so all of them are computed again, as transformers does. Blocks of long sequences have names of their own, so no prefix is shared across the threshold.
import type { PromptOptions } from '../sequences/prompt.js'

/** @internal The tables of a graph that are chosen by the length of a sequence. */
export interface LongRope {
  /** The maximum number of tokens of a sequence that uses the first table. */
  readonly threshold: number
  /** A longer sequence adds this to its positions. */
  readonly offset: number
}

/** The extra of the first token of each long sequence. */
const LONG = { start: 0, end: 1, key: new TextEncoder().encode('kvtide.long-rope') }

/** @internal True if a sequence of this length uses the second table. */
export function isLongAt(rope: LongRope | undefined, length: number): boolean {
  return rope !== undefined && length > rope.threshold
}

/** @internal The number of tokens that a sequence of this length can grow by with the same table. */
export function growthAt(rope: LongRope | undefined, length: number): number {
  return rope === undefined || isLongAt(rope, length) ? Infinity : rope.threshold - length
}

/** @internal The options under which blocks of a sequence are found. */
export function namesOf(prompt: PromptOptions, isLong: boolean): PromptOptions {
  return isLong ? { ...prompt, extra: [...(prompt.extra ?? []), LONG] } : prompt
}

/** @internal The options under which blocks of a sequence of this length are found. */
export function namesAt(rope: LongRope | undefined, prompt: PromptOptions, length: number): PromptOptions {
  return namesOf(prompt, isLongAt(rope, length))
}
