// The part of bench/RESULTS.md about GPUs: what is to be reached, and what was measured by results.json; without one it says that nothing has run.
import { gpuLane, microseconds, rateOf, shareOf, timesOf, type GpuLane, type GpuResults, type GpuWorkload } from './gpu-results.js'
import type { Bound } from './report.js'
import type { Spread } from './spread.js'
import { digits, spreadText, tableOf } from './table.js'

/** Where the section begins. */
export const HEADING = '## On a GPU'

/** What a target is about: a lane beside another of its workload, or by itself. */
export interface GpuTarget {
  readonly workload: string
  readonly says: string
  readonly lane: string
  /** The lane that it is held against. */
  readonly against?: string
  /** A lane's rate over the other's, the other's time over the lane's, the lane's over the other's, or the lane's microseconds. */
  readonly by: 'rate' | 'speed' | 'time' | 'microseconds'
  readonly toReach: Exclude<Bound, 'less' | 'more'>
}

const COPY = { lane: 'kvtide', against: 'copy', by: 'rate', toReach: { atLeast: 0.85 } } as const
const PAGES = 'kvtide, pages'

/** The targets, in the order of the table. */
export const GPU_TARGETS: readonly GpuTarget[] = [
  { workload: 'prompt-append', says: "append of a prompt, rate over the copy's", ...COPY },
  { workload: 'page-scatter', says: "tokens into pages, rate over the copy's", ...COPY },
  { workload: 'page-gather', says: "tokens out of pages, rate over the copy's", ...COPY },
  { workload: 'step-append', says: 'append of a step in one launch, microseconds', lane: 'kvtide, slots from the host', by: 'microseconds', toReach: { atMost: 10 } },
  { workload: 'step-append', says: 'the same with lengths on the device, microseconds', lane: 'kvtide, lengths on the device', by: 'microseconds', toReach: { atMost: 10 } },
  { workload: 'decode', says: "attention over pages, K and V read once, rate over the copy's", lane: PAGES, against: 'copy', by: 'rate', toReach: { atLeast: 0.8 } },
  { workload: 'decode', says: "PyTorch's flash attention over contiguous memory / kvtide over pages", lane: PAGES, against: 'PyTorch, flash', by: 'speed', toReach: { atLeast: 1 } },
  { workload: 'decode', says: 'attention over pages / over contiguous memory', lane: PAGES, against: 'kvtide, contiguous', by: 'time', toReach: { atMost: 1.03 } },
  { workload: 'decode', says: 'attention over bf16 pages / over q8 pages', lane: 'kvtide, q8 pages', against: PAGES, by: 'speed', toReach: { atLeast: 1.6 } },
  ...['append-token', 'append-chunk'].flatMap(workload =>
    ['candle, slice_set', 'candle, cat', 'PyTorch, index_copy_', 'PyTorch, cat'].map(
      (against): GpuTarget => ({ workload, says: `${workload === 'append-token' ? 'append of a token' : 'append of a chunk'}: ${against} / kvtide`, lane: 'kvtide', against, by: 'speed', toReach: { atLeast: 1 } }),
    ),
  ),
]

/** What was measured of a target; nothing where one of its lanes was not. */
export function measuredOf(target: GpuTarget, results: GpuResults): Spread | undefined {
  const lane = gpuLane(results, target.workload, target.lane)
  const against = target.against === undefined ? lane : gpuLane(results, target.workload, target.against)
  return lane === undefined || against === undefined ? undefined : compared(target.by, lane, against)
}

function compared(by: GpuTarget['by'], lane: GpuLane, against: GpuLane): Spread | undefined {
  if (by === 'microseconds') return microseconds(lane)
  if (by === 'rate') return shareOf(lane, against)
  return by === 'speed' ? timesOf(against, lane) : timesOf(lane, against)
}

/** True when a measured number is what was to be reached. */
export function isReached({ toReach }: GpuTarget, { median }: Spread): boolean {
  return 'atMost' in toReach ? median <= toReach.atMost : median >= toReach.atLeast
}

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
    return [...row, spreadText(measured), isReached(target, measured) ? 'met' : '**not met**']
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
    spreadText(took),
    digits(microseconds(lane, 'host').median),
    rate === undefined ? '' : `${digits(rate.value)} ${rate.unit}`,
    share === undefined ? '' : spreadText(share),
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
