// Reports the cost of pool calls as the pool grows, as measured by bench/pool: a section of bench/RESULTS.md, and
// the panels of bench/pool.svg.
import type { Panel } from './chart.js'
import { ratioOf, spreadOf, type Spread } from '../../lib/cli/spread.js'
import { digits, spreadText, tableOf } from './table.js'

/** Calls that belong together, and the random read that they are compared with. */
interface Group {
  readonly title: string
  readonly calls: readonly string[]
  /** A random read in memory as large as the bookkeeping of these calls. */
  readonly read: string
  /** The target in nanoseconds: each call must stay below it, at every size. */
  readonly goal?: number
}

export const GROUPS: readonly Group[] = [
  { title: 'BlockPool', calls: ['allocate', 'free'], read: 'random read of BlockPool', goal: 100 },
  { title: 'PagedKvCache, prompts', calls: ['match', 'evict', 'insert', 'drop'], read: 'random read of PagedKvCache' },
  {
    title: 'PagedKvCache, sequences',
    calls: ['ensureCapacity', 'fork', 'snapshot'],
    read: 'random read of PagedKvCache',
  },
]

/** The report: nanoseconds by size and round. */
export interface Measured {
  readonly rounds: number
  readonly blocks: readonly number[]
  /** Bytes of bookkeeping at each size, of `BlockPool` and of `PagedKvCache`. */
  readonly bytes: readonly (readonly [number, number])[]
  readonly calls: readonly { readonly name: string; readonly per: string; readonly nanoseconds: Rounds }[]
  readonly load: string
}

type Rounds = readonly (readonly number[])[]

interface Call {
  readonly name: string
  readonly per: string
  readonly rounds: Rounds
  readonly sizes: readonly Spread[]
  readonly ratio: Spread
}

function callOf(measured: Measured, name: string): Call {
  const found = measured.calls.find(call => call.name === name)
  if (found?.nanoseconds.length !== measured.blocks.length)
    throw new RangeError(`no ${name} at ${measured.blocks.length} sizes`)
  const { per, nanoseconds: rounds } = found
  return { name, per, rounds, sizes: rounds.map(spreadOf), ratio: ratioOf(rounds.at(-1) ?? [], rounds[0] ?? []) }
}

function callsOf(measured: Measured, group: Group): { readonly calls: readonly Call[]; readonly read: Call } {
  return { calls: group.calls.map(name => callOf(measured, name)), read: callOf(measured, group.read) }
}

/** Returns the extra cost of a call at each size over the smallest size, in random reads at that size. */
export function growthOf(call: Rounds, read: Rounds): Spread[] {
  const [least = [], ...larger] = call
  return larger.map((rounds, index) =>
    ratioOf(
      rounds.map((time, round) => time - (least[round] as number)),
      read[index + 1] ?? [],
    ),
  )
}

/** Returns the calls of each group at every size, next to the random reads at that size. */
export function poolPanels(measured: Measured): Panel[] {
  return GROUPS.map(group => {
    const { calls, read } = callsOf(measured, group)
    const lanes = [read, ...calls].flatMap(({ name, per, sizes }) =>
      sizes.map((size, index) => ({
        name: `${name}, ${digits(measured.blocks[index] ?? Number.NaN)}`,
        role: per === 'read' ? ('limit' as const) : ('ours' as const),
        ...size,
      })),
    )
    const units = calls.map(({ name, per }) => `${name} per ${per}`)
    return { title: group.title, subtitle: `by number of blocks in the pool: ${units.join(', ')}`, lanes }
  })
}

/** Formats with one decimal, without a negative zero. */
const reads = ({ median }: Spread): string => (Math.round(median * 10) / 10 + 0).toFixed(1)

const cells = ({ name, per, sizes, ratio }: Call): string[] => [name, per, ...sizes.map(spreadText), spreadText(ratio)]

/** Returns the rows of the table; groups with the same read share its row. */
function rowsOf(measured: Measured): string[][] {
  const rows = GROUPS.flatMap(group => {
    const { calls, read } = callsOf(measured, group)
    return [
      [...cells(read), ''],
      ...calls.map(call => [...cells(call), growthOf(call.rounds, read.rounds).map(reads).join(', ')]),
    ]
  })
  return rows.filter(([name], index) => rows.findIndex(([other]) => other === name) === index)
}

/** Says whether a group's goal is met, with the random read for comparison. */
function goalOf(measured: Measured, group: Group): string[] {
  const { calls, read } = callsOf(measured, group)
  const { goal } = group
  if (goal === undefined) return []
  const slow = calls.flatMap(({ name, sizes }) =>
    sizes.flatMap(({ median }, index) => {
      if (median < goal) return []
      const [blocks, beside] = [measured.blocks[index] ?? Number.NaN, read.sizes[index]?.median ?? Number.NaN]
      return [
        `${name} takes ${digits(median)} at ${digits(blocks)} blocks, where one random read takes ${digits(beside)}`,
      ]
    }),
  )
  const names = calls.map(({ name }) => name).join(' and ')
  return [
    `Under ${digits(goal)} ns for each of ${names}, at every size: ${slow.length === 0 ? 'met.' : `**not met**: ${slow.join('; ')}.`}`,
  ]
}

const mebibytes = (bytes: number): string => `${digits(bytes / 2 ** 20)} MiB`

export function poolSection(measured: Measured): string {
  const sizes = measured.blocks.map(digits)
  const shared =
    Number(measured.load) > 1 ? ', so the machine was shared, and spreads are wider than on an idle one' : ''
  const [ours, paged] = measured.bytes.at(-1) ?? [0, 0]
  return [
    '## The pool as it grows',
    '![Cost of pool calls from 1,000 blocks to 1,000,000, next to one random read of memory](pool.svg)',
    `Nanoseconds, medians of ${measured.rounds} rounds, with the spread from their lowest tenth to the highest; load before the run: ${measured.load}${shared}.
Blocks are in random order, each prompt has 64 blocks of 16 tokens, and all other blocks are accessed between two accesses to a block. So a call in a
large pool waits for memory, which is not its own work. A *random read* is one read of memory as large as the bookkeeping of
these blocks (at ${sizes.at(-1) ?? ''} blocks ${mebibytes(ours)} for \`BlockPool\`, ${mebibytes(paged)} for the others), which must end before the next
one begins. The last column is the extra cost of a call at ${sizes.slice(1).join(', ')} blocks over ${sizes[0] ?? ''}, in such reads at that size: a call
in O(1) accesses a bounded number of places, however large the pool is.`,
    `\`match\` hashes, looks up, compares and holds; \`evict\` gives a new sequence blocks that held cached prefixes; \`insert\` stores
a prompt's tokens, hashes them and puts their keys in the index; \`drop\` frees the blocks of that
sequence, which were just written.`,
    tableOf(['', 'per', ...sizes, 'ratio', 'growth in reads'], rowsOf(measured)),
    ...GROUPS.flatMap(group => goalOf(measured, group)),
  ].join('\n\n')
}
