// Runs the lanes of a workload in turn, round by round, so that whatever slows the machine down slows each of them.
//
// A benchmark that finished one lane before the next would compare two moments of the machine. Each round starts with another lane, and
// the first rounds are thrown away.
import type { Measured, Role } from '../report/report.js'
import { read } from './machine.js'

/** Rounds that let the engine compile what runs often, and are not counted. */
const WARM_UP = 5

/** One way to do a workload. Only `round` is timed. */
export interface Contestant {
  readonly name: string
  readonly role: Role
  /** Operations of one round: what its time is divided by. */
  readonly operations: number
  /** Whether several threads work: what this one waited is counted then, since the others went on meanwhile. */
  readonly shared?: boolean
  readonly before?: () => void
  /** It may be over later, and may answer the nanoseconds that were counted elsewhere. */
  readonly round: () => void | Promise<void | number>
  readonly after?: () => void
}

export const lane = (role: Role, name: string, operations: number, round: Contestant['round'], more: Pick<Contestant, 'before' | 'after' | 'shared'> = {}): Contestant => ({ name, role, operations, round, ...more })

/** Lets another runtime's threads stop looking for work, or another process prepare its next round. */
export const pause = (): void => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20)

/** What time is taken from: a clock in milliseconds, and the nanoseconds that were spent waiting for a processor. */
export interface Clocks {
  readonly now: () => number
  readonly waited: () => number
}

/** The second of three numbers: nanoseconds on a processor, nanoseconds of waiting, turns. */
export function readWaiting(text: string): number {
  const waiting = Number(text.split(/\s+/)[1])
  return Number.isFinite(waiting) ? waiting : 0
}

const waited = (): number => readWaiting(read('/proc/thread-self/schedstat'))

async function timed({ operations, shared = false, before, round, after }: Contestant, clocks: Clocks): Promise<number> {
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

/** Runs every lane `rounds` times, in turn; the next one begins when a round is over. */
export async function measure(contestants: readonly Contestant[], rounds: number, clocks: Clocks = { now: () => performance.now(), waited }, warmUp: number = WARM_UP): Promise<Measured[]> {
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
