import { arrayKind, arrayLength, typedArray } from '../border/check.js'
import { invalid } from '../border/errors.js'
import type { AllowedTokens } from './options.js'

/** Allowed tokens as a bit for each token of the vocabulary; nothing where all are. */
export function maskOf(allowed: AllowedTokens, vocabulary: number): Uint32Array | undefined {
  if (allowed === undefined) return undefined
  const words = Math.ceil(vocabulary / 32)
  if (arrayKind(allowed) === 'Uint32Array') {
    const mask = typedArray<Uint32Array>('allowed', allowed, ['Uint32Array'])
    if (arrayLength(mask) !== words) throw invalid('allowed', mask, `${words} words: a bit for each of ${vocabulary} tokens`)
    return mask
  }
  if (!isIterable(allowed)) throw invalid('allowed', allowed, 'ids of tokens, or a Uint32Array with a bit for each token, or undefined')
  const mask = new Uint32Array(words)
  for (const id of allowed as Iterable<unknown>) {
    if (typeof id !== 'number' || id >>> 0 !== id || id >= vocabulary) throw invalid('allowed', id, `tokens from 0 to below ${vocabulary}`)
    mask[id >>> 5] = (mask[id >>> 5] as number) | (1 << (id & 31))
  }
  return mask
}

/** Whether a mask has a token. */
export function allows(mask: Uint32Array | undefined, token: number): boolean {
  return mask === undefined || (((mask[token >>> 5] ?? 0) >>> (token & 31)) & 1) === 1
}

function isIterable(value: unknown): boolean {
  return typeof value === 'object' && value !== null && typeof (value as Partial<Iterable<unknown>>)[Symbol.iterator] === 'function'
}
