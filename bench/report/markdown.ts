// Writes bench/RESULTS.md from the reports of a run.
import { gpuSection, type GpuResults } from './gpu.js'
import { poolSection } from './pool.js'
import {
  boundText,
  isMet,
  lessIsBetter,
  ratioText,
  sectionOf,
  titleOf,
  type Claim,
  type Machine,
  type Workload,
} from './report.js'
import type { Run } from '../run/suites.js'
import { digits, tableOf } from './table.js'

/** Returns why a target is not met, from measurements of the same run. */
export function reason({ ratio, limit, toReach, why }: Claim): string {
  if (why !== null) return why
  if (limit === null || typeof toReach === 'string') return 'nothing in this run explains it'
  const times = lessIsBetter(toReach) ? ratio / limit : limit / ratio
  const bare = `the same moves in bare memory, without a cache, reach ${digits(limit)}`
  return isMet(toReach, limit) === true
    ? `${bare}: the cache itself costs ${digits(times)} times as much as the moves`
    : `${bare}, and do not meet it either`
}

function machineOf(
  { cpu, features, cores, caches, memory, hugePages, kernel, rustc, load }: Machine,
  engine: string | undefined,
): string {
  const lines = [
    `Processor: ${cpu}, ${cores} cores, ${features.join(' ')}`,
    `Caches: ${caches.join(', ')}`,
    `Memory: ${memory}; large pages: ${hugePages}`,
    `System: ${kernel}; ${rustc}${engine === undefined ? '' : `; ${engine}`}`,
    `Load before the run: ${load}`,
  ]
  return lines.map(line => `- ${line}`).join('\n')
}

/** Returns a row for each ratio that has a target. */
export function targetRows(workload: Workload): string[][] {
  return workload.claims.flatMap(claim => {
    if (claim.met === null) return []
    const limit = claim.limit === null ? '' : digits(claim.limit)
    return [
      [
        titleOf(workload),
        claim.says,
        ratioText(claim),
        limit,
        boundText(claim.toReach),
        claim.met ? 'met' : `**not met**: ${reason(claim)}`,
      ],
    ]
  })
}

function targetsOf(workloads: readonly Workload[]): string {
  return tableOf(
    ['workload', 'ratio', 'measured (spread)', 'bare memory', 'to reach', 'result'],
    workloads.flatMap(targetRows),
  )
}

export function resultsPage(version: string, { peers, javascript, pool }: Run, gpu?: GpuResults): string {
  const workloads = [...peers.workloads, ...javascript.workloads]
  const skipped = [peers, javascript].flatMap(report => report.skipped ?? [])
  const parts = [
    '# Results',
    `Written by \`npm run bench\`, kvtide ${version}. Do not edit by hand.`,
    `Every workload runs in a process of its own: a round of one lane, a round of the next, and so on, ${peers.rounds} rounds each, and fewer
if they take long. The first rounds are not counted. Lanes use one thread unless their name says otherwise. K and V have 8 heads of 128 elements.
Numbers are medians; the spread goes from the lowest tenth of the rounds to the highest. A ratio is one of medians; its spread is that of the
rounds' own ratios. The time that a thread waited for a busy processor is not counted. Only ratios say something about another machine.`,
    `*Limit* is the same bytes moved without a cache: \`memcpy\`, or *bare rows*, the same moves in plain memory without
checks and views, in memory of the same kind as the caches'; for attention a sum over the same elements, or
its multiply-adds. *By hand* is code that uses no cache. *Peers* are other caches
and attention operators.`,
    `Large allocations come either always from *new memory*, pages that the system provides at the first touch, as for the first cache of
a process, or always from *reused memory*, pages that were touched before. By default, the allocator alternates between the two, and a lane
would be slow or fast depending on the lane before it. Reused memory favours lanes that copy. Lanes in separate processes use *usual memory*, as
the allocator provides it.`,
    '![Every workload on a log axis](results.svg)',
    '## The machine',
    peers.machine === undefined ? 'unknown' : machineOf(peers.machine, javascript.engine),
    '## Targets',
    targetsOf(workloads),
    '## Workloads',
    ...workloads.map(sectionOf),
    ...(skipped.length > 0
      ? ['## Not measured', skipped.map(({ id, skipped: why }) => `- \`${id}\`: ${why}`).join('\n')]
      : []),
    ...(pool === undefined ? [] : [poolSection(pool)]),
    gpuSection(gpu),
  ]
  return `${parts.join('\n\n')}\n`
}
