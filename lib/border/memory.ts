import { binding } from '../loading/binding.js'
import { whole } from './check.js'

/** Native memory of the process. */
export interface MemoryStats {
  /** Bytes in use. */
  readonly usedBytes: number
  /** Bytes of these that only views and snapshots keep. */
  readonly heldBytes: number
  /** The limit; `Infinity` when there is none. */
  readonly limitBytes: number
}

/**
 * Sets how many bytes of native memory the process may use for caches and tensors. What would go over it throws
 * `OUT_OF_MEMORY` and changes nothing. Unless it is set, the limit is 80 % of the smaller of RAM and the container's limit.
 */
export function setMemoryLimit(bytes: number): void {
  binding.setMemoryLimit(whole('bytes', bytes))
}

/** Native memory that caches, tensors, views and snapshots use. */
export function memoryStats(): MemoryStats {
  return binding.memoryStats()
}
