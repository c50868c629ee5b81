import { setImmediate, setTimeout } from 'node:timers/promises'

import { memoryStats, Tensor } from '../../index.js'

/** Collects garbage once. */
async function collect(): Promise<void> {
  if (globalThis.gc === undefined) throw new Error('the tests run with --expose-gc')
  globalThis.gc()
  // The addon's finalizers run when the event loop turns.
  await setImmediate()
  // Any call that allocates native memory reports the bytes in use to V8.
  Tensor.from(new Uint8Array(1), [1]).dispose()
}

/** Collects all garbage there is, for a measurement that follows. */
export async function collectAll(): Promise<void> {
  for (let round = 0; round < 20; round++) await collect()
}

/** Collects garbage until `done` returns true, and gives up after 20 seconds: threads that still work keep their memory until they end. */
export async function collected(done: () => boolean): Promise<boolean> {
  for (let round = 0; round < 220; round++) {
    await collect()
    if (done()) return true
    if (round >= 20) await setTimeout(100)
  }
  return false
}

/** Native bytes in use. */
export const used = (): number => memoryStats().usedBytes
