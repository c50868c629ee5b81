import type { NativePagedPrefix, NativePrefixNamer } from '#binding'

import { arrayKind, count, flag, isArray, known, list, type Names, optional, typedArray } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { checkInternal, INTERNAL, Owner, settle } from '../border/owner.js'
import type { BringOptions } from '../store/tier-options.js'
import type { Prompt, SharedCache } from './shared-cache.js'
import { readTokens } from './tokens.js'

const EXTRA: Names<PromptExtra> = { start: 0, end: 0, key: 0 }

/** What the tokens of a range depend on besides themselves: an adapter, an image. */
export interface PromptExtra {
  /** The first position. */
  readonly start: number
  /** The position behind the last. */
  readonly end: number
  /** What identifies it: the name of an adapter, the hash of an image. */
  readonly key: Uint8Array
}

/** Whose prompt it is. A prompt finds only the tokens of prompts with the same salt and extras. */
export interface PromptOptions {
  /** The tenant, or whatever else keeps prompts apart. A string means its UTF-8 bytes; no salt means no bytes. */
  readonly salt?: string | Uint8Array
  /**
   * The first position that the salt keeps apart, 0 by default. What comes before is found by everybody who has the same start, whatever their
   * salts: a system prompt of all tenants. The block with this position, and those behind it, are the tenant's alone.
   */
  readonly saltFrom?: number
  /** What else ranges of tokens depend on, in any order. */
  readonly extra?: readonly PromptExtra[]
}

/** Salt and extras, as they were given. */
type GivenPrompt = { readonly [Name in keyof PromptOptions]?: unknown }

const utf8 = new TextEncoder()
const NO_SALT = new Uint8Array(0)

/** A string without lone surrogates, which would all become the same UTF-8. */
export function wellFormed(argument: string, value: unknown): string {
  if (typeof value === 'string' && !/\p{Surrogate}/u.test(value)) return value
  throw invalid(argument, value, 'a string without lone surrogates')
}

/** @internal Reads salt and extras. */
export function readPrompt({ salt, saltFrom, extra }: GivenPrompt): Prompt {
  const start = optional(count, 'saltFrom', saltFrom) ?? 0
  const bytes = optional((_, value) => readSalt(value), 'salt', salt) ?? NO_SALT
  if (start > 0 && bytes.length === 0) throw invalid('saltFrom', start, 'none without a salt')
  return { salt: bytes, saltFrom: start, extra: extra === undefined ? undefined : readExtras(extra) }
}

