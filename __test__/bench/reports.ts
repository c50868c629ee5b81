// Reports of runs that never were.
import type { ExecutionContext } from 'ava'

import type { Claim, Report, Workload } from '../../bench/report/report.js'

export function claim(id: string, ratio: number, more: Partial<Claim> = {}): Claim {
  return { id, says: `${id} <says>`, ratio, low: ratio, high: ratio, toReach: 'less', met: null, limit: null, why: null, ...more }
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

/** Asserts that every element of a picture is closed, and by its own name. */
export function wellFormed(t: ExecutionContext, svg: string): void {
  const open: string[] = []
  for (const [, close, name = '', empty] of svg.matchAll(/<(\/?)([a-z]+)[^>]*?(\/?)>/g)) {
    if (close === '/') t.is(open.pop(), name)
    else if (empty !== '/') open.push(name)
  }
  t.deepEqual(open, [])
}

/** Asserts that no two panels of a picture share a place; answers how many there are. */
export function apartPanels(t: ExecutionContext, svg: string): number {
  const places = [...svg.matchAll(/translate\((\d+) (\d+)\)"><rect width="(\d+)" height="(\d+)"/g)].map(match => match.slice(1).map(Number) as [number, number, number, number])
  for (const [index, [x, y, width, height]] of places.entries()) {
    for (const [otherX, otherY, otherWidth, otherHeight] of places.slice(index + 1)) t.true(x + width <= otherX || otherX + otherWidth <= x || y + height <= otherY || otherY + otherHeight <= y)
  }
  return places.length
}
