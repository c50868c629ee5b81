// Measures steps of many long sequences for an engine: their block tables in typed arrays, against filling the arrays by hand.
//
// Tokens have one head of one element: the workload measures the bookkeeping and the native boundary, not copies. The sequences are forks of one, so
// their blocks take no memory; their tables have full length. The cost of a step without tables is a lane of its own.
import { PagedKvCache, type StepBatch } from 'kvtide'

import { excessOf, workloadOf, type Workload } from '../report/report.js'
import { lane, measure, type Contestant } from '../../lib/cli/rounds.js'

const BLOCK = 16

/** Steps of a round: each sequence gets a token in each of them, and two new blocks. */
const STEPS = 32

/** The most that the tables of 1,000 sequences may cost: the time of copying whole rows. */
const MICROSECONDS_MAX = 80

interface Sizes {
  readonly sequences: number
  readonly blocks: number
}

/** Runs steps over forks of one sequence; `begin` opens each step. */
function stepping(
  name: string,
  role: 'ours' | 'limit',
  { sequences, blocks }: Sizes,
  begin: (cache: PagedKvCache, batch: StepBatch, of: Float64Array) => ReturnType<PagedKvCache['beginStep']>,
): Contestant {
  const cache = new PagedKvCache({
    capacity: blocks + 3 * sequences,
    blockSize: BLOCK,
    numLayers: 1,
    numKvHeads: 1,
    headDim: 1,
  })
  const first = cache.openSequence()
  const prompt = BLOCK * blocks - STEPS
  const rows = { data: new Float32Array(prompt), shape: [1, 1, prompt, 1] }
  first.append({ k: rows, v: rows })
  const batch = cache.stepBatch({ maxSequences: sequences, maxBlocks: blocks, maxTokens: sequences })
  const token = { data: new Float32Array(sequences), shape: [1, sequences, 1] }
  let forks = new Float64Array(0)
  const run = (): void => {
    const step = begin(cache, batch, forks)
    step.write(0, token, token)
    step.commit()
  }
  return lane(
    role,
    name,
    STEPS - 1,
    () => {
      for (let done = 1; done < STEPS; done++) run()
    },
    {
      before() {
        forks = Float64Array.from({ length: sequences }, () => first.fork().id)
        run() // writes every row; later steps write only changes
      },
      after() {
        for (const fork of forks) cache.dropSequence(fork)
      },
    },
  )
}

/** Writes the same numbers into the same arrays, with plain loops over existing tables. */
function byHand(name: string, role: 'peer' | 'limit', { sequences, blocks }: Sizes, isWhole: boolean): Contestant {
  const tables = Array.from({ length: sequences }, (_, sequence) =>
    Int32Array.from({ length: blocks }, (_of, block) => sequence + block),
  )
  const [blockTables, queryOffsets] = [new Int32Array(sequences * blocks), new Int32Array(sequences + 1)]
  const [slotMapping, positions, lengths] = [0, 1, 2].map(() => new Int32Array(sequences)) as [
    Int32Array,
    Int32Array,
    Int32Array,
  ]
  return lane(role, name, STEPS - 1, () => {
    for (let done = 1; done < STEPS; done++) {
      const position = BLOCK * blocks - STEPS + done
      const place = Math.floor(position / BLOCK)
      for (let sequence = 0; sequence < sequences; sequence++) {
        const table = tables[sequence] as Int32Array
        if (isWhole) blockTables.set(table, sequence * blocks)
        else if (position % BLOCK === 0) blockTables[sequence * blocks + place] = table[place] as number
        slotMapping[sequence] = (table[place] as number) * BLOCK + (position % BLOCK)
        positions[sequence] = position
        lengths[sequence] = position + 1
        queryOffsets[sequence + 1] = sequence + 1
      }
    }
  })
}

export async function prepare(sizes: Sizes, rounds: number): Promise<Workload> {
  const contestants = [
    stepping('kvtide, prepareStep', 'ours', sizes, (cache, batch, sequences) =>
      cache.prepareStep(batch, { sequences }),
    ),
    stepping('kvtide, beginStep', 'limit', sizes, (cache, _, sequences) => cache.beginStep({ sequences })),
    byHand('loops, whole rows', 'peer', sizes, true),
    byHand('loops, what changed', 'limit', sizes, false),
  ]
  const measured = await measure(contestants, rounds)
  const title = `TypeScript: a step of ${sizes.sequences} sequences of ${sizes.blocks} blocks, begun, written and committed`
  const [over, under] = ['kvtide, prepareStep', 'kvtide, beginStep']
  const workload = workloadOf('js-prepare', title, 'step', measured, [])
  // Loops by hand compare only with the tables' share of the time, not with the step.
  return {
    ...workload,
    claims: excessOf(measured, {
      id: 'js-prepare/over-begin',
      says: 'prepareStep / a step without tables',
      over,
      under,
      toReach: { atMost: MICROSECONDS_MAX },
    }),
  }
}
