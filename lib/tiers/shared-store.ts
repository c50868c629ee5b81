// The base class of the built-in stores, and the health and the events of a store, which may also be the caller's.
import { text } from '../errors/check.js'
import { invalid } from '../errors/errors.js'
import { Owner } from '../border/owner.js'

/** A fault of a store. `refused` lasts until the store's configuration changes: a wrong password, no such bucket. */
export type StoreFault = 'unreachable' | 'timedOut' | 'refused' | 'garbage' | 'full' | 'tooLarge' | 'readOnly'

/** A change of a store: it is unreachable, for this reason, and no longer asked; or it is reachable again. */
export type StoreEvent =
  | { readonly type: 'available' }
  | { readonly type: 'unavailable'; readonly reason: StoreFault; readonly about: string }

/** The health of a store since it was created. */
export interface StoreHealth {
  /** The state: `probing` while one call finds out whether the store is reachable again. */
  readonly state: 'available' | 'unavailable' | 'probing'
  /** Values that were found. */
  readonly hits: number
  /** Values that did not exist. */
  readonly misses: number
  /** Calls that were not made, because the store was unavailable or too much was in flight. */
  readonly refused: number
  /** Bytes of values that were read. */
  readonly bytesIn: number
  /** Bytes of values that were written. */
  readonly bytesOut: number
  /** The last fault, described without secrets. */
  readonly lastFault?: string | undefined
}

/** @internal Reads certificates in PEM: at least one. */
export function certificates(argument: string, value: unknown): string {
  const pem = text(argument, value)
  if (pem.includes('-----BEGIN CERTIFICATE-----')) return pem
  throw invalid(argument, value, 'certificates in PEM')
}

/** A built-in store. */
export abstract class SharedStore extends Owner {}
