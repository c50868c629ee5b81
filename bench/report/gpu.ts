// The GPU section of bench/RESULTS.md: the targets, and the measurements of bench/cuda and its peers, which `run.sh bench` of the bundle writes
// into a results.json. Without that file, the section says that nothing has run.
import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import { boundText, isMet, ROLES, type Bound, type Measured } from './report.js'
import { ratioOf, spreadOf, type Spread } from '../../lib/cli/spread.js'
import { digits, spreadText, tableOf } from './table.js'

/** The path of the results that the page shows. */
export const RECORDED: string = fileURLToPath(new URL('../cuda/results.json', import.meta.url))

export const HEADING = '## On a GPU'

export interface GpuLane extends Measured {
  /** The bytes that must be read and written, and the multiplications and additions: rates are computed from them. */
  readonly bytes: number | null
  readonly flops: number | null
  readonly host: readonly number[]
}

export interface GpuWorkload {
  readonly id: string
  readonly title: string
  readonly lanes: readonly GpuLane[]
}

export interface GpuResults {
  readonly turns: number
  readonly rounds: number
  readonly machines: readonly { readonly device: string; readonly details: readonly string[] }[]
  readonly workloads: readonly GpuWorkload[]
  readonly skipped: readonly { readonly id: string; readonly skipped: string }[]
  readonly failed: readonly { readonly id: string; readonly error: string }[]
}

/** A target: for the time of one lane of a workload divided by another's, or, for one lane alone, in microseconds. */
export interface GpuTarget {
  readonly workload: string
  readonly says: string
  readonly over: string
  readonly under?: string
  readonly toReach: Exclude<Bound, 'less' | 'more'>
}

const PAGES = 'kvtide, pages'
/** The copy has as many bytes as the lane that it is compared with, so a ratio of times is a ratio of rates. */
const COPY = { over: 'copy', under: 'kvtide', toReach: { atLeast: 0.85 } }

export const GPU_TARGETS: readonly GpuTarget[] = [
  { workload: 'prompt-append', says: "append of a prompt, rate over the copy's", ...COPY },
  { workload: 'page-scatter', says: "tokens into pages, rate over the copy's", ...COPY },
  { workload: 'page-gather', says: "tokens out of pages, rate over the copy's", ...COPY },
  {
    workload: 'step-append',
    says: 'append of a step in one launch, microseconds',
    over: 'kvtide',
    toReach: { atMost: 10 },
  },
  {
    workload: 'decode',
    says: "attention over pages, K and V read once, rate over the copy's",
    over: 'copy',
    under: PAGES,
    toReach: { atLeast: 0.8 },
  },
  {
    workload: 'decode',
    says: "PyTorch's flash attention over contiguous memory / kvtide over pages",
    over: 'PyTorch, flash',
    under: PAGES,
    toReach: { atLeast: 1 },
  },
  {
    workload: 'decode',
    says: 'attention over pages / over contiguous memory',
    over: PAGES,
    under: 'kvtide, contiguous',
    toReach: { atMost: 1.03 },
  },
  {
    workload: 'decode',
    says: 'attention over bf16 pages / over q8 pages',
    over: PAGES,
    under: 'kvtide, q8 pages',
    toReach: { atLeast: 1.6 },
  },
  ...['append-token', 'append-chunk'].flatMap(workload =>
    ['candle, slice_set', 'candle, cat', 'PyTorch, index_copy_', 'PyTorch, cat'].map((over): GpuTarget => ({
      workload,
      says: `${workload === 'append-token' ? 'append of a token' : 'append of a chunk'}: ${over} / kvtide`,
      over,
      under: 'kvtide',
      toReach: { atLeast: 1 },
    })),
  ),
]

export function readResults(file: string = RECORDED): GpuResults | undefined {
  if (!existsSync(file)) return undefined
  const results = JSON.parse(readFileSync(file, 'utf8')) as GpuResults
  for (const list of ['machines', 'workloads', 'skipped', 'failed'] as const) {
    if (!Array.isArray(results?.[list]))
      throw new TypeError(`${file} has no list of ${list}: expected what \`run.sh bench\` writes`)
  }
  return results
}

const microseconds = (times: readonly number[]): Spread => spreadOf(times.map(time => time / 1000))

/** Returns the time of one lane divided by another's. One of them may have lost a turn. */
export function timesOf(over: GpuLane, under: GpuLane): Spread {
  const rounds = Math.min(over.nanoseconds.length, under.nanoseconds.length)
  return ratioOf(over.nanoseconds.slice(0, rounds), under.nanoseconds.slice(0, rounds))
}

/** Returns the measurement of a target, or undefined if one of its lanes was not measured. */
export function measuredOf(target: GpuTarget, { workloads }: GpuResults): Spread | undefined {
  const lanes = workloads.find(({ id }) => id === target.workload)?.lanes
  const [over, under] = [target.over, target.under].map(name => lanes?.find(lane => lane.name === name))
  if (over === undefined) return undefined
  if (target.under === undefined) return microseconds(over.nanoseconds)
  return under && timesOf(over, under)
}

