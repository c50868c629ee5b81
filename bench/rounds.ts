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
  /** Whether several threads work: what this one waited is counted then, since the others went on meanwhile. */
  readonly shared?: boolean
  readonly before?: () => void
  readonly round: () => void
  readonly after?: () => void
}

/** The same, where a round may be over later, and may answer the nanoseconds that were counted elsewhere. */
export interface AsyncContestant extends Omit<Contestant, 'round'> {
  readonly round: () => void | Promise<void | number>
}

/** What time is taken from: a clock in milliseconds, and the nanoseconds that were spent waiting for a processor. */
export interface Clocks {
  readonly now?: () => number
  readonly waited: () => number
}

/** One round of every lane, made ready to run. */
interface Turn {
  readonly bench: Bench
  readonly order: readonly number[]
  /** Nanoseconds that each lane has waited. */
  readonly waits: number[]
  /** Nanoseconds that were counted elsewhere. */
  readonly counted: (number | undefined)[]
}

function turnOf(contestants: readonly AsyncContestant[], round: number, async: boolean, clocks: Clocks): Turn {
  const bench = new Bench({ iterations: 1, time: 0, warmup: false, throws: true, ...(clocks.now && { now: clocks.now }) })
  const order = contestants.map((_, turn) => (round + turn) % contestants.length)
  const waits = contestants.map(() => 0)
  const counted = contestants.map((): number | undefined => undefined)
  for (const index of order) {
    const { name, round: run, before, after } = contestants[index] as AsyncContestant
    const beforeEach = (): void => {
      before?.()
      waits[index] = -clocks.waited()
    }
    const afterEach = (): void => {
      waits[index] = (waits[index] as number) + clocks.waited()
      after?.()
    }
    // Told whether it is async, tinybench does not run it once to find out.
    const later = async (): Promise<void> => void (counted[index] = (await run()) ?? undefined)
    bench.add(name, async ? later : run, { async, beforeEach, afterEach })
  }
  return { bench, order, waits, counted }
}

/** Adds what a turn has taken to the nanoseconds of each lane. */
function note({ bench, order, waits, counted }: Turn, contestants: readonly AsyncContestant[], nanoseconds: readonly number[][]): void {
  for (const [turn, index] of order.entries()) {
    const { name, operations, shared = false } = contestants[index] as AsyncContestant
    const result = bench.tasks[turn]?.result
    if (result?.state !== 'completed') throw new Error(`${name} did not finish`)
    const took = counted[index] ?? Math.max(result.latency.mean * 1e6 - (shared ? 0 : (waits[index] as number)), 0)
    nanoseconds[index]?.push(took / operations)
  }
}

const measuredOf = (contestants: readonly AsyncContestant[], nanoseconds: readonly number[][]): Measured[] =>
  contestants.map(({ name, role }, index) => ({ name, role, nanoseconds: (nanoseconds[index] as number[]).slice(WARM_UP) }))

/** Runs every lane `rounds` times, in turn. */
export function measure(contestants: readonly Contestant[], rounds: number, clocks: Clocks = { waited }): Measured[] {
  const nanoseconds = contestants.map((): number[] => [])
  for (let round = 0; round < WARM_UP + rounds; round++) {
    const turn = turnOf(contestants, round, false, clocks)
    turn.bench.runSync()
    note(turn, contestants, nanoseconds)
  }
  return measuredOf(contestants, nanoseconds)
}

/** As {@link measure}, where rounds may be promises: the next one begins when they are settled. */
export async function measureAsync(contestants: readonly AsyncContestant[], rounds: number, clocks: Clocks = { waited }): Promise<Measured[]> {
  const nanoseconds = contestants.map((): number[] => [])
  for (let round = 0; round < WARM_UP + rounds; round++) {
    const turn = turnOf(contestants, round, true, clocks)
    await turn.bench.run()
    note(turn, contestants, nanoseconds)
  }
  return measuredOf(contestants, nanoseconds)
}
