// The workloads run, at sizes that take a moment, and bare rows hold what the cache holds. Nothing here depends on a time.
import test from 'ava'

import { RotatingKvCache } from '../../index.js'
import { BareRows, HEAD_DIM, tokens } from '../workloads/rows.js'
import type { Skipped, Workload } from '../report/report.js'
import { deadStore } from '../workloads/dead-store.js'
import { growable } from '../workloads/growable.js'
import { paged } from '../workloads/paged.js'
import { pauses } from '../workloads/pauses.js'
import { prepare } from '../workloads/prepare.js'
import { rollback } from '../workloads/rollback.js'
import { rotating } from '../workloads/rotating.js'
import { routing } from '../workloads/routing.js'
import { bring } from '../workloads/tiers.js'
import { view } from '../workloads/view.js'

const ran: (Workload | Skipped)[] = [
  await rotating([64, 128, 256], 1),
  await growable(16, 1),
  await rollback(16, 1),
  await paged(32, 1),
  await prepare({ sequences: 3, blocks: 4 }, 1),
  await view(16, 1),
  await routing(160, 4, 1),
  await bring(32, 'f16', 1),
  await pauses(32, 1),
  await deadStore(16, 1, 4),
]
const workloads = ran.filter((of): of is Workload => !('skipped' in of))
for (const of of ran) if ('skipped' in of) console.warn(`SKIPPED ${of.id}: ${of.skipped}`)

test('every workload compares a cache of ours with something', t => {
  for (const { id, lanes, claims } of workloads) {
    t.true(lanes.some(({ role }) => role === 'ours') && lanes.some(({ role }) => role !== 'ours'), id)
    t.true(claims.length > 0, id)
    for (const claim of claims) t.true(claim.id.startsWith(`${id}/`), claim.id)
  }
})

test('no two ratios share an id', t => {
  const ids = workloads.flatMap(({ claims }) => claims.map(({ id }) => id))
  t.is(new Set(ids).size, ids.length)
})

test('a bare window that is shifted holds what the rotating cache holds', t => {
  using cache = new RotatingKvCache({ maxSeqLen: 4 })
  const rows = new BareRows(4)
  const full = tokens(4)
  cache.append(full, full)
  rows.write(0, full.data)
  const step = tokens(1)
  step.data.fill(7, HEAD_DIM)
  for (let token = 0; token < 3; token++) {
    cache.append(step, step)
    rows.shift()
    rows.write(3, step.data)
  }
  t.deepEqual(cache.currentData()?.k.toArray(), rows.parts[0])
  t.deepEqual(cache.currentData()?.v.toArray(), rows.parts[1])
})

test('a turn through the free slots has one compaction', t => {
  using cache = new RotatingKvCache({ maxSeqLen: 64 })
  const [full, step] = [tokens(64), tokens(1)]
  cache.append(full, full)
  for (let turn = 1; turn < 4; turn++) {
    for (let token = 0; token <= 64; token++) cache.append(step, step)
    t.is(cache.stats().compactions, turn)
  }
})
