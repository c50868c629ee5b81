import { binding } from '../loading/binding.js'
import { whole } from './check.js'

/** Native memory of the process. */
export interface MemoryStats {
  /** Bytes in use. */
  readonly usedBytes: number
  /** Of these, bytes that only views and snapshots hold. */
  readonly heldBytes: number
  /** The limit; `Infinity` when there is none. */
  readonly limitBytes: number
}

/**
 * Sets how many bytes of native memory the process may use for caches and tensors. A call that would exceed the limit throws
 * `OUT_OF_MEMORY` and changes nothing. Unless set, the limit is 80 % of RAM, or of the container's limit where that is smaller.
 */
export function setMemoryLimit(bytes: number): void {
  binding.setMemoryLimit(whole('bytes', bytes))
}

/** The native memory that caches, tensors, views and snapshots of this process use. */
export function memoryStats(): MemoryStats {
  return binding.memoryStats()
}
