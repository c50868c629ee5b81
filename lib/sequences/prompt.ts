// Prompts: looking up a list of token ids in a cache, with its salt and extras. Two prompts share blocks only if their tokens, salts and extras agree.
import type { NativePagedPrefix, NativePrefixNamer } from '#binding'

import { arrayKind, count, flag, isArray, known, list, type Names, optional, typedArray } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { checkInternal, INTERNAL, Owner, settle } from '../border/owner.js'
import type { BringOptions } from '../tiers/tier-options.js'
import type { Prompt, SharedCache } from './shared-cache.js'
import { readTokens } from './tokens.js'

const EXTRA: Names<PromptExtra> = { start: 0, end: 0, key: 0 }

/** A dependency of a range of tokens besides their ids: an adapter, an image. */
export interface PromptExtra {
  /** The first position. */
  readonly start: number
  /** The position behind the last. */
  readonly end: number
  /** Identifies it: the name of an adapter, the hash of an image. */
  readonly key: Uint8Array
}

/** Options that keep prompts apart. A prompt matches only blocks of prompts with the same salt and extras. */
export interface PromptOptions {
  /** The tenant, or anything else that keeps prompts apart. A string stands for its UTF-8 bytes; no salt means no bytes. */
  readonly salt?: string | Uint8Array
  /**
   * The first position that the salt applies to, 0 by default. Tokens before it are shared by all prompts that start the same way, with any salt: a
   * system prompt of all tenants. The block with this position and those behind it belong to the tenant only.
   */
  readonly saltFrom?: number
  /** Other dependencies of ranges of tokens, in any order. */
  readonly extra?: readonly PromptExtra[]
}

/** Salt and extras as given, not checked yet. */
type GivenPrompt = { readonly [Name in keyof PromptOptions]?: unknown }

const utf8 = new TextEncoder()
const NO_SALT = new Uint8Array(0)

/** Checks for a string without lone surrogates, which would all become the same UTF-8. */
export function wellFormed(argument: string, value: unknown): string {
  if (typeof value === 'string' && !/\p{Surrogate}/u.test(value)) return value
  throw invalid(argument, value, 'a string without lone surrogates')
}

/** @internal Checks salt and extras. */
export function readPrompt({ salt, saltFrom, extra }: GivenPrompt): Prompt {
  const start = optional(count, 'saltFrom', saltFrom) ?? 0
  const bytes = optional((_, value) => readSalt(value), 'salt', salt) ?? NO_SALT
  if (start > 0 && bytes.length === 0) throw invalid('saltFrom', start, 'no saltFrom without a salt')
  return { salt: bytes, saltFrom: start, extra: extra === undefined ? undefined : readExtras(extra) }
}

/** @internal Selects salt and extras from options, checks them, and copies them: the caller may use its arrays again for another tenant. */
export function promptOf({ salt, saltFrom, extra }: GivenPrompt): PromptOptions {
  const read = copyOf(readPrompt({ salt, saltFrom, extra }))
  const own = { ...read, salt: typeof salt === 'string' ? salt : read.salt }
  const given = { salt, saltFrom, extra }
  return Object.fromEntries(
    Object.entries(own).filter(([name]) => given[name as keyof GivenPrompt] !== undefined),
  ) as PromptOptions
}

function readSalt(salt: unknown): Uint8Array {
  if (typeof salt === 'string') return utf8.encode(wellFormed('salt', salt))
  if (arrayKind(salt) === undefined) throw invalid('salt', salt, 'a string or a Uint8Array')
  return typedArray<Uint8Array>('salt', salt, ['Uint8Array'])
}

function readExtras(extra: unknown): { start: number; end: number; key: Uint8Array }[] {
  if (!isArray(extra)) throw invalid('extra', extra, 'an array')
  return list('extra', extra, (argument, entry) => {
    const given = known<PromptExtra>(argument, entry, EXTRA)
    const [start, end] = [count(`${argument}.start`, given.start), count(`${argument}.end`, given.end)]
    if (start >= end) throw invalid(`${argument}.start`, start, `below its end, ${end}`)
    return { start, end, key: typedArray<Uint8Array>(`${argument}.key`, given.key, ['Uint8Array']) }
  })
}

/** @internal */
export const PROMPT: Names<PromptOptions> = { salt: 0, saltFrom: 0, extra: 0 }
const ALLOCATION: Names<AllocationOptions> = { ...PROMPT, watermark: 0 }

/** Salt, extras, and the number of blocks that must stay free. */
export interface AllocationOptions extends PromptOptions {
  /** Blocks that must stay free, so that existing sequences can grow; none by default. */
  readonly watermark?: number
}

