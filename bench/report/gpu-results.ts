// What bench/cuda and its peers have measured on a GPU: the results.json that `run.sh bench` of the bundle writes.
import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import { ratioOf, spreadOf, type Spread } from './spread.js'

/** Where the results lie that the page shows. */
export const RECORDED: string = fileURLToPath(new URL('../cuda/results.json', import.meta.url))

/** One way to do a workload, with every round: nanoseconds of one piece of work. */
export interface GpuLane {
  readonly name: string
  readonly role: 'ours' | 'peer' | 'limit'
  /** Bytes that have to be read and written; multiplications and additions: what rates are made of. */
  readonly bytes: number | null
  readonly flops: number | null
  readonly nanoseconds: readonly number[]
  /** Until the work was enqueued. */
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

const isText = (value: unknown): boolean => typeof value === 'string'
const isAmount = (value: unknown): boolean => value === null || (typeof value === 'number' && value > 0)
const areTimes = (value: unknown): boolean => Array.isArray(value) && value.length > 0 && value.every(time => typeof time === 'number' && time > 0)

/** The parts of a list, each an object. */
function listed(value: unknown, where: string): Record<string, unknown>[] {
  const isList = Array.isArray(value) && value.every(of => typeof of === 'object' && of !== null)
  if (!isList) throw new TypeError(`${where}: expected a list of objects`)
  return value as Record<string, unknown>[]
}

function checkLane(lane: Record<string, unknown>, where: string): void {
  const checks: Readonly<Record<string, (value: unknown) => boolean>> = {
    name: isText,
    role: role => ['ours', 'peer', 'limit'].includes(role as string),
    bytes: isAmount,
    flops: isAmount,
    nanoseconds: areTimes,
    host: areTimes,
  }
  for (const [key, holds] of Object.entries(checks)) {
    if (!holds(lane[key])) throw new TypeError(`${where}.${key}: ${JSON.stringify(lane[key])} is not what bench/cuda writes`)
  }
}

/** Results as they were written; others are refused with the place that differs. */
export function checkResults(value: unknown): GpuResults {
  const [results] = listed([value], 'results') as [Record<string, unknown>]
  for (const key of ['turns', 'rounds']) {
    const count = results[key]
    if (!Number.isInteger(count) || (count as number) < 1) throw new TypeError(`${key}: ${JSON.stringify(count)}, expected a whole number above 0`)
  }
  for (const key of ['machines', 'skipped', 'failed']) listed(results[key], key)
  for (const [index, { id, title, lanes }] of listed(results['workloads'], 'workloads').entries()) {
    const where = `workloads[${index}]`
    if (!isText(id) || !isText(title)) throw new TypeError(`${where}: expected an id and a title`)
    for (const [at, lane] of listed(lanes, `${where}.lanes`).entries()) checkLane(lane, `${where}.lanes[${at}]`)
  }
  return results as unknown as GpuResults
}

/** The results in a file; without one, nothing has run. */
export function readResults(file: string = RECORDED): GpuResults | undefined {
  return existsSync(file) ? checkResults(JSON.parse(readFileSync(file, 'utf8'))) : undefined
}

/** The lane of this name; nothing where it was not measured. */
export function gpuLane(results: GpuResults, workload: string, name: string): GpuLane | undefined {
  return results.workloads.find(({ id }) => id === workload)?.lanes.find(lane => lane.name === name)
}

/** GB/s, or TFLOP/s. */
export function rateOf({ bytes, flops }: GpuLane, nanoseconds: number): { readonly value: number; readonly unit: string } | undefined {
  if (flops !== null) return { value: flops / nanoseconds / 1000, unit: 'TFLOP/s' }
  return bytes === null ? undefined : { value: bytes / nanoseconds, unit: 'GB/s' }
}

/** How many times as long one lane takes as another. Rounds of one turn lie next to each other. */
export function timesOf(over: GpuLane, under: GpuLane): Spread {
  const rounds = Math.min(over.nanoseconds.length, under.nanoseconds.length)
  return ratioOf(over.nanoseconds.slice(0, rounds), under.nanoseconds.slice(0, rounds))
}

/** The rate of a lane over that of another: the same work a byte, or an operation. */
export function shareOf(lane: GpuLane, limit: GpuLane): Spread | undefined {
  const [own, limits] = lane.flops === null && limit.flops === null ? [lane.bytes, limit.bytes] : [lane.flops, limit.flops]
  if (own === null || limits === null) return undefined
  const { median, p10, p90 } = timesOf(limit, lane)
  const amounts = own / limits
  return { median: median * amounts, p10: p10 * amounts, p90: p90 * amounts }
}

/** Microseconds. */
export function microseconds(lane: GpuLane, of: 'nanoseconds' | 'host' = 'nanoseconds'): Spread {
  return spreadOf(lane[of].map(time => time / 1000))
}
