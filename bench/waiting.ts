// How long this thread has waited for a processor that others had: see bench/peers/src/waiting.rs.
import { readFileSync } from 'node:fs'

/** The second of three numbers: nanoseconds on a processor, nanoseconds of waiting, turns. */
export function readWaiting(text: string): number {
  const waiting = Number(text.split(/\s+/)[1])
  return Number.isFinite(waiting) ? waiting : 0
}

/** The nanoseconds that this thread was ready to run and did not; 0 where the system does not say. */
export function waited(): number {
  try {
    return readWaiting(readFileSync('/proc/thread-self/schedstat', 'latin1'))
  } catch {
    return 0
  }
}
