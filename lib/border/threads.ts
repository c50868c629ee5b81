import { binding } from '../loading/binding.js'
import { count } from './check.js'

/** More threads than any machine has. */
const THREADS_MAX = 1024

/**
 * Sets how many threads large operations of this process use, the caller's among them; 1 turns workers off. Unless set, it is
 * `KVTIDE_THREADS`, or as many as the machine gives this process.
 */
export function setThreads(n: number): void {
  binding.setThreads(count('n', n, 1, THREADS_MAX))
}

/** How many threads large operations use, the caller's among them. */
export function threads(): number {
  return binding.threads()
}
