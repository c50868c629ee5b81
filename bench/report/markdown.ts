// bench/RESULTS.md, from the reports of a run.
import { gpuSection, type GpuResults } from './gpu.js'
import { poolSection } from './pool.js'
import { boundText, isMet, lessIsBetter, ratioText, sectionOf, titleOf, type Claim, type Machine, type Workload } from './report.js'
import type { Run } from '../run/suites.js'
import { digits, tableOf } from './table.js'

/** Why a target is not met, in what the same run has measured. */
export function reason({ ratio, limit, toReach, why }: Claim): string {
  if (why !== null) return why
  if (limit === null || typeof toReach === 'string') return 'nothing in this run tells why'
  const times = lessIsBetter(toReach) ? ratio / limit : limit / ratio
  const bare = `the same moves in bare memory, with no cache around them, reach ${digits(limit)}`
  return isMet(toReach, limit) === true
    ? `${bare}: the cache itself costs ${digits(times)} times what the moves do`
    : `${bare}, and do not meet it either`
}

function machineOf({ cpu, features, cores, caches, memory, hugePages, kernel, rustc, load }: Machine, engine: string | undefined): string {
  const lines = [
    `Processor: ${cpu}, ${cores} cores, ${features.join(' ')}`,
    `Caches: ${caches.join(', ')}`,
    `Memory: ${memory}; large pages: ${hugePages}`,
    `System: ${kernel}; ${rustc}${engine === undefined ? '' : `; ${engine}`}`,
    `Load before the run: ${load}`,
  ]
  return lines.map(line => `- ${line}`).join('\n')
}

/** A row for each ratio that has a target. */
export function targetRows(workload: Workload): string[][] {
  return workload.claims.flatMap(claim => {
    if (claim.met === null) return []
    const limit = claim.limit === null ? '' : digits(claim.limit)
    return [[titleOf(workload), claim.says, ratioText(claim), limit, boundText(claim.toReach), claim.met ? 'met' : `**not met**: ${reason(claim)}`]]
  })
}

function targetsOf(workloads: readonly Workload[]): string {
  return tableOf(['workload', 'ratio', 'measured (spread)', 'bare memory', 'to reach', 'result'], workloads.flatMap(targetRows))
}

export function resultsPage(version: string, { peers, javascript, native, pool }: Run, gpu?: GpuResults): string {
  const workloads = [...peers.workloads, ...javascript.workloads]
  const skipped = [peers, javascript].flatMap(report => report.skipped ?? [])
  const parts = [
    '# Results',
    `Written by \`npm run bench\`, kvtide ${version}. Do not edit by hand.`,
    `Every workload runs in a process of its own: a round of one lane, a round of the next, and so on, ${peers.rounds} rounds each and fewer
where they take long, the first ones not counted. Lanes work on one thread, unless they say otherwise. K and V have 8 heads of 128 elements. Numbers are medians; the spread goes from the lowest tenth of the rounds to the highest. A ratio is one of
medians, its spread that of the rounds' own ratios. What a thread waited for a processor that others had is not counted. Only ratios say something about another machine.`,
    `*Limit* is the same bytes moved with no cache around them: \`memcpy\`, or *bare rows*, the same moves in plain memory with
nothing checked and no view made, in memory of the same kind as the caches'; for attention a sum over the same elements, or
its multiply-adds. *By hand* is what is written where no cache is taken. *Peers* are other people's caches
and attention.`,
    `Large allocations come either always from *new memory*, pages that the system gives at the first touch, as to the first cache of
a process, or always from *reused memory*, pages that were touched before. Left to itself, the allocator does now the one and
now the other, and a lane is slow or fast by what the one before it has left. Reused memory is the kinder to those who copy. Lanes
with a process of their own have *usual memory*, as the allocator gives it.`,
    '![Every workload on a log axis](results.svg)',
    '## The machine',
    peers.machine === undefined ? 'unknown' : machineOf(peers.machine, javascript.engine),
    '## Targets',
    targetsOf(workloads),
    '## Workloads',
    ...workloads.map(sectionOf),
    ...(skipped.length > 0 ? ['## Not measured', skipped.map(({ id, skipped: why }) => `- \`${id}\`: ${why}`).join('\n')] : []),
    ...(pool === undefined ? [] : [poolSection(pool)]),
    gpuSection(gpu),
    ...(native === '' ? [] : ['## Single calls', 'From `cargo bench`, not interleaved: for finding what a change in one call costs.', `\`\`\`text\n${native.trim()}\n\`\`\``]),
  ]
  return `${parts.join('\n\n')}\n`
}
