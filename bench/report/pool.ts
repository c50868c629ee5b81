// What the pool's calls cost as the pool grows, as crates/kvtide-core/benches/pool has measured it.
import { ratioOf, spreadOf, type Spread } from './spread.js'

/** Calls that belong together, and the random read that they are seen against. */
export interface Group {
  readonly title: string
  readonly calls: readonly string[]
  /** A read of memory as large as the bookkeeping of these calls. */
  readonly read: string
  /** Nanoseconds that each of the calls is to stay below, at every size. */
  readonly goal?: number
}

export const PROMPTS: Group = { title: 'PagedKvCache, prompts', calls: ['match', 'evict', 'insert', 'drop'], read: 'random read of PagedKvCache' }

export const GROUPS: readonly Group[] = [
  { title: 'BlockPool', calls: ['allocate', 'free'], read: 'random read of BlockPool', goal: 100 },
  PROMPTS,
  { title: 'PagedKvCache, sequences', calls: ['ensureCapacity', 'fork', 'snapshot'], read: 'random read of PagedKvCache' },
]

/** The report: nanoseconds by size and round. */
export interface Measured {
  readonly rounds: number
  /** Sizes of the pool. */
  readonly blocks: readonly number[]
  /** Bytes of bookkeeping at each size, of `BlockPool` and of `PagedKvCache`. */
  readonly bytes: readonly (readonly [number, number])[]
  readonly calls: readonly { readonly name: string; readonly per: string; readonly nanoseconds: Rounds }[]
  /** The machine's load before the run. */
  readonly load: string
}

/** Nanoseconds by size and round. */
type Rounds = readonly (readonly number[])[]

/** A call at every size. */
export interface Call {
  readonly name: string
  /** What the nanoseconds are for. */
  readonly per: string
  readonly rounds: Rounds
  readonly sizes: readonly Spread[]
  /** The largest size over the smallest. */
  readonly ratio: Spread
}

function callOf(measured: Measured, name: string): Call {
  const found = measured.calls.find(call => call.name === name)
  if (found?.nanoseconds.length !== measured.blocks.length) throw new RangeError(`no ${name} at ${measured.blocks.length} sizes`)
  const { per, nanoseconds: rounds } = found
  return { name, per, rounds, sizes: rounds.map(spreadOf), ratio: ratioOf(rounds.at(-1) ?? [], rounds[0] ?? []) }
}

/** The calls of a group, and its random read. */
export function callsOf(measured: Measured, group: Group): { readonly calls: readonly Call[]; readonly read: Call } {
  return { calls: group.calls.map(name => callOf(measured, name)), read: callOf(measured, group.read) }
}

/** What a call costs more at each size than at the smallest, in random reads at that size. */
export function growthOf(call: Rounds, read: Rounds): Spread[] {
  const [least = [], ...larger] = call
  return larger.map((rounds, index) => ratioOf(rounds.map((time, round) => time - (least[round] as number)), read[index + 1] ?? []))
}
