// What a one-token append costs at a small and at a large window, in one run, round by round in turn.
//
//   npm run bench
//
// Prints the median of all rounds and the spread (10th to 90th percentile), and the ratio of the medians.
import { RotatingKvCache, type HostTensor } from 'kvtide'

const HEADS = 8
const DIM = 128
const WINDOWS = [512, 4096, 32768]
const ROUNDS = 41

function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] as number
}

function token(): HostTensor {
  return { data: new Float32Array(HEADS * DIM).fill(1), shape: [1, HEADS, 1, DIM] }
}

function filled(window: number): RotatingKvCache {
  const cache = new RotatingKvCache({ maxSeqLen: window, capacitySeqLen: window })
  const data = new Float32Array(HEADS * window * DIM)
  cache.append({ data, shape: [1, HEADS, window, DIM] }, { data, shape: [1, HEADS, window, DIM] })
  return cache
}

const caches = WINDOWS.map(window => ({ window, cache: filled(window), nanoseconds: [] as number[] }))
const [k, v] = [token(), token()]

for (let round = 0; round < ROUNDS; round++) {
  for (const { window, cache, nanoseconds } of caches) {
    // A round is one full turn through the slack, so that each has exactly one compaction.
    const steps = Math.max(window / 4, 64)
    const start = process.hrtime.bigint()
    for (let step = 0; step < steps; step++) cache.append(k, v)
    nanoseconds.push(Number(process.hrtime.bigint() - start) / steps)
  }
}

const rows = caches.map(({ window, nanoseconds }) => ({
  window,
  'ns per token': Math.round(percentile(nanoseconds, 0.5)),
  '10 %': Math.round(percentile(nanoseconds, 0.1)),
  '90 %': Math.round(percentile(nanoseconds, 0.9)),
  'times window 512': Number((percentile(nanoseconds, 0.5) / percentile(caches[0]?.nanoseconds ?? [], 0.5)).toFixed(2)),
}))
console.log(`RotatingKvCache, one token of K and V (f32, ${HEADS} heads, ${DIM} dims), through the TypeScript API`)
console.table(rows)