/** Returns why a target has no number: its workload failed, or the program that it is compared with is missing. */
function missing({ workload, over }: GpuTarget, { skipped, failed }: GpuResults): string {
  const starts = [`${over}:`, ...(over.startsWith('PyTorch') ? ['torch:', 'torch.'] : [])]
  const why = skipped.find(
    ({ id, skipped: reason }) => id === workload && starts.some(start => reason.startsWith(start)),
  )?.skipped
  const reason = failed.find(({ id }) => id === workload)?.error ?? why
  return `not measured${reason === undefined ? '' : `: ${reason}`}`
}

function targetsTable(results: GpuResults | undefined): string {
  const rows = GPU_TARGETS.map(target => {
    const row = [target.says, boundText(target.toReach)]
    if (results === undefined) return row
    const measured = measuredOf(target, results)
    if (measured === undefined) return [...row, '', missing(target, results)]
    return [...row, spreadText(measured), isMet(target.toReach, measured.median) === true ? 'met' : '**not met**']
  })
  return tableOf(['', 'to reach', ...(results === undefined ? [] : ['measured (spread)', 'result'])], rows)
}

/** Returns the amount of work that rates are computed from, and their unit: a thousand operations per nanosecond are a TFLOP/s. */
function amountOf({ bytes, flops }: GpuLane): { readonly amount: number; readonly unit: string } | undefined {
  if (flops !== null) return { amount: flops / 1000, unit: 'TFLOP/s' }
  return bytes === null ? undefined : { amount: bytes, unit: 'GB/s' }
}

function laneRow(lane: GpuLane, limit: GpuLane | undefined): string[] {
  const took = microseconds(lane.nanoseconds)
  const [own, most] = [amountOf(lane), limit && amountOf(limit)]
  const rate = own === undefined ? '' : `${digits(own.amount / took.median / 1000)} ${own.unit}`
  let share = ''
  if (limit !== undefined && lane.role !== 'limit' && own !== undefined && own.unit === most?.unit) {
    const { median, p10, p90 } = timesOf(limit, lane)
    const times = own.amount / most.amount
    share = spreadText({ median: median * times, p10: p10 * times, p90: p90 * times })
  }
  return [lane.name, ROLES[lane.role], spreadText(took), digits(microseconds(lane.host).median), rate, share]
}

function workloadPart({ id, title, lanes }: GpuWorkload): string {
  const limit = lanes.find(({ role }) => role === 'limit')
  const head = ['', '', 'microseconds (spread)', 'host', 'rate', limit === undefined ? '' : `share of ${limit.name}`]
  return [
    `### ${id}: ${title}`,
    tableOf(
      head,
      lanes.map(lane => laneRow(lane, limit)),
    ),
  ].join('\n\n')
}

const NOTHING = `Nothing has run on a GPU: no number on this page is from a GPU. These are the targets. \`run.sh bench\` of the bundle measures them
([docs/cuda.md](../docs/cuda.md)), and \`npm run bench:cuda -- results.json\` writes the results into this section.`

const HOW = `Times are measured between two events of the GPU, which was kept busy until everything between them was enqueued; *host* is
the time in which the host enqueues the work. Rounds of all lanes of a program take turns, and so do the programs. Rates count the bytes
that must be read and written, for attention K and V read once; a *copy* is the driver's, from device to device, of the same bytes in the same run.`

export function gpuSection(results: GpuResults | undefined): string {
  if (results === undefined || results.workloads.length === 0)
    return [HEADING, NOTHING, targetsTable(undefined)].join('\n\n')
  const { machines, turns, rounds, workloads, skipped, failed } = results
  const left = [
    ...skipped.map(({ id, skipped: why }) => `- \`${id}\`: ${why}`),
    ...failed.map(({ id, error }) => `- \`${id}\` **failed**: ${error}`),
  ]
  return [
    HEADING,
    `Written by \`npm run bench:cuda\`. ${turns} turns of ${rounds} rounds; medians, with the spread from the lowest tenth of the rounds to the highest.\n${HOW}`,
    machines.map(({ device, details }) => `- ${[device, ...details].join(', ')}`).join('\n'),
    targetsTable(results),
    ...workloads.map(workloadPart),
    ...(left.length > 0 ? [`### Not measured on a GPU\n\n${left.join('\n')}`] : []),
  ].join('\n\n')
}

/** Returns the page with this GPU section, in place of its old one or at the end. */
export function withSection(page: string, section: string): string {
  const start = page.indexOf(`${HEADING}\n`)
  if (start < 0) return `${page.trimEnd()}\n\n${section}\n`
  const next = page.indexOf('\n## ', start + 1)
  const rest = next < 0 ? '' : `\n${page.slice(next)}`
  return `${page.slice(0, start)}${section}${rest === '' ? '\n' : rest}`
}
