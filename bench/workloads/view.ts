// Measures reading a view of a cache into one's own array.
import { KvCache, RotatingKvCache } from 'kvtide'

import { workloadOf, type Workload } from '../report/report.js'
import { lane, measure, type Contestant } from '../../lib/cli/rounds.js'
import { HEAD_DIM, HEADS, TOKEN, tokens } from './rows.js'

/** K of a cache whose buffer is full, in contiguous memory. */
function whole(count: number, out: Float32Array): Contestant {
  const cache = new KvCache({
    batchSize: 1,
    numKvHeads: HEADS,
    initialCapacity: count,
    maxSeqLen: count,
    headDim: HEAD_DIM,
  })
  const full = tokens(count)
  const { k } = cache.update(full, full)
  return lane('ours', 'kvtide, readInto, one piece', 1, () => void k.readInto(out))
}

/** K of a window with sinks: two runs of slots, each contiguous per head. */
function runs(count: number, out: Float32Array): Contestant {
  const sinks = 4
  const cache = new RotatingKvCache({ maxSeqLen: count - sinks, sinks })
  const [full, step] = [tokens(count), tokens(1)]
  cache.append(full, full)
  const { k } = cache.append(step, step)
  return lane('ours', 'kvtide, readInto, sinks and window', 1, () => void k.readInto(out))
}

function copied(count: number, out: Float32Array): Contestant {
  const { data } = tokens(count)
  return lane('limit', 'Float32Array.set of the same bytes', 1, () => out.set(data))
}

export async function view(count: number, rounds: number): Promise<Workload> {
  const out = new Float32Array(count * TOKEN)
  const measured = await measure([whole(count, out), runs(count, out), copied(count, out)], rounds)
  const limit = 'Float32Array.set of the same bytes'
  return workloadOf('js-view', `TypeScript: reading K of ${count} tokens, f32`, 'view', measured, [
    {
      id: 'js-view/whole-over-set',
      says: 'readInto of one piece / set',
      over: 'kvtide, readInto, one piece',
      under: limit,
      toReach: 'less',
    },
    {
      id: 'js-view/runs-over-set',
      says: 'readInto of sinks and window / set',
      over: 'kvtide, readInto, sinks and window',
      under: limit,
      toReach: 'less',
    },
  ])
}
