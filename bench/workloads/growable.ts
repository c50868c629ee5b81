// Measures single-token appends to an empty cache, through the TypeScript API.
import { KvCache } from 'kvtide'

import { workloadOf, type Workload } from '../report/report.js'
import { lane, measure, type Contestant } from '../../lib/cli/rounds.js'
import { BareRows, HEAD_DIM, HEADS, tokens } from './rows.js'

const step = tokens(1)

function ours(name: string, initialCapacity: number, count: number): Contestant {
  let cache: KvCache | undefined
  return lane(
    'ours',
    name,
    count,
    () => {
      cache = new KvCache({ batchSize: 1, numKvHeads: HEADS, initialCapacity, maxSeqLen: count, headDim: HEAD_DIM })
      for (let token = 0; token < count; token++) cache.update(step, step)
    },
    { after: () => cache?.dispose() },
  )
}

/** A program without a cache: allocates a longer array for K and for V at each step. */
function concatenating(name: string, count: number): Contestant {
  return lane('baseline', name, count, () => {
    let held = new BareRows(0)
    for (let token = 0; token < count; token++) {
      const longer = new BareRows(token + 1)
      longer.write(0, held.parts[0])
      longer.write(token, step.data)
      held = longer
    }
  })
}

function bare(name: string, count: number): Contestant {
  return lane('limit', name, count, () => {
    const rows = new BareRows(count)
    for (let token = 0; token < count; token++) rows.write(token, step.data)
  })
}

export async function growable(count: number, rounds: number): Promise<Workload> {
  const [growing, roomy, written] = ['kvtide, growing', 'kvtide, preallocated', 'bare rows, preallocated']
  const first = Math.min(count, 128)
  const concatenated = `concatenating, first ${first}`
  const measured = await measure(
    [ours(growing, 256, count), ours(roomy, count, count), concatenating(concatenated, first), bare(written, count)],
    rounds,
  )
  const title = `TypeScript: growable, ${count} single-token updates from empty, f32`
  return workloadOf('js-growable', title, 'update', measured, [
    {
      id: 'js-growable/ours-over-bare',
      says: 'kvtide / bare rows, both preallocated',
      over: roomy,
      under: written,
      toReach: 'less',
    },
    {
      id: 'js-growable/growing-over-roomy',
      says: 'kvtide growing / preallocated',
      over: growing,
      under: roomy,
      toReach: 'less',
    },
    {
      id: 'js-growable/concatenating-over-ours',
      says: `concatenating the first ${first} / kvtide growing`,
      over: concatenated,
      under: growing,
      toReach: 'more',
    },
  ])
}
