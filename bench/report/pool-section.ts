// The pool's part of bench/RESULTS.md.
import { callsOf, GROUPS, growthOf, type Call, type Group, type Measured } from './pool.js'
import type { Spread } from './spread.js'
import { digits, spreadText, tableOf } from './table.js'

/** One digit behind the point, and no zero below zero. */
const reads = ({ median }: Spread): string => (Math.round(median * 10) / 10 + 0).toFixed(1)

const cells = ({ name, per, sizes, ratio }: Call): string[] => [name, per, ...sizes.map(spreadText), spreadText(ratio)]

/** Groups with the same read share its row. */
function rowsOf(measured: Measured): string[][] {
  const rows = GROUPS.flatMap(group => {
    const { calls, read } = callsOf(measured, group)
    return [[...cells(read), ''], ...calls.map(call => [...cells(call), growthOf(call.rounds, read.rounds).map(reads).join(', ')])]
  })
  return rows.filter(([name], index) => rows.findIndex(([other]) => other === name) === index)
}

/** Whether a group's goal is met, and next to what. */
function goalOf(measured: Measured, group: Group): string[] {
  const { calls, read } = callsOf(measured, group)
  const { goal } = group
  if (goal === undefined) return []
  const slow = calls.flatMap(({ name, sizes }) =>
    sizes.flatMap(({ median }, index) => {
      if (median < goal) return []
      const [blocks, beside] = [measured.blocks[index] ?? Number.NaN, read.sizes[index]?.median ?? Number.NaN]
      return [`${name} takes ${digits(median)} at ${digits(blocks)} blocks, where one random read takes ${digits(beside)}`]
    }),
  )
  const names = calls.map(({ name }) => name).join(' and ')
  return [`Under ${digits(goal)} ns for each of ${names}, at every size: ${slow.length === 0 ? 'met.' : `**not met**: ${slow.join('; ')}.`}`]
}

const mebibytes = (bytes: number): string => `${digits(bytes / 2 ** 20)} MiB`

/** The chart, the table, and what they say. */
export function poolSection(measured: Measured): string {
  const sizes = measured.blocks.map(digits)
  const shared = Number(measured.load) > 1 ? ', so the machine was shared, and spreads are wider than on a quiet one' : ''
  const [ours, paged] = measured.bytes.at(-1) ?? [0, 0]
  return [
    '## The pool as it grows',
    '![What the calls of the pool cost from 1,000 blocks to 1,000,000, beside one random read of memory](pool.svg)',
    `Nanoseconds, medians of ${measured.rounds} rounds, with the spread from their lowest tenth to the highest; load before the run: ${measured.load}${shared}.
Blocks lie anywhere, each prompt has 64 of 16 tokens, and between two looks at a block lie those at all others. So a call of a large
pool waits for memory, which is no work of its own. A *random read* is one read of memory as large as the bookkeeping of
these blocks (at ${sizes.at(-1) ?? ''} blocks ${mebibytes(ours)} for \`BlockPool\`, ${mebibytes(paged)} for the others), which has to end before the next
one begins. The last column is what a call costs more at ${sizes.slice(1).join(', ')} blocks than at ${sizes[0] ?? ''}, in such reads at that size: a call
that is O(1) goes to a bounded number of places, however large the pool is.`,
    `\`match\` hashes, looks up, compares and holds; \`evict\` gives a new sequence blocks that others are cached in; \`insert\` writes down
a prompt's tokens, hashes them and puts their keys in the index; \`drop\` gives the blocks of that
sequence back, which were written just now.`,
    tableOf(['', 'per', ...sizes, 'ratio', 'growth in reads'], rowsOf(measured)),
    ...GROUPS.flatMap(group => goalOf(measured, group)),
  ].join('\n\n')
}
