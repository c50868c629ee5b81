// Measures speculative decoding through the TypeScript API: draft five tokens, keep two.
import { RollbackCache } from 'kvtide'

import { workloadOf, type Workload } from '../report/report.js'
import { lane, measure, type Contestant } from '../../lib/cli/rounds.js'
import { BareRows, tokens } from './rows.js'

const DRAFT = 5
const KEPT = 2
const OPERATIONS = 256

const draft = tokens(DRAFT)

function ours(length: number): Contestant {
  const cache = new RollbackCache()
  const full = tokens(length)
  cache.append(full, full)
  cache.commit()
  const start = cache.snapshot()
  const path = Int32Array.from({ length: KEPT }, (_, index) => index)
  return lane(
    'ours',
    'kvtide',
    OPERATIONS,
    () => {
      for (let index = 0; index < OPERATIONS; index++) {
        cache.append(draft, draft)
        cache.acceptPath(path)
      }
    },
    {
      // Every round starts at the same length.
      after: () => cache.rollback(start),
    },
  )
}

function bare(length: number): Contestant {
  const rows = new BareRows(length + DRAFT + KEPT * OPERATIONS)
  return lane('limit', 'bare rows', OPERATIONS, () => {
    for (let index = 0; index < OPERATIONS; index++) rows.write(length + KEPT * index, draft.data)
  })
}

export async function rollback(length: number, rounds: number): Promise<Workload> {
  const measured = await measure([ours(length), bare(length)], rounds)
  const title = `TypeScript: rollback, draft ${DRAFT} and keep ${KEPT} at ${length} tokens, f32`
  return workloadOf('js-rollback', title, 'round of drafting', measured, [
    {
      id: 'js-rollback/ours-over-bare',
      says: 'kvtide / bare rows',
      over: 'kvtide',
      under: 'bare rows',
      toReach: 'less',
    },
  ])
}
