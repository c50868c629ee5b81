import { binding } from '../loading/binding.js'
import { count } from './check.js'

/** More threads than any machine has. */
const THREADS_MAX = 1024

/**
 * Says how many threads large operations use from now on in this process, the caller's among them; 1 turns workers off.
 * Unless it is set, `KVTIDE_THREADS` says it, else there are as many as the machine gives this process.
 */
export function setThreads(n: number): void {
  binding.setThreads(count('n', n, 1, THREADS_MAX))
}

/** How many threads large operations use, the caller's among them. */
export function threads(): number {
  return binding.threads()
}
