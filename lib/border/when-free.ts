// Repeats a call that is refused with `BUSY`, once a millisecond, until background work releases the cache or the caller gives up.
import { isKvTideError } from '../errors/errors.js'

/** The time between two attempts of a call that background work refuses. */
export const AGAIN_MS = 1

/** True if a call was refused because background work uses the cache. */
export function isBusy(error: unknown): boolean {
  return isKvTideError(error) && error.code === 'BUSY'
}

/** True if a call was refused because an earlier failure left the cache unusable. */
export function isPoisoned(error: unknown): boolean {
  return isKvTideError(error) && error.code === 'POISONED'
}

/** @internal Makes a call once no background work uses the cache. Retries as long as `goesOn` returns true. */
export async function whenFree<T>(call: () => T, goesOn: () => boolean): Promise<T | undefined> {
  for (;;) {
    try {
      return call()
    } catch (error) {
      if (!isBusy(error)) throw error
    }
    await new Promise(resolve => setTimeout(resolve, AGAIN_MS))
    if (!goesOn()) return undefined
  }
}
