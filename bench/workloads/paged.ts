// Measures writing and reading single tokens in pages, through the TypeScript API.
import { PagedKvCache } from 'kvtide'

import { workloadOf, type Workload } from '../report/report.js'
import { lane, measure, type Contestant } from '../../lib/cli/rounds.js'
import { BareRows, HEAD_DIM, HEADS, TOKEN, tokens } from './rows.js'

const BLOCK = 16
const step = tokens(1).data

function writing(count: number): Contestant {
  const cache = new PagedKvCache({
    capacity: Math.ceil(count / BLOCK),
    blockSize: BLOCK,
    numLayers: 1,
    numKvHeads: HEADS,
    headDim: HEAD_DIM,
  })
  let sequence = 0
  return lane(
    'ours',
    'kvtide, write',
    count,
    () => {
      for (let position = 0; position < count; position++) cache.writeKv(sequence, 0, position, step, step)
    },
    { before: () => (sequence = cache.createSequence()), after: () => cache.dropSequence(sequence) },
  )
}

function reading(count: number): Contestant {
  const cache = new PagedKvCache({
    capacity: Math.ceil(count / BLOCK),
    blockSize: BLOCK,
    numLayers: 1,
    numKvHeads: HEADS,
    headDim: HEAD_DIM,
  })
  const sequence = cache.createSequence()
  for (let position = 0; position < count; position++) cache.writeKv(sequence, 0, position, step, step)
  const [key, value] = [new Float32Array(TOKEN), new Float32Array(TOKEN)]
  return lane('ours', 'kvtide, read', count, () => {
    for (let position = 0; position < count; position++) cache.readKvInto(sequence, 0, position, key, value)
  })
}

/** The rows of one token in blocks of a plain array. */
function bare(count: number): Contestant {
  const blocks = Array.from({ length: Math.ceil(count / BLOCK) }, () => new BareRows(BLOCK))
  return lane('limit', 'bare rows, write', count, () => {
    for (let position = 0; position < count; position++)
      blocks[Math.floor(position / BLOCK)]?.write(position % BLOCK, step)
  })
}

export async function paged(count: number, rounds: number): Promise<Workload> {
  const measured = await measure([writing(count), reading(count), bare(count)], rounds)
  const title = `TypeScript: paged, single tokens in blocks of ${BLOCK}, ${count} tokens, f32`
  return workloadOf('js-paged', title, 'token', measured, [
    {
      id: 'js-paged/write-over-bare',
      says: 'kvtide write / bare rows',
      over: 'kvtide, write',
      under: 'bare rows, write',
      toReach: 'less',
    },
    {
      id: 'js-paged/read-over-bare',
      says: 'kvtide read / bare rows write',
      over: 'kvtide, read',
      under: 'bare rows, write',
      toReach: 'less',
    },
  ])
}
