import { binding } from '../loading/binding.js'
import { count, optional, text, whole } from './check.js'

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

/** @internal The full name of a usable device (`'cuda:0'` for `'cuda'`); the CPU where none is given. */
export function readDevice(device: unknown): string {
  const name = optional(text, 'device', device) ?? 'cpu'
  return name === 'cpu' ? name : binding.deviceName(name)
}

/** @internal The full name of a device, which this machine need not have. */
export function readFullName(device: unknown): string {
  return binding.fullDeviceName(optional(text, 'device', device) ?? 'cpu')
}
