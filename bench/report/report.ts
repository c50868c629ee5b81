// The report of a suite: lanes, and the ratios of their medians.
import type { Measured, Role } from '../../lib/cli/rounds.js'
import { ratioOf, ratioOfRatios, spreadOf, type Spread } from '../../lib/cli/spread.js'
import { digits, tableOf } from './table.js'

export type { Measured, Role }

export const ROLES = { ours: 'kvtide', peer: 'peer', baseline: 'by hand', limit: 'limit' } as const

/** One way to do a workload, in nanoseconds per operation. */
export interface Lane extends Spread {
  readonly name: string
  readonly role: Role
}

/** The target of a ratio; without one, which direction is better. */
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
  /** The same ratio with bare memory operations in place of kvtide, in the same run. */
  readonly limit: number | null
  /** The reason why the ratio is no better, from measurements of the same run; if null, the limit is the reason. */
  readonly why: string | null
  /** True for a time or an error: it has a target, and is not compared with other runs. */
  readonly ofThisRun?: true
}

export interface Workload {
  readonly id: string
  readonly title: string
  readonly operation: string
  /** The memory of large allocations: always new pages, always pages that were touched before, or the allocator's choice. */
  readonly memory: 'new' | 'reused' | 'usual'
  /** The number of counted rounds of the lane with the fewest. */
  readonly rounds: number
  readonly lanes: readonly Lane[]
  readonly claims: readonly Claim[]
}

export interface Skipped {
  readonly id: string
  readonly skipped: string
}

export interface Machine extends Readonly<
  Record<'cpu' | 'memory' | 'hugePages' | 'kernel' | 'rustc' | 'load', string>
> {
  readonly features: readonly string[]
  readonly cores: number
  readonly caches: readonly string[]
}

export interface Report {
  readonly suite: string
  readonly rounds: number
  /** Present if the suite describes it. */
  readonly machine?: Machine
  readonly engine?: string
  readonly workloads: readonly Workload[]
  readonly skipped?: readonly Skipped[]
}

export function lessIsBetter(bound: Bound): boolean {
  return bound === 'less' || (typeof bound === 'object' && 'atMost' in bound)
}

export function boundText(bound: Bound): string {
  if (typeof bound === 'string') return ''
  return 'atMost' in bound ? `at most ${digits(bound.atMost)}` : `at least ${digits(bound.atLeast)}`
}

export function isMet(bound: Bound, ratio: number): boolean | null {
  if (typeof bound === 'string') return null
  return 'atMost' in bound ? ratio <= bound.atMost : ratio >= bound.atLeast
}

export function laneOf(measured: readonly Measured[], name: string): readonly number[] {
  const found = measured.find(lane => lane.name === name)
  if (found === undefined) throw new RangeError(`no lane is called ${name}`)
  return found.nanoseconds
}

/** The definition of a claim: two lanes by name, and the target of their ratio. */
export interface Ratio {
  readonly id: string
  /** Defaults to the two names. */
  readonly says?: string
  readonly over: string
  readonly under: string
  readonly toReach: Bound
  /** Two lanes whose ratio is the base: the claim's ratio is divided by theirs. */
  readonly base?: readonly [over: string, under: string]
  /** The lanes of bare memory that correspond to `over` and `under`. */
  readonly limit?: readonly [over: string, under: string]
  readonly why?: string
}

export function claimOf(
  measured: readonly Measured[],
  { id, over, under, says = `${over} / ${under}`, toReach, base, limit, why }: Ratio,
): Claim {
  const rounds = (a: string, b: string): Spread => ratioOf(laneOf(measured, a), laneOf(measured, b))
  const below = base === undefined ? undefined : rounds(...base)
  const { median, p10, p90 } =
    base === undefined
      ? rounds(over, under)
      : ratioOfRatios(
          [over, under].map(name => laneOf(measured, name)),
          base.map(name => laneOf(measured, name)),
        )
  const reached = limit === undefined ? null : rounds(...limit).median / (below?.median ?? 1)
  return {
    id,
    says,
    ratio: median,
    low: p10,
    high: p90,
    toReach,
    met: isMet(toReach, median),
    limit: reached,
    why: why ?? null,
  }
}

/** Compares two lanes by their difference, in microseconds with a target, and by their ratio: for a constant cost that is added to each call. */
export function excessOf(
  measured: readonly Measured[],
  { id, over, under, says, toReach }: Ratio & { readonly says: string },
): Claim[] {
  const [more, less] = [laneOf(measured, over), laneOf(measured, under)]
  const { p10, p90 } = spreadOf(more.map((value, round) => (value - (less[round] as number)) / 1000))
  const ratio = (spreadOf(more).median - spreadOf(less).median) / 1000
  const excess = {
    id: `${id}-us`,
    says: `${says}, in microseconds more`,
    ratio,
    low: p10,
    high: p90,
    toReach,
    met: isMet(toReach, ratio),
    limit: null,
    why: null,
    ofThisRun: true,
  } as const
  return [excess, claimOf(measured, { id, says, over, under, toReach: 'less' })]
}

/** Makes a workload from its lanes and ratios. The suite of the TypeScript API runs on reused memory. */
export function workloadOf(
  id: string,
  title: string,
  operation: string,
  measured: readonly Measured[],
  ratios: readonly Ratio[],
): Workload {
  const lanes = measured.map(({ name, role, nanoseconds }) => ({ name, role, ...spreadOf(nanoseconds) }))
  const counted = Math.min(...measured.map(({ nanoseconds }) => nanoseconds.length))
  return {
    id,
    title,
    operation,
    memory: 'reused',
    rounds: counted,
    lanes,
    claims: ratios.map(ratio => claimOf(measured, ratio)),
  }
}

export const ratioText = ({ ratio, low, high }: Claim): string => `${digits(ratio)} (${digits(low)} to ${digits(high)})`

export const titleOf = ({ title, memory }: Workload): string => `${title}, ${memory} memory`

export function sectionOf(workload: Workload): string {
  const { operation, lanes, claims } = workload
  const rate = operation === 'MiB'
  const rows = lanes.map(({ name, role, median, p10, p90 }) => [
    name,
    ROLES[role],
    digits(median),
    `${digits(p10)} to ${digits(p90)}`,
    ...(rate ? [digits(2 ** 20 / median)] : []),
  ])
  const head = ['', '', `ns per ${operation}`, 'spread', ...(rate ? ['GB/s'] : [])]
  const ratios = claims.map(
    claim =>
      `- ${claim.says}: ${ratioText(claim)}${claim.limit === null ? '' : `; bare memory ${digits(claim.limit)}`}`,
  )
  return [
    `### ${titleOf(workload)}`,
    `${workload.rounds} rounds.`,
    tableOf(head, rows),
    ...(ratios.length > 0 ? [ratios.join('\n')] : []),
  ].join('\n\n')
}
