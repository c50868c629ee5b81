// Stores of the caller's: their interface, and checks of their answers.
import type { NativeStep } from '#binding'

import { arrayKind, isArray, typedArray } from '../errors/check.js'

/** An entry of a store: a block under its key. */
export interface StoreEntry {
  /**
   * 64 hexadecimal digits of the block's key, a point, the number of a group of layers, a point, 16 digits for the form of the block, and a suffix if entries
   * are compressed or sealed.
   */
  readonly key: string
  readonly value: Uint8Array
}

/** The second argument of each call of a {@link BlockStore}. */
export interface BlockStoreCall {
  /** Aborted when the answer is no longer needed. */
  readonly signal: AbortSignal
}

/**
 * A store of your own: any client that you have, behind three calls for many keys each. Its answers are verified before they are used; if a call throws,
 * answers late or answers wrongly, the blocks are misses. Values never change, so an existing one need not be written again.
 */
export interface BlockStore {
  /** Returns the values of keys, in the same order; `undefined` or `null` if there is none. */
  getMany(keys: readonly string[], call: BlockStoreCall): PromiseLike<readonly (Uint8Array | null | undefined)[]>
  /** Adds values. Resolves once they are stored. */
  putMany(entries: readonly StoreEntry[], call: BlockStoreCall): PromiseLike<unknown>
  /** Returns true for each key that has a value, in the same order. */
  hasMany(keys: readonly string[], call: BlockStoreCall): PromiseLike<readonly boolean[]>
  /** Removes damaged values. Without this function they stay, and are misses. */
  removeMany?(keys: readonly string[], call: BlockStoreCall): PromiseLike<unknown>
}

/** @internal An answer is invalid. */
export class Garbage extends Error {}

/** @internal Returns the text of a thrown value, which may be anything. */
export function textOf(error: unknown): string {
  try {
    return String(error instanceof Error ? error.message : error).slice(0, 200)
  } catch {
    return 'a value without a text'
  }
}

/** @internal A checked answer: for each key true if it exists, or its value (an empty list if there is none); or neither. */
export type StoreAnswer = readonly [exist?: boolean[] | undefined, values?: unknown[]]

/** @internal Makes a call, and checks the answer. */
export async function callStore(
  store: BlockStore,
  { kind, keys, bytesMax, entries }: NativeStep,
  signal: AbortSignal,
): Promise<StoreAnswer> {
  // Each entry is read once by its number: the list may have holes, or methods of its own.
  const listed = <T>(given: unknown, read: (entry: unknown) => T): T[] => {
    if (isArray(given) && given.length === keys.length) return keys.map((_, place) => read(given[place]))
    throw new Garbage(`${kind}Many answered no list of ${keys.length}`)
  }
  if (kind === 'has') return [listed(await store.hasMany(keys, { signal }), exists => exists === true)]
  if (kind === 'put') await store.putMany(entries, { signal })
  else if (kind === 'remove') await store.removeMany?.(keys, { signal })
  else return [undefined, listed(await store.getMany(keys, { signal }), value => readValue(value, bytesMax))]
  return []
}

function readValue(value: unknown, bytesMax: number): Uint8Array | undefined {
  if (value === undefined || value === null) return undefined
  if (arrayKind(value) !== 'Uint8Array') throw new Garbage('getMany answered a value that is no Uint8Array')
  const bytes = typedArray<Uint8Array>('value', value, ['Uint8Array'])
  return bytes.length <= bytesMax ? bytes : undefined
}
