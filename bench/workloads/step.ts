// Measures one decode step of many layers and sequences through the addon, against the same call in Rust.
//
// Tokens have one head of 8 dims: the workload measures the bookkeeping and the native boundary, not copies.
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createInterface } from 'node:readline'

import { PagedKvCache } from 'kvtide'

import { excessOf, workloadOf, type Skipped, type Workload } from '../report/report.js'
import { nextAnswer, type Child } from '../run/apart.js'
import { lane, measure, pause, type Contestant } from '../../lib/cli/rounds.js'
import { PEERS } from '../run/suites.js'

const LAYERS = 32
const SEQUENCES = 8
const DIM = 8
const BLOCK = 16

/** The most that a call from JavaScript may cost more than the same call in Rust. */
const MICROSECONDS_MAX = 3

function ours(name: string, steps: number): Contestant {
  const token = { data: new Float32Array(LAYERS * SEQUENCES * DIM).fill(1), shape: [LAYERS, 1, SEQUENCES, DIM] }
  const make = (): PagedKvCache =>
    new PagedKvCache({
      capacity: SEQUENCES * Math.ceil(steps / BLOCK),
      blockSize: BLOCK,
      numLayers: LAYERS,
      numKvHeads: 1,
      headDim: DIM,
    })
  let cache = make()
  let sequences: readonly number[] = []
  return lane(
    'ours',
    name,
    steps,
    () => {
      for (let done = 0; done < steps; done++) cache.append(sequences, token, token)
    },
    {
      before() {
        cache.dispose()
        cache = make()
        sequences = Array.from({ length: SEQUENCES }, () => cache.createSequence())
      },
    },
  )
}

/** Runs rounds of the same work in Rust: each is requested by a line and answered with its nanoseconds (bench/peers/src/paged_step.rs). */
function rustSteps(steps: number): Child | undefined {
  if (!existsSync(PEERS)) return undefined
  const child = spawn(PEERS, ['--paged-step', String(steps)], { stdio: ['pipe', 'pipe', 'inherit'] })
  const answers = createInterface({ input: child.stdout })
  return {
    round: () => {
      const answer = nextAnswer(child, answers, 'line', PEERS)
      child.stdin.write('\n')
      return answer
    },
    end: () => child.stdin.end(),
  }
}

export async function step(steps: number, rounds: number): Promise<Workload | Skipped> {
  const id = 'js-step'
  const rust = rustSteps(steps)
  if (rust === undefined)
    return { id, skipped: 'bench/peers is not built: cargo build --release --manifest-path bench/peers/Cargo.toml' }
  const [over, under] = ['kvtide, append', 'kvtide in Rust, append']
  const measured = await measure(
    [ours(over, steps), lane('limit', under, steps, () => rust.round(), { after: pause })],
    rounds,
  )
  rust.end()
  const title = `TypeScript: a decode step of ${LAYERS} layers and ${SEQUENCES} sequences, 1 head of ${DIM}, f32`
  const workload = workloadOf(id, title, 'step', measured, [])
  return {
    ...workload,
    claims: excessOf(measured, {
      id: `${id}/over-rust`,
      says: 'append / in Rust',
      over,
      under,
      toReach: { atMost: MICROSECONDS_MAX },
    }),
  }
}
