import type { NativePagedPrefix } from '#binding'

import { flag, known, type Names, optional } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { endThis, INTERNAL, liveArgument } from '../border/owner.js'
import type { Engine } from './engine.js'
import { PrefixMatch } from './prefix-match.js'
import { readPrompt, readTokens, type PromptOptions, type TokenIds } from './prompt.js'

const SEQUENCE: Names<SequenceOptions> = { prefix: 0, salt: 0, extra: 0 }
const MATCH: Names<MatchOptions> = { salt: 0, extra: 0, partial: 0 }

/** How a sequence is made. */
export interface SequenceOptions extends PromptOptions {
  /** What it starts with, and takes over; salt and extras are those of the match. */
  readonly prefix?: PrefixMatch
}

/** How a prompt is looked for. */
export interface MatchOptions extends PromptOptions {
  /**
   * Finds the start of a block too, of which the sequence gets a copy when it writes on; `false` unless said otherwise. Where there is
   * a window, in any group of layers, whole blocks alone are found.
   */
  readonly partial?: boolean
}

/** What else is known of tokens that are appended. */
export interface AppendOptions {
  /** Their ids: full blocks of known tokens can be found by other prompts. */
  readonly tokens?: TokenIds
}

/** @internal A new sequence, empty or with what a prompt has found. */
export function createSequence(engine: Engine, options: unknown): number {
  const { prefix, salt, extra } = known<SequenceOptions>('options', options, SEQUENCE)
  if (prefix === undefined) {
    const prompt = readPrompt({ salt, extra })
    return engine.ticked().createSequence(prompt.salt, prompt.extra)
  }
  const native = liveArgument<NativePagedPrefix>('prefix', prefix, PrefixMatch)
  if (salt !== undefined) throw invalid('salt', salt, 'none: a match has its own')
  if (extra !== undefined) throw invalid('extra', extra, 'none: a match has its own')
  const id = engine.ticked().createSequenceFrom(native)
  endThis(prefix, PrefixMatch)
  return id
}

/** @internal The longest start of a prompt that is there. */
export function findPrefix(engine: Engine, tokens: unknown, options: unknown): PrefixMatch {
  const { salt, extra, partial } = known<MatchOptions>('options', options, MATCH)
  const prompt = readPrompt({ salt, extra })
  const isPartial = optional(flag, 'partial', partial) ?? false
  const native = engine.ticked().findPrefix(readTokens('tokens', tokens), prompt.salt, prompt.extra, isPartial)
  return new PrefixMatch(INTERNAL, native)
}
