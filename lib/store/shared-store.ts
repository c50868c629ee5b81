import { text } from '../border/check.js'
import { invalid } from '../border/errors.js'
import { Owner } from '../border/owner.js'

/** What can be wrong with a store. `refused` will not get better by itself: a wrong password, no such bucket. */
export type StoreFault = 'unreachable' | 'timedOut' | 'refused' | 'garbage' | 'full' | 'tooLarge' | 'readOnly'

/** A change of a store: it is not asked any more, and why, or it answers again. */
export type StoreEvent = { readonly type: 'available' } | { readonly type: 'unavailable'; readonly reason: StoreFault; readonly about: string }

/** How a store has done since it was made. */
export interface StoreHealth {
  /** Whether it is asked: `probing` while one call finds out whether it is there again. */
  readonly state: 'available' | 'unavailable' | 'probing'
  /** Values that were found. */
  readonly hits: number
  /** Values that were not there. */
  readonly misses: number
  /** Calls that were not made: it was unavailable, or too much was under way. */
  readonly refused: number
  /** Bytes of values that came in. */
  readonly bytesIn: number
  /** Bytes of values that went out. */
  readonly bytesOut: number
  /** The last fault, in words without secrets. */
  readonly lastFault?: string | undefined
}

/** @internal Certificates in PEM: at least one. */
export function certificates(argument: string, value: unknown): string {
  const pem = text(argument, value)
  if (pem.includes('-----BEGIN CERTIFICATE-----')) return pem
  throw invalid(argument, value, 'certificates in PEM')
}

/** A store that is built in. */
export abstract class SharedStore extends Owner {}
