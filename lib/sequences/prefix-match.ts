import type { NativePagedPrefix } from '#binding'

import { flag, known, type Names, optional } from '../border/check.js'
import { checkInternal, INTERNAL, Owner, settle } from '../border/owner.js'
import { readPrompt, readTokens, type PromptOptions } from './prompt.js'
import type { SharedCache } from './shared-cache.js'

const MATCH: Names<MatchOptions> = { salt: 0, extra: 0, partial: 0 }

/** How a prompt is looked for. */
export interface MatchOptions extends PromptOptions {
  /**
   * Finds the start of a block too; the sequence copies that block when it goes on writing. `false` unless said otherwise. Where a
   * group of layers has a window, only whole blocks are found.
   */
  readonly partial?: boolean
}

/**
 * The start of a prompt that is in all layers of a {@link PagedKvCache}. It holds its blocks until it is disposed of or collected. A
 * sequence that is made of it takes the blocks over, and disposes of it.
 */
export class PrefixMatch extends Owner {
  /** Tokens that were found, and need not be computed. It can be read after the match was used or disposed of. */
  declare readonly length: number

  /** @internal */
  constructor(token: unknown, native: NativePagedPrefix) {
    checkInternal(token, 'PrefixMatch', 'match(tokens) of a cache instead')
    super(token, native, PrefixMatch)
    settle(this, { length: native.length() })
  }
}

/** @internal The longest start of a prompt that is in the cache. */
export function findPrefix(shared: SharedCache, tokens: unknown, options: unknown): PrefixMatch {
  const { salt, extra, partial } = known<MatchOptions>('options', options, MATCH)
  const prompt = readPrompt({ salt, extra })
  const isPartial = optional(flag, 'partial', partial) ?? false
  const native = shared.ticked().findPrefix(readTokens('tokens', tokens), prompt.salt, prompt.extra, isPartial)
  return new PrefixMatch(INTERNAL, native)
}