/** The cached prefix of a prompt, and the reason for the first miss. */
export interface Explanation {
  /** The number of cached tokens, in full blocks. */
  readonly matched: number
  /** In a cache with states, the number of tokens with cached keys and values. Those behind `matched` are computed again, for lack of a checkpoint. */
  readonly cached?: number
  /** The first block that was a miss; omitted if there was none. */
  readonly missing?: {
    /** The index of the block in the prompt. */
    readonly block: number
    /**
     * - `not-committed`: a sequence has its tokens, but they may still be rolled back by a transaction, or not all layers are written.
     * - `evicted`: it was evicted recently.
     * - `other-salt`: it is cached under another salt, or with other extras.
     * - `window-gone`: it is cached, but a sliding group has dropped tokens that the next token would see, or the block of the last token.
     * - `no-state-here`: its keys and values are cached, but there is no checkpoint of the states at its end, nor at the end of a later block of the prompt.
     * - `never-seen`: none of these. Tokens of an open step count as never seen, since they have no keys before its end.
     */
    readonly reason: 'not-committed' | 'evicted' | 'other-salt' | 'never-seen' | 'window-gone' | 'no-state-here'
    /** For `no-state-here`, the next number of tokens, up to `cached`, at which there is a checkpoint in some groups; usually omitted. */
    readonly above?: number
  }
}

/** @internal */
export const ADMISSION: Names<AdmissionOptions> = { ...ALLOCATION, answerTokens: 0, stepTokens: 0 }

/** Options for admitting a prompt. */
export interface AdmissionOptions extends AllocationOptions {
  /** The maximum number of tokens that follow the prompt; none by default. */
  readonly answerTokens?: number
  /**
   * The maximum number of tokens that you append at once; by default the whole part of the prompt that is not cached. Layers with a window then take only
   * the blocks for one append and the window.
   */
  readonly stepTokens?: number
}

/** The shortage: too few blocks for a prompt. */
export interface Lacking {
  /** The group of layers, as an index into `PagedKvCache.groups`. */
  readonly group: number
  /** The blocks that are needed, including the watermark. */
  readonly needed: number
  /** The blocks that can be taken now: free ones, and cached ones that can be evicted. */
  readonly free: number
  /** The blocks of the group in total. If that is fewer than `needed`, waiting does not help. */
  readonly total: number
}

/** @internal Admits a prompt. Returns the number of its sequence, or the shortage. `answerTokens` is limited to `answerMax`. */
export function admitPrompt(
  shared: SharedCache,
  tokens: unknown,
  options: unknown,
  answerMax: number = Infinity,
  names: (prompt: PromptOptions) => PromptOptions = same => same,
): { readonly sequence: number | undefined; readonly lacking: Lacking | undefined; readonly prompt: PromptOptions } {
  const { salt, saltFrom, extra, watermark, answerTokens, stepTokens } = known<AdmissionOptions>(
    'options',
    options,
    ADMISSION,
  )
  const given = promptOf({ salt, saltFrom, extra })
  const prompt = readPrompt(names(given))
  const room = Float64Array.of(
    Math.min(optional(count, 'answerTokens', answerTokens) ?? 0, answerMax),
    optional((argument, value) => count(argument, value, 1), 'stepTokens', stepTokens) ?? 0,
    optional(count, 'watermark', watermark) ?? 0,
  )
  const { sequence, lacking } = shared.change(native =>
    native.admit(readTokens('tokens', tokens), prompt.salt, prompt.saltFrom, prompt.extra, room),
  )
  return { sequence, lacking: lacking && Object.freeze(lacking), prompt: given }
}

/** @internal Refuses salt and extras in calls that do not accept them. */
export function refusePrompt(given: GivenPrompt, expected: string): void {
  for (const [name, value] of Object.entries(given)) if (value !== undefined) throw invalid(name, value, expected)
}

/** @internal True if there is room for a number of tokens, or for a prompt. */
export function readAllocation(shared: SharedCache, tokens: unknown, options: unknown): boolean {
  const { salt, saltFrom, extra, watermark } = known<AllocationOptions>('options', options, ALLOCATION)
  const prompt = readPrompt({ salt, saltFrom, extra })
  const left = optional(count, 'watermark', watermark) ?? 0
  if (isArray(tokens) || arrayKind(tokens) !== undefined) {
    return shared.native.canAllocatePrompt(
      readTokens('tokens', tokens),
      prompt.salt,
      prompt.saltFrom,
      prompt.extra,
      left,
    )
  }
  refusePrompt({ salt, saltFrom, extra }, 'no value together with a number of tokens')
  return shared.native.canAllocate(count('tokens', tokens), left)
}

/** The keys of the prefix cache, and the number of the next event. */
export interface PrefixKeys {
  /** The keys of the blocks, 64 hexadecimal digits each, in no particular order. */
  readonly keys: string[]
  /** In a cache whose layers keep states, the keys of the blocks at whose end there is one. */
  readonly states?: string[]
  /** The number of the next event: `events({ from: next })` continues from this list. */
  readonly next: number
}

