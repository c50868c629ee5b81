import type { ExecutionContext } from 'ava'
import fc from 'fast-check'

/** The number of operation sequences per property; `KVTIDE_CASES_JS` sets another number. */
const cases = Number(process.env['KVTIDE_CASES_JS'] ?? 400)

/** Checks a property with a seed, which is printed; `KVTIDE_SEED` repeats a run. */
export function check<T>(t: ExecutionContext, arbitrary: fc.Arbitrary<T>, property: (value: T) => void): void {
  fc.assert(fc.property(arbitrary, property), parameters(t))
  t.pass()
}

/** Like {@link check}, for an asynchronous property. */
export async function checkAsync<T>(
  t: ExecutionContext,
  arbitrary: fc.Arbitrary<T>,
  property: (value: T) => Promise<void>,
): Promise<void> {
  await fc.assert(fc.asyncProperty(arbitrary, property), parameters(t))
}

function parameters(t: ExecutionContext): { seed: number; numRuns: number } {
  const seed = Number(process.env['KVTIDE_SEED'] ?? Date.now() & 0x7fffffff)
  t.log(`KVTIDE_SEED=${seed} KVTIDE_CASES_JS=${cases}`)
  return { seed, numRuns: cases }
}