/** @internal What of some options says whose prompt it is, and nothing else of them; refused where it is wrong. */
export function promptOf({ salt, saltFrom, extra }: GivenPrompt): PromptOptions {
  const given = Object.entries({ salt, saltFrom, extra }).filter(([, value]) => value !== undefined)
  const options = Object.fromEntries(given) as PromptOptions
  readPrompt(options)
  return options
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

/** Whose prompt it is, and how many blocks must stay free. */
export interface AllocationOptions extends PromptOptions {
  /** Blocks that must stay free, so that existing sequences can grow; none by default. */
  readonly watermark?: number
}

/** How far a prompt is found, and why no further. */
export interface Explanation {
  /** Tokens found, in whole blocks. */
  readonly matched: number
  /** The first block that was not found; missing when everything was found that can be. */
  readonly missing?: {
    /** Its index in the prompt. */
    readonly block: number
    /**
     * - `not-committed`: a sequence has its tokens, but a transaction can take them back, or not all layers are written.
     * - `evicted`: it had to make room, not long ago.
     * - `other-salt`: it is in the cache under another salt, or with other extras.
     * - `window-gone`: it is in the cache, but a sliding group has dropped what the next token would see, or the block of the last token.
     * - `never-seen`: none of these. Tokens of an open step count as never seen, since they have no names before its end.
     */
    readonly reason: 'not-committed' | 'evicted' | 'other-salt' | 'never-seen' | 'window-gone'
  }
}

const ADMISSION: Names<AdmissionOptions> = { ...ALLOCATION, answerTokens: 0, stepTokens: 0 }

/** What a prompt is admitted with. */
export interface AdmissionOptions extends AllocationOptions {
  /** How many tokens follow the prompt at most; none by default. */
  readonly answerTokens?: number
  /**
   * The most tokens that you append at once; by default all of the prompt that is not there. Layers with a window then take only the blocks that
   * one append and the window have at once.
   */
  readonly stepTokens?: number
}

/** Too few blocks for a prompt. */
export interface Lacking {
  /** The group of layers, by its place in `PagedKvCache.groups`. */
  readonly group: number
  /** The blocks that it needs, with the watermark. */
  readonly needed: number
  /** The blocks that can be taken now. */
  readonly free: number
  /** The blocks that it has in all. Where that is fewer than `needed`, waiting does not help. */
  readonly total: number
}

/** @internal The number of a sequence that was admitted, or what was lacking. */
export function admitPrompt(shared: SharedCache, tokens: unknown, options: unknown): { readonly sequence: number | undefined; readonly lacking: Lacking | undefined; readonly prompt: PromptOptions } {
  const { salt, saltFrom, extra, watermark, answerTokens, stepTokens } = known<AdmissionOptions>('options', options, ADMISSION)
  const prompt = readPrompt({ salt, saltFrom, extra })
  const room = Float64Array.of(
    optional(count, 'answerTokens', answerTokens) ?? 0,
    optional((argument, value) => count(argument, value, 1), 'stepTokens', stepTokens) ?? 0,
    optional(count, 'watermark', watermark) ?? 0,
  )
  const { sequence, lacking } = shared.change(native => native.admit(readTokens('tokens', tokens), prompt.salt, prompt.saltFrom, prompt.extra, room))
  return { sequence, lacking: lacking && Object.freeze(lacking), prompt: promptOf({ salt, saltFrom, extra }) }
}

/** @internal Refuses salt and extras where there are to be none. */
export function refusePrompt(given: GivenPrompt, expected: string): void {
  for (const [name, value] of Object.entries(given)) if (value !== undefined) throw invalid(name, value, expected)
}

/** @internal Whether there is room for a number of tokens, or for a prompt. */
export function readAllocation(shared: SharedCache, tokens: unknown, options: unknown): boolean {
  const { salt, saltFrom, extra, watermark } = known<AllocationOptions>('options', options, ALLOCATION)
  const prompt = readPrompt({ salt, saltFrom, extra })
  const left = optional(count, 'watermark', watermark) ?? 0
  if (isArray(tokens) || arrayKind(tokens) !== undefined) {
    return shared.native.canAllocatePrompt(readTokens('tokens', tokens), prompt.salt, prompt.saltFrom, prompt.extra, left)
  }
  refusePrompt({ salt, saltFrom, extra }, 'none for a number of tokens')
  return shared.native.canAllocate(count('tokens', tokens), left)
}

/** The blocks that prompts find, and where the events after them begin. */
export interface PrefixKeys {
  /** The names of the blocks, 64 hexadecimal digits each, in no order. */
  readonly keys: string[]
  /** The number of the next event: `events({ from: next })` goes on from this list. */
  readonly next: number
}

/** @internal The names of a prompt's whole blocks. */
export function readKeys(native: Pick<NativePrefixNamer, 'keys'>, tokens: unknown, options: unknown): string[] {
  const { salt, saltFrom, extra } = readPrompt(known<PromptOptions>('options', options, PROMPT))
  return native.keys(readTokens('tokens', tokens), salt, saltFrom, extra)
}

/** @internal How far a prompt is found. */
export function readExplanation(shared: SharedCache, tokens: unknown, options: unknown): Explanation {
  const { salt, saltFrom, extra } = readPrompt(known<PromptOptions>('options', options, PROMPT))
  const { matched, block, reason } = shared.native.explain(readTokens('tokens', tokens), salt, saltFrom, extra)
  if (block === undefined) return { matched }
  return { matched, missing: { block, reason: reason as NonNullable<Explanation['missing']>['reason'] } }
}

const MATCH: Names<MatchOptions> = { ...PROMPT, partial: 0 }
const BRING: Names<MatchOptions & BringOptions> = { ...MATCH, tiers: 0, deadline: 0, signal: 0 }

/** How a prompt is looked for. */
export interface MatchOptions extends PromptOptions {
  /**
   * Finds the start of a block too; the sequence copies that block when it goes on writing. `false` by default. Where a
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
  const { salt, saltFrom, extra, partial } = known<MatchOptions>('options', options, MATCH)
  const prompt = readPrompt({ salt, saltFrom, extra })
  const isPartial = optional(flag, 'partial', partial) ?? false
  const native = shared.ticked().findPrefix(readTokens('tokens', tokens), prompt.salt, prompt.saltFrom, prompt.extra, isPartial)
  return new PrefixMatch(INTERNAL, native)
}

/** @internal The same; with tiers, once what lies there was brought. */
export function matchPrompt(shared: SharedCache, tokens: unknown, options: unknown): PrefixMatch | Promise<PrefixMatch> {
  const { salt, saltFrom, extra, partial, tiers, deadline, signal } = known<MatchOptions & BringOptions>('options', options, BRING)
  const found = { salt, saltFrom, extra, partial }
  if (tiers !== undefined) return bringAndFind(shared, tokens, found, { tiers, deadline, signal })
  for (const [name, value] of Object.entries({ deadline, signal })) if (value !== undefined) throw invalid(name, value, 'none without tiers')
  return findPrefix(shared, tokens, found)
}

/** What is given may change meanwhile: each of it is read, and copied, before anything is waited for. */
async function bringAndFind(shared: SharedCache, tokens: unknown, { partial, ...given }: GivenPrompt & { readonly partial: unknown }, options: { readonly [Name in keyof BringOptions]?: unknown }): Promise<PrefixMatch> {
  if (shared.tiers === undefined) throw invalid('tiers', options.tiers, 'none in a cache that was made without the option tiers')
  const [own, prompt, isPartial] = [readTokens('tokens', tokens).slice(), copyOf(readPrompt(given)), optional(flag, 'partial', partial)]
  await shared.tiers.bring(own, prompt, options)
  return findPrefix(shared, own, { ...prompt, partial: isPartial })
}

function copyOf({ salt, saltFrom, extra }: Prompt): Prompt {
  return { salt: salt.slice(), saltFrom, extra: extra?.map(({ start, end, key }) => ({ start, end, key: key.slice() })) }
}