/** @internal The keys of a prompt's full blocks. */
export function readKeys(native: Pick<NativePrefixNamer, 'keys'>, tokens: unknown, options: unknown): string[] {
  const { salt, saltFrom, extra } = readPrompt(known<PromptOptions>('options', options, PROMPT))
  return native.keys(readTokens('tokens', tokens), salt, saltFrom, extra)
}

/** @internal The cached prefix of a prompt, and the reason for the first miss. */
export function readExplanation(shared: SharedCache, tokens: unknown, options: unknown): Explanation {
  const { salt, saltFrom, extra } = readPrompt(known<PromptOptions>('options', options, PROMPT))
  const found = shared.native.explain(readTokens('tokens', tokens), salt, saltFrom, extra)
  const { block, reason, above } = found
  const matched = { matched: found.matched, ...(found.cached === undefined ? {} : { cached: found.cached }) }
  if (block === undefined) return matched
  const missing = { block, reason: reason as NonNullable<Explanation['missing']>['reason'] }
  return { ...matched, missing: { ...missing, ...(above === undefined ? {} : { above }) } }
}

const MATCH: Names<MatchOptions> = { ...PROMPT, partial: 0 }
const BRING: Names<MatchOptions & BringOptions> = { ...MATCH, tiers: 0, deadline: 0, signal: 0 }

/** Options for matching a prompt. */
export interface MatchOptions extends PromptOptions {
  /**
   * Also matches the start of a block; the sequence copies that block when it appends to it. `false` by default. If a group of layers
   * has a window, only full blocks are matched.
   */
  readonly partial?: boolean
}

/**
 * The longest cached prefix of a prompt in all layers of a {@link PagedKvCache}. It holds its blocks until it is disposed of or garbage
 * collected. A sequence that is created from it takes over the blocks, and disposes of the match.
 */
export class PrefixMatch extends Owner {
  /** The number of tokens that were matched and need not be computed. It can be read after the match was used or disposed of. */
  declare readonly length: number

  /** @internal */
  constructor(token: unknown, shared: SharedCache, native: NativePagedPrefix, length?: number) {
    checkInternal(token, 'PrefixMatch', 'match(tokens) of a cache instead')
    super(token, native, PrefixMatch, () => shared.changed())
    settle(this, { length: length ?? native.length() })
  }
}

/** @internal The longest cached prefix of a prompt. */
export function findPrefix(shared: SharedCache, tokens: unknown, options: unknown): PrefixMatch {
  const { salt, saltFrom, extra, partial } = known<MatchOptions>('options', options, MATCH)
  const prompt = readPrompt({ salt, saltFrom, extra })
  const isPartial = optional(flag, 'partial', partial) ?? false
  const native = shared
    .ticked()
    .findPrefix(readTokens('tokens', tokens), prompt.salt, prompt.saltFrom, prompt.extra, isPartial)
  return new PrefixMatch(INTERNAL, shared, native)
}

/** @internal As {@link findPrefix}; with the option `tiers`, restores blocks from tiers first. */
export function matchPrompt(
  shared: SharedCache,
  tokens: unknown,
  options: unknown,
): PrefixMatch | Promise<PrefixMatch> {
  const { salt, saltFrom, extra, partial, tiers, deadline, signal } = known<MatchOptions & BringOptions>(
    'options',
    options,
    BRING,
  )
  const found = { salt, saltFrom, extra, partial }
  if (tiers !== undefined) return restoreAndFind(shared, tokens, found, { tiers, deadline, signal })
  for (const [name, value] of Object.entries({ deadline, signal }))
    if (value !== undefined) throw invalid(name, value, 'no value without tiers')
  return findPrefix(shared, tokens, found)
}

/** The caller may change its arguments meanwhile, so all of them are read and copied before the first await. */
async function restoreAndFind(
  shared: SharedCache,
  tokens: unknown,
  { partial, ...given }: GivenPrompt & { readonly partial: unknown },
  options: { readonly [Name in keyof BringOptions]?: unknown },
): Promise<PrefixMatch> {
  if (shared.tiers === undefined)
    throw invalid('tiers', options.tiers, 'no tiers: the cache was made without the option tiers')
  const [own, prompt, isPartial] = [
    readTokens('tokens', tokens).slice(),
    copyOf(readPrompt(given)),
    optional(flag, 'partial', partial),
  ]
  const found = await shared.tiers.restore(own, prompt, isPartial ?? false, options)
  return found === undefined
    ? findPrefix(shared, own, { ...prompt, partial: isPartial })
    : new PrefixMatch(INTERNAL, shared, found.prefix, found.length)
}

function copyOf({ salt, saltFrom, extra }: Prompt): Prompt {
  return {
    salt: salt.slice(),
    saltFrom,
    extra: extra?.map(({ start, end, key }) => ({ start, end, key: key.slice() })),
  }
}
