// The ratios that the repository records, and whether those of another run are worse.
//
// Ratios, never times: they change little from machine to machine. Each has a noise band, a factor: a ratio is worse when it
// lies further than that on the wrong side of the recorded one. The band is what one round differed from another in the run
// that was recorded, and at least a quarter.
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
  /** What was measured; nothing when the run has no such ratio. */
  readonly ratio: number | undefined
}

const rounded = (value: number): number => Number(value.toPrecision(4))

function record({ ratio, low, high, toReach }: Claim): RecordedRatio {
  const band = Math.max(BAND_MIN, Math.ceil((high / low) * 20) / 20)
  return { ratio: rounded(ratio), better: lessIsBetter(toReach) ? 'less' : 'more', band }
}

/** What is compared with other runs. */
const claimsOf = (reports: readonly Report[]): Claim[] =>
  reports.flatMap(({ workloads }) => workloads.flatMap(({ claims }) => claims.filter(({ ofThisRun }) => ofThisRun !== true)))

const ratiosOf = (reports: readonly Report[]): Recorded['ratios'] => Object.fromEntries(claimsOf(reports).map(claim => [claim.id, record(claim)]))

/** Starts of ids of what could not run here. */
const skippedIn = (reports: readonly Report[]): string[] => reports.flatMap(report => report.skipped ?? []).map(({ id }) => `${id}/`)

/** What a run records. Of a workload that could not run here, what was recorded before stays. */
export function recordOf(cpu: string, reports: readonly Report[], before: Recorded['ratios'] = {}): Recorded {
  const skipped = skippedIn(reports)
  const staying = Object.entries(before).filter(([id]) => skipped.some(start => id.startsWith(start)))
  return { cpu, ratios: { ...ratiosOf(reports), ...Object.fromEntries(staying) } }
}

/** The same record with the ratios of some workloads more, or anew. */
export function withRatios({ cpu, ratios }: Recorded, report: Report): Recorded {
  return { cpu, ratios: { ...ratios, ...ratiosOf([report]) } }
}

/**
 * The recorded ratios whose ids begin with `only` that the run does not reach. One that was not measured is not reached, unless
 * its workload could not run here.
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
  return claimsOf(reports).map(({ id }) => id).filter(id => !(id in recorded.ratios))
}
