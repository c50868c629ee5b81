// Runs the lanes of a workload in turn, round by round, so that a slow moment of the machine affects all of them.
//
// A benchmark that finished one lane before the next would compare two moments of the machine. Each round starts with another lane, and
// the first rounds are discarded.
import { readFileSync } from 'node:fs'

/** The role of a lane in the comparison: kvtide's cache, another cache, no cache, or the lower limit for moving the same bytes. */
export type Role = 'ours' | 'peer' | 'baseline' | 'limit'

/** A lane and the nanoseconds of one operation, one number per round. */
export interface Measured {
  readonly name: string
  readonly role: Role
  readonly nanoseconds: readonly number[]
}

/** Warm-up rounds, in which the engine compiles hot code. They are not counted. */
const WARM_UP = 5

/** One way to do a workload. Only `round` is timed. */
export interface Contestant {
  readonly name: string
  readonly role: Role
  /** Operations per round; a round's time is divided by them. */
  readonly operations: number
  /** True if several threads work. Then the time that this thread waited is counted, because the others went on meanwhile. */
  readonly shared?: boolean
  readonly before?: () => void
  /** It may return a promise, and may return nanoseconds that were measured elsewhere. */
  readonly round: () => void | Promise<void | number>
  readonly after?: () => void
}

export const lane = (
  role: Role,
  name: string,
  operations: number,
  round: Contestant['round'],
  more: Pick<Contestant, 'before' | 'after' | 'shared'> = {},
): Contestant => ({ name, role, operations, round, ...more })

/** Waits until another runtime's threads have stopped polling for work, or another process has prepared its next round. */
export const pause = (): void => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20)

/** The sources of times: a clock in milliseconds, and the nanoseconds that were spent waiting for a processor. */
export interface Clocks {
  readonly now: () => number
  readonly waited: () => number
}

/** The second of three numbers: nanoseconds on a processor, nanoseconds of waiting, turns. */
export function readWaiting(text: string): number {
  const waiting = Number(text.split(/\s+/)[1])
  return Number.isFinite(waiting) ? waiting : 0
}

/** Returns the nanoseconds that this thread waited for a processor, or 0 if the system does not report them. */
function waited(): number {
  try {
    return readWaiting(readFileSync('/proc/thread-self/schedstat', 'latin1'))
  } catch {
    return 0
  }
}

async function timed(
  { operations, shared = false, before, round, after }: Contestant,
  clocks: Clocks,
): Promise<number> {
  before?.()
  const waitedBefore = clocks.waited()
  const start = clocks.now()
  const running = round()
  const counted = running instanceof Promise ? await running : undefined
  const elapsed = (clocks.now() - start) * 1e6
  const waiting = shared ? 0 : clocks.waited() - waitedBefore
  after?.()
  return (counted ?? Math.max(elapsed - waiting, 0)) / operations
}

/** Runs every lane `rounds` times, in turn. A round ends before the next lane begins. */
export async function measure(
  contestants: readonly Contestant[],
  rounds: number,
  clocks: Clocks = { now: () => performance.now(), waited },
  warmUp: number = WARM_UP,
): Promise<Measured[]> {
  const nanoseconds = contestants.map((): number[] => [])
  for (let round = 0; round < warmUp + rounds; round++) {
    for (const turn of contestants.keys()) {
      const index = (round + turn) % contestants.length
      const took = await timed(contestants[index] as Contestant, clocks)
      if (round >= warmUp) nanoseconds[index]?.push(took)
    }
  }
  return contestants.map(({ name, role }, index) => ({ name, role, nanoseconds: nanoseconds[index] as number[] }))
}
