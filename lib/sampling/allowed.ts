// The tokens that an `allowed` function returns, as a mask for the addon: one bit for each token of the vocabulary. Ids outside the vocabulary are refused.
// A mask of the caller's is used as it is; a list of ids costs O(ids + vocabulary / 32).
import { arrayKind, arrayLength, typedArray } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import type { AllowedTokens } from './options.js'

/** Allowed tokens as a mask, one bit for each token of the vocabulary; `undefined` if all tokens are allowed. */
export function maskOf(allowed: AllowedTokens, vocabulary: number): Uint32Array | undefined {
  if (allowed === undefined) return undefined
  const words = Math.ceil(vocabulary / 32)
  if (arrayKind(allowed) === 'Uint32Array') {
    const mask = typedArray<Uint32Array>('allowed', allowed, ['Uint32Array'])
    if (arrayLength(mask) !== words)
      throw invalid('allowed', mask, `${words} words: one bit for each of ${vocabulary} tokens`)
    return mask
  }
  if (!isIterable(allowed))
    throw invalid('allowed', allowed, 'token ids, or a Uint32Array with one bit for each token, or undefined')
  const mask = new Uint32Array(words)
  for (const id of allowed as Iterable<unknown>) {
    if (typeof id !== 'number' || id >>> 0 !== id || id >= vocabulary)
      throw invalid('allowed', id, `tokens from 0 to below ${vocabulary}`)
    mask[id >>> 5] = (mask[id >>> 5] as number) | (1 << (id & 31))
  }
  return mask
}

/** True if a mask allows a token. */
export function allows(mask: Uint32Array | undefined, token: number): boolean {
  return mask === undefined || (((mask[token >>> 5] ?? 0) >>> (token & 31)) & 1) === 1
}

function isIterable(value: unknown): boolean {
  return (
    typeof value === 'object' &&
    value !== null &&
    typeof (value as Partial<Iterable<unknown>>)[Symbol.iterator] === 'function'
  )
}
