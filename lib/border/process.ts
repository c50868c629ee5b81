// Settings of the whole process: the limit on native memory, and the number of threads. Also the names of devices.
import { binding } from '../loading/binding.js'
import { count, optional, text, whole } from '../errors/check.js'

/** Native memory of the process. */
export interface MemoryStats {
  /** Bytes in use. */
  readonly usedBytes: number
  /** The part of `usedBytes` that only views and snapshots hold. */
  readonly heldBytes: number
  /** The limit; `Infinity` if there is none. */
  readonly limitBytes: number
}

/**
 * Limits the native memory that the process may use for caches and tensors, in bytes. A call that would exceed the limit throws
 * `OUT_OF_MEMORY` and changes nothing. The default limit on Linux is 80 % of RAM, or of the container's limit if that is smaller;
 * other systems have none. Memory of GPUs does not count.
 */
export function setMemoryLimit(bytes: number): void {
  binding.setMemoryLimit(whole('bytes', bytes))
}

/** Returns the native memory that caches, tensors, views and snapshots of this process use, without memory of GPUs. */
export function memoryStats(): MemoryStats {
  return binding.memoryStats()
}

/** More threads than any machine has. */
const THREADS_MAX = 1024

/**
 * Sets the number of threads that large operations of this process use, including the caller's thread; 1 turns the other threads off.
 * The default is `KVTIDE_THREADS`, or the number of CPUs that the process may use.
 */
export function setThreads(n: number): void {
  binding.setThreads(count('n', n, 1, THREADS_MAX))
}

/** Returns the number of threads that large operations use, including the caller's. */
export function threads(): number {
  return binding.threads()
}

/** @internal The full name of a usable device (`'cuda:0'` for `'cuda'`); the CPU if none is given. */
export function readDevice(device: unknown): string {
  const name = optional(text, 'device', device) ?? 'cpu'
  return name === 'cpu' ? name : binding.deviceName(name)
}

/** @internal The full name of a device. This machine need not have it. */
export function readFullName(device: unknown): string {
  return binding.fullDeviceName(optional(text, 'device', device) ?? 'cpu')
}
