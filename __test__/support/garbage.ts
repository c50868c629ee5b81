import { setImmediate } from 'node:timers/promises'

import { memoryStats, Tensor } from '../../index.js'

/** Collects garbage until `done` returns true, or the attempts are used up. */
export async function collected(done: () => boolean): Promise<boolean> {
  if (globalThis.gc === undefined) throw new Error('the tests run with --expose-gc')
  for (let round = 0; round < 20; round++) {
    globalThis.gc()
    // The addon's finalizers run when the event loop turns.
    await setImmediate()
    // Any call that allocates native memory reports the bytes in use to V8.
    Tensor.from(new Uint8Array(1), [1]).dispose()
    if (done()) return true
  }
  return false
}

/** Native bytes in use. */
export const used = (): number => memoryStats().usedBytes
