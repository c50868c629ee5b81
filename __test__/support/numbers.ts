import type { ExecutionContext } from 'ava'

/** Numbers from 0 to 1 that follow from a seed. */
function numbers(seed: number): () => number {
  let state = seed
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return state / 2 ** 32
  }
}

/** Numbers from 0 to 1. The seed is printed; `KVTIDE_SEED` repeats a run. */
export function drawn(t: ExecutionContext): () => number {
  const seed = Number(process.env['KVTIDE_SEED'] ?? Date.now() & 0x7fffffff)
  t.log(`KVTIDE_SEED=${seed}`)
  return numbers(seed)
}
