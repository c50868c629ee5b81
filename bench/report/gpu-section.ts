// The part of bench/RESULTS.md about GPUs, from results.json; without one it says that nothing has run.
import { microseconds, rateOf, shareOf, type GpuLane, type GpuResults, type GpuWorkload } from './gpu-results.js'
import { GPU_TARGETS, isReached, measuredOf, type GpuTarget } from './gpu-targets.js'
import type { Spread } from './spread.js'
import { digits, tableOf } from './table.js'

/** Where the section begins. */
export const HEADING = '## On a GPU'

const spread = ({ median, p10, p90 }: Spread): string => `${digits(median)} (${digits(p10)} to ${digits(p90)})`

const toReach = ({ toReach: bound }: GpuTarget): string => ('atMost' in bound ? `at most ${digits(bound.atMost)}` : `at least ${digits(bound.atLeast)}`)

/** Why a target has no number: what went wrong in its workload, or why the program is not there that it is held against. */
function missing({ workload, against = '' }: GpuTarget, { skipped, failed }: GpuResults): string {
  const error = failed.find(({ id }) => id === workload)?.error
  const starts = [`${against}:`, ...(against.startsWith('PyTorch') ? ['torch:', 'torch.'] : [])]
  const why = skipped.find(({ id, skipped: reason }) => id === workload && starts.some(start => reason.startsWith(start)))?.skipped
  const reason = error ?? why
  return `not measured${reason === undefined ? '' : `: ${reason}`}`
}

function targetsTable(results: GpuResults | undefined): string {
  const rows = GPU_TARGETS.map(target => {
    const row = [target.says, toReach(target)]
    if (results === undefined) return row
    const measured = measuredOf(target, results)
    if (measured === undefined) return [...row, '', missing(target, results)]
    return [...row, spread(measured), isReached(target, measured) ? 'met' : '**not met**']
  })
  return tableOf(['', 'to reach', ...(results === undefined ? [] : ['measured (spread)', 'result'])], rows)
}

const ROLES = { ours: 'kvtide', peer: 'peer', limit: 'limit' } as const

function laneRow(lane: GpuLane, limit: GpuLane | undefined): string[] {
  const took = microseconds(lane)
  const rate = rateOf(lane, took.median * 1000)
  const share = limit === undefined || lane.role === 'limit' ? undefined : shareOf(lane, limit)
  return [
    lane.name,
    ROLES[lane.role],
    spread(took),
    digits(microseconds(lane, 'host').median),
    rate === undefined ? '' : `${digits(rate.value)} ${rate.unit}`,
    share === undefined ? '' : spread(share),
  ]
}

function workloadPart({ id, title, lanes }: GpuWorkload): string {
  const limit = lanes.find(({ role }) => role === 'limit')
  const head = ['', '', 'microseconds (spread)', 'host', 'rate', limit === undefined ? '' : `share of ${limit.name}`]
  return [`### ${id}: ${title}`, tableOf(head, lanes.map(lane => laneRow(lane, limit)))].join('\n\n')
}

const NOTHING = `Nothing has run on a GPU: no number here is one of a GPU's. What is to be reached, and how it will be measured, stands;
\`run.sh bench\` of the bundle measures it ([docs/cuda.md](../docs/cuda.md)), and \`npm run bench:cuda -- results.json\` writes it down here.`

const HOW = `Times are those between two events of the GPU, which was kept busy until everything between them was enqueued; *host* is
what the host takes to ask for a piece of work. Rounds of all lanes of a program take turns, and so do the programs. Rates count the bytes
that have to be read and written, for attention K and V read once; a *copy* is the driver's, from device to device, of the same bytes in the same run.`

/** The section. */
export function gpuSection(results: GpuResults | undefined): string {
  if (results === undefined || results.workloads.length === 0) return [HEADING, NOTHING, targetsTable(undefined)].join('\n\n')
  const { machines, turns, rounds, workloads, skipped, failed } = results
  const left = [...skipped.map(({ id, skipped: why }) => `- \`${id}\`: ${why}`), ...failed.map(({ id, error }) => `- \`${id}\` **failed**: ${error}`)]
  return [
    HEADING,
    `Written by \`npm run bench:cuda\`. ${turns} turns of ${rounds} rounds; medians, with the spread from the lowest tenth of the rounds to the highest.\n${HOW}`,
    machines.map(({ device, details }) => `- ${[device, ...details].join(', ')}`).join('\n'),
    targetsTable(results),
    ...workloads.map(workloadPart),
    ...(left.length > 0 ? [`### Not measured on a GPU\n\n${left.join('\n')}`] : []),
  ].join('\n\n')
}

/** A page with its section as it is now: in the place of the one that it has, else at the end. */
export function withSection(page: string, section: string): string {
  const start = page.indexOf(`${HEADING}\n`)
  if (start < 0) return `${page.trimEnd()}\n\n${section}\n`
  const next = page.indexOf('\n## ', start + 1)
  const rest = next < 0 ? '' : `\n${page.slice(next)}`
  return `${page.slice(0, start)}${section}${rest === '' ? '\n' : rest}`
}
