// What a suite measured. bench/peers writes the same form, so that one page and one check read both.
import { readFileSync } from 'node:fs'

import { ratioOf, spreadOf, type Spread } from './spread.js'

/** What a lane is in the comparison: a cache of ours, someone else's, none at all, or the least that the same bytes cost. */
export type Role = 'ours' | 'peer' | 'baseline' | 'limit'

/** One way to do a workload, in nanoseconds per operation. */
export interface Lane extends Spread {
  readonly name: string
  readonly role: Role
}

/** A lane with what each round took. */
export interface Measured {
  readonly name: string
  readonly role: Role
  readonly nanoseconds: readonly number[]
}

/** What a ratio is held against; without a target, whether less or more of it is better. */
export type Bound = 'less' | 'more' | { readonly atMost: number } | { readonly atLeast: number }

/** A ratio of the medians of two lanes. */
export interface Claim {
  readonly id: string
  readonly says: string
  readonly ratio: number
  readonly low: number
  readonly high: number
  readonly toReach: Bound
  /** `null` without a target. */
  readonly met: boolean | null
  /** What bare memory operations reach in the place of ours, in the same run. */
  readonly limit: number | null
  /** Why it is no better, in what the same run has measured; otherwise the limit tells. */
  readonly why: string | null
  /** It is a time: to be reached, and not to be held against another run. */
  readonly isTime?: true
}

export interface Workload {
  readonly id: string
  readonly title: string
  /** What the nanoseconds are for. */
  readonly operation: string
  /** Whether large allocations get pages that the system gives at the first touch, or pages that were touched before. */
  readonly memory: 'new' | 'reused'
  /** Rounds that were counted, of the lane that has the fewest. */
  readonly rounds: number
  readonly lanes: readonly Lane[]
  readonly claims: readonly Claim[]
}

/** A workload that could not run here, and why. */
export interface Skipped {
  readonly id: string
  readonly skipped: string
}

export interface Machine {
  readonly cpu: string
  readonly features: readonly string[]
  readonly cores: number
  readonly caches: readonly string[]
  readonly memory: string
  readonly hugePages: string
  readonly kernel: string
  readonly rustc: string
  readonly load: string
}

export interface Report {
  readonly suite: string
  readonly rounds: number
  /** Only where the suite describes it. */
  readonly machine?: Machine
  /** The JavaScript engine, where there is one. */
  readonly engine?: string
  readonly workloads: readonly Workload[]
  readonly skipped?: readonly Skipped[]
}

export function readReport(file: string): Report {
  return JSON.parse(readFileSync(file, 'utf8')) as Report
}

/** True when less of a ratio is better. */
export function lessIsBetter(bound: Bound): boolean {
  return bound === 'less' || (typeof bound === 'object' && 'atMost' in bound)
}

function met(bound: Bound, ratio: number): boolean | null {
  if (typeof bound === 'string') return null
  return 'atMost' in bound ? ratio <= bound.atMost : ratio >= bound.atLeast
}

/** The rounds of the lane of this name. */
export function laneOf(measured: readonly Measured[], name: string): readonly number[] {
  const found = measured.find(lane => lane.name === name)
  if (found === undefined) throw new RangeError(`no lane is called ${name}`)
  return found.nanoseconds
}

/** What a claim is about: two lanes, what their ratio is to reach, and the lane of bare memory that stands for ours. */
export interface Ratio {
  readonly id: string
  readonly says: string
  readonly over: string
  readonly under: string
  readonly toReach: Bound
  readonly limit?: { readonly over: string; readonly under: string }
}

export function claimOf(measured: readonly Measured[], { id, says, over, under, toReach, limit }: Ratio): Claim {
  const of = (a: string, b: string): Spread => ratioOf(laneOf(measured, a), laneOf(measured, b))
  const { median, p10, p90 } = of(over, under)
  const reached = limit === undefined ? null : of(limit.over, limit.under).median
  return { id, says, ratio: median, low: p10, high: p90, toReach, met: met(toReach, median), limit: reached, why: null }
}

/** What one lane costs more than another, in microseconds: for what is added to each call, however long that is. */
export function excessOf(measured: readonly Measured[], { id, says, over, under, toReach }: Ratio): Claim {
  const [more, less] = [laneOf(measured, over), laneOf(measured, under)]
  const { p10, p90 } = spreadOf(more.map((value, round) => (value - (less[round] as number)) / 1000))
  const ratio = (spreadOf(more).median - spreadOf(less).median) / 1000
  return { id, says, ratio, low: p10, high: p90, toReach, met: met(toReach, ratio), limit: null, why: null, isTime: true }
}

/** A workload's lanes and ratios. The suite of the TypeScript API runs on reused memory. */
export function workloadOf(id: string, title: string, operation: string, measured: readonly Measured[], ratios: readonly Ratio[]): Workload {
  const lanes = measured.map(({ name, role, nanoseconds }) => ({ name, role, ...spreadOf(nanoseconds) }))
  const counted = Math.min(...measured.map(({ nanoseconds }) => nanoseconds.length))
  return { id, title, operation, memory: 'reused', rounds: counted, lanes, claims: ratios.map(ratio => claimOf(measured, ratio)) }
}
