// Records ratios in the repository, and finds ratios of another run that are worse.
//
// Only ratios are recorded, never times: ratios change little from machine to machine. Each has a noise band, a factor: a ratio is worse if it
// is off by more than this factor in the wrong direction. The band is the spread between rounds of the recorded run, and at least a quarter.
import { lessIsBetter, type Claim, type Report } from './report.js'

export const BAND_MIN = 1.25

export interface RecordedRatio {
  readonly ratio: number
  readonly better: 'less' | 'more'
  readonly band: number
}

export interface Recorded {
  readonly cpu: string
  readonly ratios: Readonly<Record<string, RecordedRatio>>
}

export interface Worse {
  readonly id: string
  readonly recorded: RecordedRatio
  readonly bound: number
  /** The measured ratio; undefined if the run has no such ratio. */
  readonly ratio: number | undefined
}

const rounded = (value: number): number => Number(value.toPrecision(4))

function record({ ratio, low, high, toReach }: Claim): RecordedRatio {
  const band = Math.max(BAND_MIN, Math.ceil((high / low) * 20) / 20)
  return { ratio: rounded(ratio), better: lessIsBetter(toReach) ? 'less' : 'more', band }
}

/** The claims that are compared with other runs. */
const claimsOf = (reports: readonly Report[]): Claim[] =>
  reports.flatMap(({ workloads }) =>
    workloads.flatMap(({ claims }) => claims.filter(({ ofThisRun }) => ofThisRun !== true)),
  )

const ratiosOf = (reports: readonly Report[]): Recorded['ratios'] =>
  Object.fromEntries(claimsOf(reports).map(claim => [claim.id, record(claim)]))

/** The prefixes of ratio ids of workloads that could not run here. */
const skippedIn = (reports: readonly Report[]): string[] =>
  reports.flatMap(report => report.skipped ?? []).map(({ id }) => `${id}/`)

/** Returns the record of a run. A workload that could not run here keeps its previous record. */
export function recordOf(cpu: string, reports: readonly Report[], before: Recorded['ratios'] = {}): Recorded {
  const skipped = skippedIn(reports)
  const staying = Object.entries(before).filter(([id]) => skipped.some(start => id.startsWith(start)))
  return { cpu, ratios: { ...ratiosOf(reports), ...Object.fromEntries(staying) } }
}

/** Returns the record with the ratios of some workloads added or replaced. */
export function withRatios({ cpu, ratios }: Recorded, report: Report): Recorded {
  return { cpu, ratios: { ...ratios, ...ratiosOf([report]) } }
}

/**
 * Returns the recorded ratios whose ids begin with `only` and that the run does not reach. A ratio that was not measured counts as not reached,
 * unless its workload could not run here.
 */
export function worseThan(recorded: Recorded, reports: readonly Report[], only = ''): Worse[] {
  const skipped = skippedIn(reports)
  const measured = new Map(claimsOf(reports).map(({ id, ratio }) => [id, ratio]))
  return Object.entries(recorded.ratios)
    .filter(([id]) => id.startsWith(only) && !skipped.some(start => id.startsWith(start)))
    .flatMap(([id, was]) => {
      const ratio = measured.get(id)
      const less = was.better === 'less'
      const bound = less ? was.ratio * was.band : was.ratio / was.band
      const reached = ratio !== undefined && (less ? ratio <= bound : ratio >= bound)
      return reached ? [] : [{ id, recorded: was, bound, ratio }]
    })
}

export function unrecorded(recorded: Recorded, reports: readonly Report[]): string[] {
  return claimsOf(reports)
    .map(({ id }) => id)
    .filter(id => !(id in recorded.ratios))
}
