// Runs the lanes of a workload in turn, round by round, so that whatever slows the machine down slows each of them.
//
// tinybench times one round of each lane at a time: a benchmark that finishes one lane before the next would compare two
// moments of the machine. Each round starts with another lane, and the first rounds are thrown away.
import { Bench } from 'tinybench'

import type { Measured, Role } from './report.js'
import { waited } from './waiting.js'

/** Rounds that let the engine compile what runs often, and are not counted. */
const WARM_UP = 5

/** One way to do a workload. Only `round` is timed. */
export interface Contestant {
  readonly name: string
  readonly role: Role
  /** Operations of one round: what its time is divided by. */
  readonly operations: number
  readonly before?: () => void
  readonly round: () => void
  readonly after?: () => void
}

/** What time is taken from: a clock in milliseconds, and the nanoseconds that were spent waiting for a processor. */
export interface Clocks {
  readonly now?: () => number
  readonly waited: () => number
}

/** Runs every lane `rounds` times, in turn. */
export function measure(contestants: readonly Contestant[], rounds: number, clocks: Clocks = { waited }): Measured[] {
  const nanoseconds = contestants.map((): number[] => [])
  for (let round = 0; round < WARM_UP + rounds; round++) {
    const bench = new Bench({ iterations: 1, time: 0, warmup: false, throws: true, ...(clocks.now && { now: clocks.now }) })
    const order = contestants.map((_, turn) => (round + turn) % contestants.length)
    const waits = contestants.map(() => 0)
    for (const index of order) {
      const { name, round: run, before, after } = contestants[index] as Contestant
      const beforeEach = (): void => {
        before?.()
        waits[index] = -clocks.waited()
      }
      const afterEach = (): void => {
        waits[index] = (waits[index] as number) + clocks.waited()
        after?.()
      }
      // Told that it is not async, tinybench does not run it once to find out.
      bench.add(name, run, { async: false, beforeEach, afterEach })
    }
    const tasks = bench.runSync()
    for (const [turn, index] of order.entries()) {
      const result = tasks[turn]?.result
      if (result?.state !== 'completed') throw new Error(`${contestants[index]?.name} did not finish`)
      if (round < WARM_UP) continue
      const took = Math.max(result.latency.mean * 1e6 - (waits[index] as number), 0)
      nanoseconds[index]?.push(took / (contestants[index] as Contestant).operations)
    }
  }
  return contestants.map(({ name, role }, index) => ({ name, role, nanoseconds: nanoseconds[index] as number[] }))
}
