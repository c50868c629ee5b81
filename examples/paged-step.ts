// What one decode step costs from JavaScript: K and V of one token each for 8 sequences and 32 layers, with 1 head of 8 dims, so
// that bytes do not hide the bookkeeping. The same call in Rust: cargo run --release -p kvtide-tensor --example paged_step
//
//   npx tsx examples/paged-step.ts
import { PagedKvCache } from 'kvtide'

const LAYERS = 32
const SEQUENCES = 8
const DIM = 8
const STEPS = 1024
const ROUNDS = 41

function round(): number {
  using cache = new PagedKvCache({ capacity: (SEQUENCES * STEPS) / 16, numLayers: LAYERS, numKvHeads: 1, headDim: DIM })
  const sequences = Array.from({ length: SEQUENCES }, () => cache.createSequence())
  const token = { data: new Float32Array(LAYERS * SEQUENCES * DIM).fill(1), shape: [LAYERS, 1, SEQUENCES, DIM] }
  const start = process.hrtime.bigint()
  for (let step = 0; step < STEPS; step++) cache.append(sequences, token, token)
  return Number(process.hrtime.bigint() - start) / STEPS / 1000
}

const times = Array.from({ length: ROUNDS }, round).toSorted((a, b) => a - b)
const shown = [times[ROUNDS >> 1], times[0]].map(time => `${(time as number).toFixed(2)} µs`)
console.log(`a step of ${LAYERS} layers x ${SEQUENCES} sequences: ${shown[0]}, fastest ${shown[1]}`)
