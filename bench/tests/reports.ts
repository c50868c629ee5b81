// Reports of runs that never were.
import type { Claim, Report, Workload } from '../report/report.js'

export function claim(id: string, ratio: number, more: Partial<Claim> = {}): Claim {
  return {
    id,
    says: `${id} <says>`,
    ratio,
    low: ratio,
    high: ratio,
    toReach: 'less',
    met: null,
    limit: null,
    why: null,
    ...more,
  }
}

export function workload(id: string, claims: readonly Claim[]): Workload {
  return {
    id,
    title: `${id} & more`,
    operation: 'token',
    memory: 'reused',
    rounds: 31,
    lanes: [
      { name: 'kvtide', role: 'ours', median: 1500, p10: 1400, p90: 1700 },
      { name: 'peer', role: 'peer', median: 900, p10: 850, p90: 950 },
      { name: 'by hand', role: 'baseline', median: 4_200_000, p10: 4_000_000, p90: 5_000_000 },
      { name: 'bare rows', role: 'limit', median: 850, p10: 800, p90: 1000 },
    ],
    claims,
  }
}

export function report(...workloads: readonly Workload[]): Report {
  return { suite: 'none', rounds: 31, workloads }
}
