import { setTimeout } from 'node:timers/promises'

/** The longest wait for something that should happen: so long that only a failure reaches it. */
const LIMIT_MS = 120_000

/** Polls until a condition holds, and returns whether it does. It returns at once when it holds, however slow the machine is. */
export async function until(holds: () => boolean | Promise<boolean>, pause = 5): Promise<boolean> {
  for (const start = performance.now(); performance.now() - start < LIMIT_MS; await setTimeout(pause))
    if (await holds()) return true
  return false
}
