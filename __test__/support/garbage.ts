import { setImmediate } from 'node:timers/promises'

import { memoryStats, Tensor } from '../../index.js'

/** Collects garbage until `done` answers true, or there is no hope left. */
export async function collected(done: () => boolean): Promise<boolean> {
  if (globalThis.gc === undefined) throw new Error('the tests run with --expose-gc')
  for (let round = 0; round < 20; round++) {
    globalThis.gc()
    // Finalizers of the addon run when the event loop turns.
    await setImmediate()
    // Any call that takes memory tells V8 what is in use now.
    Tensor.from(new Uint8Array(1), [1]).dispose()
    if (done()) return true
  }
  return false
}

/** Native bytes in use. */
export const used = (): number => memoryStats().usedBytes
