// Measures a decode step of a cache whose store is unreachable, against one without tiers.
//
// A step writes a token of each sequence in all layers, attends to them, is committed, and ends after one turn of the event loop, in which blocks
// are copied for offloading. Every step is timed. The lanes take turns. In each turn a lane runs enough steps to fill two blocks of each sequence, and
// some more, so that its background work slows down its own next steps and not those of other lanes. The rest of the background work is awaited
// outside the timing. Then the lane's sequences begin again with other tokens, so that there are new blocks to offload.
import { setImmediate as turn } from 'node:timers/promises'

import { PagedKvCache, RedisStore } from 'kvtide'

import { claimOf, workloadOf, type Claim, type Measured, type Skipped, type Workload } from '../report/report.js'
import { missing, Redis } from '../../scripts/servers/redis.js'
import { normal, SIZES } from './tiers.js'

const SEQUENCES = 8
const QUERY_HEADS = 32
const { numLayers, numKvHeads, headDim, blockSize } = SIZES

/** Steps from one beginning: each sequence fills two and a half blocks. */
const STEPS = 2.5 * blockSize

/** The time limit for the offload queue to empty after these steps. */
const FLUSH_MS = 500

/** The number of times that sequences begin again in a round; the reported tail latency is that of a round. */
const BEGINNINGS = 8

/** The state of the server while steps are timed. */
type Fate = 'live' | 'killed' | 'stopped'

interface Decoding {
  readonly name: string
  readonly begin: () => void
  readonly step: () => Promise<void>
  readonly rest: () => Promise<unknown>
  readonly end: () => Promise<void>
}

/** A cache with a past of `past` tokens for each sequence, from which forks begin. */
function decoding(name: string, past: number, cache: PagedKvCache, end: () => Promise<void>): Decoding {
  const bases = Array.from({ length: SEQUENCES }, () => cache.openSequence())
  const rows = { data: normal(numLayers * numKvHeads * past * headDim), shape: [numLayers, numKvHeads, past, headDim] }
  for (const base of bases)
    base.append({ k: rows, v: rows, tokens: Array.from({ length: past }, (_, at) => base.id * past + at) })
  const row = { data: normal(SEQUENCES * numKvHeads * headDim), shape: [numKvHeads, SEQUENCES, headDim] }
  const q = { data: normal(SEQUENCES * QUERY_HEADS * headDim), shape: [SEQUENCES, QUERY_HEADS, headDim] }
  let [sequences, token] = [bases.slice(0, 0), 1 << 20]
  return {
    name,
    begin: () => {
      for (const sequence of sequences) sequence.drop()
      sequences = bases.map(base => base.fork())
    },
    step: async () => {
      const tokens = sequences.map(() => (token += 1))
      const step = cache.beginStep({ sequences, tokens })
      for (let layer = 0; layer < numLayers; layer++) {
        step.write(layer, row, row)
        step.attend(layer, q)
      }
      step.commit()
      await turn()
    },
    rest: async () => cache.stats().tiers === undefined || cache.flush(FLUSH_MS),
    end,
  }
}

async function withStore(
  name: string,
  past: number,
  make: (tiers?: object) => PagedKvCache,
  fate: Fate,
): Promise<Decoding> {
  const redis = await Redis.start()
  const store = new RedisStore({ url: redis.url })
  const decoded = decoding(name, past, make({ store: { store } }), async () => {
    store.dispose()
    if (fate !== 'killed') await redis.stop()
  })
  // These steps make sure that the store is connected.
  decoded.begin()
  for (let step = 0; step < STEPS; step++) await decoded.step()
  if (fate === 'killed') await redis.stop()
  if (fate === 'stopped') await redis.signal('SIGSTOP')
  return decoded
}

/** Returns the tail latency of each round, so that it has a spread. */
function tails(of: Measured, share: number, rounds: number): Measured {
  const steps = of.nanoseconds.length / rounds
  const tail = (round: number): number =>
    of.nanoseconds.slice(round * steps, (round + 1) * steps).sort((a, b) => a - b)[Math.floor(share * steps)] as number
  return { ...of, nanoseconds: Array.from({ length: rounds }, (_, round) => tail(round)) }
}

export async function deadStore(
  past: number,
  rounds: number,
  beginnings: number = BEGINNINGS,
): Promise<Workload | Skipped> {
  const id = `js-dead-store-${past}`
  if (missing !== undefined) return { id, skipped: missing }
  const capacity = SEQUENCES * Math.ceil(past / blockSize + (2 * STEPS) / blockSize + 1)
  const make = (tiers?: object): PagedKvCache =>
    new PagedKvCache({
      capacity,
      ...SIZES,
      prefixKey: new Uint8Array(32).fill(7),
      ...(tiers === undefined ? {} : { tiers }),
    })
  const none = 'no tiers'
  const lanes = [
    decoding(none, past, make(), async () => {}),
    decoding(`${none}, again`, past, make(), async () => {}),
    await withStore('Redis', past, make, 'live'),
    await withStore('Redis, killed', past, make, 'killed'),
    await withStore('Redis, stopped', past, make, 'stopped'),
  ]
  const measured = lanes.map(({ name }): Measured & { nanoseconds: number[] } => ({
    name,
    role: name.startsWith(none) ? 'baseline' : 'ours',
    nanoseconds: [],
  }))
  for (let beginning = 0; beginning < 1 + rounds * beginnings; beginning++) {
    for (const at of lanes.keys()) {
      const index = (beginning + at) % lanes.length
      lanes[index]?.begin()
      await turn()
      for (let step = 0; step < STEPS; step++) {
        const start = performance.now()
        await lanes[index]?.step()
        if (beginning > 0) measured[index]?.nanoseconds.push((performance.now() - start) * 1e6)
      }
      await lanes[index]?.rest()
    }
  }
  for (const lane of lanes) await lane.end()
  const title = `TypeScript: a decode step of ${numLayers} layers and ${SEQUENCES} sequences of ${past} tokens, ${numKvHeads} heads of ${headDim}, f32, with a live store and a dead one`
  const claims = measured.slice(1).flatMap(({ name }): Claim[] => {
    const of = (share: 'p50' | 'p99', from: readonly Measured[], atMost: number): Claim =>
      claimOf(from, {
        id: `${id}/${name.replace(/, | /g, '-').toLowerCase()}-${share}`,
        says: `${share} of ${name} / ${none}`,
        over: name,
        under: none,
        toReach: { atMost },
      })
    return [
      of(
        'p50',
        measured.map(lane => tails(lane, 0.5, rounds)),
        1.05,
      ),
      of(
        'p99',
        measured.map(lane => tails(lane, 0.99, rounds)),
        1.05,
      ),
    ]
  })
  return { ...workloadOf(id, title, 'step', measured, []), claims }
}
