import type { NativePrefixNamer } from '#binding'

import { arrayKind, count, isArray, known, type Names, optional } from '../border/check.js'
import { invalid } from '../border/errors.js'
import type { Engine } from './engine.js'
import { readPrompt, readTokens, type PromptOptions } from './prompt.js'

const ALLOCATION: Names<AllocationOptions> = { salt: 0, extra: 0, watermark: 0 }
const PROMPT: Names<PromptOptions> = { salt: 0, extra: 0 }

/** What room is wanted for. */
export interface AllocationOptions extends PromptOptions {
  /** Blocks that are to be left besides, for sequences that are there to grow in; none unless said otherwise. */
  readonly watermark?: number
}

/** How far a prompt is found, and why no further. */
export interface Explanation {
  /** Tokens found, whole blocks. */
  readonly matched: number
  /** The first block that was not; nothing when all was found that can be. */
  readonly missing?: {
    /** Its place in the prompt. */
    readonly block: number
    /**
     * `not-committed`: a sequence has its tokens, and a transaction can take some of them back, or some layers of them are not
     * written. `evicted`: it had to make room, not long ago. `other-salt`: it is there under another salt. `window-gone`: it is
     * there, and a group of layers with a window has given up what the next token would see, or the block of the last one before.
     * `never-seen`: none of that; also what an open step brings, whose tokens have no names before its end.
     */
    readonly reason: 'not-committed' | 'evicted' | 'other-salt' | 'never-seen' | 'window-gone'
  }
}

/** @internal Whether there is room for tokens, given as their number or as a prompt. */
export function readAllocation(engine: Engine, tokens: unknown, options: unknown): boolean {
  const { salt, extra, watermark } = known<AllocationOptions>('options', options, ALLOCATION)
  const prompt = readPrompt({ salt, extra })
  const left = optional(count, 'watermark', watermark) ?? 0
  if (isArray(tokens) || arrayKind(tokens) !== undefined) {
    return engine.native.canAllocatePrompt(readTokens('tokens', tokens), prompt.salt, prompt.extra, left)
  }
  if (salt !== undefined) throw invalid('salt', salt, 'none for a number of tokens')
  if (extra !== undefined) throw invalid('extra', extra, 'none for a number of tokens')
  return engine.native.canAllocate(count('tokens', tokens), left)
}

/** The blocks that prompts find, and where the events begin that come after. */
export interface PrefixKeys {
  /** Their names, 64 hexadecimal digits each, in no order. */
  readonly keys: string[]
  /** The number of the next event: `events({ from: next })` goes on from this list. */
  readonly next: number
}

/** @internal The names of a prompt's whole blocks. */
export function readKeys(native: Pick<NativePrefixNamer, 'keys'>, tokens: unknown, options: unknown): string[] {
  const { salt, extra } = readPrompt(known<PromptOptions>('options', options, PROMPT))
  return native.keys(readTokens('tokens', tokens), salt, extra)
}

/** @internal How far a prompt is found. */
export function readExplanation(engine: Engine, tokens: unknown, options: unknown): Explanation {
  const { salt, extra } = readPrompt(known<PromptOptions>('options', options, PROMPT))
  const { matched, block, reason } = engine.native.explain(readTokens('tokens', tokens), salt, extra)
  if (block === undefined) return { matched }
  return { matched, missing: { block, reason: reason as NonNullable<Explanation['missing']>['reason'] } }
}
