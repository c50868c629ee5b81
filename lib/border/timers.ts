// The clock and the sleep for the deadlines of tiers, in one object, so that tests can replace them with a clock of their own.
import { setTimeout as sleep } from 'node:timers/promises'

/** @internal The clock and the sleep for deadlines. */
export interface Timers {
  /** Milliseconds since a fixed, arbitrary epoch. */
  now(): number
  sleep<T>(
    milliseconds: number,
    value: T,
    options?: { readonly signal?: AbortSignal; readonly ref?: boolean },
  ): Promise<T>
}

/** @internal The timers in use: the system's, unless a test replaces them with its own clock. */
export const timers: Timers = { now: () => performance.now(), sleep }
