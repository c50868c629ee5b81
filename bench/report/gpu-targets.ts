// What is to be reached on a GPU, and whether a run has.
import { gpuLane, microseconds, shareOf, timesOf, type GpuLane, type GpuResults } from './gpu-results.js'
import type { Bound } from './report.js'
import type { Spread } from './spread.js'

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
