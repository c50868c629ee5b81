// Runs the lanes of a workload in turn, round by round, so that whatever slows the machine down slows each of them.
//
// tinybench times one round of each lane at a time: a benchmark that finishes one lane before the next would compare two
// moments of the machine. Each round starts with another lane, and the first rounds are thrown away.
import { Bench } from 'tinybench'

import type { Measured, Role } from './report.js'

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

/** Runs every lane `rounds` times, in turn. `now` is a clock in milliseconds. */
export function measure(contestants: readonly Contestant[], rounds: number, now?: () => number): Measured[] {
  const nanoseconds = contestants.map((): number[] => [])
  for (let round = 0; round < WARM_UP + rounds; round++) {
    const bench = new Bench({ iterations: 1, time: 0, warmup: false, throws: true, ...(now === undefined ? {} : { now }) })
    const order = contestants.map((_, turn) => (round + turn) % contestants.length)
    for (const index of order) {
      const { name, round: run, before, after } = contestants[index] as Contestant
      // Told that it is not async, tinybench does not run it once to find out.
      bench.add(name, run, { async: false, ...(before && { beforeEach: before }), ...(after && { afterEach: after }) })
    }
    const tasks = bench.runSync()
    for (const [turn, index] of order.entries()) {
      const result = tasks[turn]?.result
      if (result?.state !== 'completed') throw new Error(`${contestants[index]?.name} did not finish`)
      if (round < WARM_UP) continue
      nanoseconds[index]?.push((result.latency.mean * 1e6) / (contestants[index] as Contestant).operations)
    }
  }
  return contestants.map(({ name, role }, index) => ({ name, role, nanoseconds: nanoseconds[index] as number[] }))
}
