// Measures attention of one query over more layers than fit into the processor's caches, against PyTorch's attention in a Python program that takes
// turns with this one.
//
// PyTorch has two ways without a copy of K and V: an option says that heads share them, or the heads of a group are passed as queries of
// one head. The ratio uses the faster one.
import { spawn, spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

import { setThreads } from 'kvtide'

import {
  isMet,
  workloadOf,
  type Claim,
  type Measured,
  type Ratio,
  type Skipped,
  type Workload,
} from '../report/report.js'
import { spreadOf } from '../../lib/cli/spread.js'
import { nextAnswer } from '../run/apart.js'
import { lane, measure, pause, type Contestant } from '../../lib/cli/rounds.js'
import { REPORTS } from '../run/suites.js'
import { difference, filled, layersBeyondCaches, named, noise, ours, QUERY_HEADS } from './attention.js'
import { HEAD_DIM, HEADS } from './rows.js'

const PROGRAM = fileURLToPath(new URL('../pytorch/attention.py', import.meta.url))
const WAYS = ['enable_gqa', 'grouped'] as const
type Way = (typeof WAYS)[number]

/** The largest allowed difference of outputs; above it, the programs did different work. */
const DIFFERENCE_MAX = 1e-5

interface PyTorch {
  /** The nanoseconds of a round. */
  round(way: Way, threads: number): Promise<number>
  /** The output of a way for the first layer. */
  output(way: Way): Float32Array
  end(): void
}

/** Returns the version of PyTorch in this Python, or undefined if it has none. */
function versionIn(python: string): string | undefined {
  const { status, stdout } = spawnSync(python, ['-c', 'import torch; print(torch.__version__)'], { encoding: 'utf8' })
  return status === 0 ? stdout.trim().replace(/\+.*/, '') : undefined
}

async function start(
  python: string,
  layers: number,
  rows: Readonly<Record<'q' | 'k' | 'v', Float32Array>>,
): Promise<PyTorch> {
  const folder = join(REPORTS, 'pytorch')
  mkdirSync(folder, { recursive: true })
  for (const [name, floats] of Object.entries(rows)) writeFileSync(join(folder, name), floats)
  const keys = rows.k.length / HEADS / HEAD_DIM
  // It runs with its default allocator.
  const { GLIBC_TUNABLES: _, ...env } = process.env
  const child = spawn(python, [PROGRAM, folder, ...[HEADS, QUERY_HEADS, keys, HEAD_DIM, layers].map(String)], {
    env,
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const answers = createInterface({ input: child.stdout })
  const answer = (): Promise<number> => nextAnswer(child, answers, 'line', PROGRAM)
  await answer()
  return {
    round: (way, threads) => {
      const took = answer()
      child.stdin.write(`${way} ${threads}\n`)
      return took
    },
    output: way => {
      const { buffer, byteOffset, length } = readFileSync(join(folder, `out-${way}`))
      return new Float32Array(buffer.slice(byteOffset, byteOffset + length))
    },
    end: () => {
      child.stdin.end()
      rmSync(folder, { recursive: true })
    },
  }
}

/** Reports the difference of outputs, with a target; it is not compared with other runs. */
function differenceOf(id: string, ratio: number): Claim {
  const toReach = { atMost: DIFFERENCE_MAX }
  return {
    id,
    says: 'largest difference of an output',
    ratio,
    low: ratio,
    high: ratio,
    toReach,
    met: isMet(toReach, ratio),
    limit: null,
    why: null,
    ofThisRun: true,
  }
}

const middle = ({ nanoseconds }: Measured): number => spreadOf(nanoseconds).median

export async function attentionBesidePyTorch(
  keys: number,
  rounds: number,
  layers?: number,
  python: string = process.env['KVTIDE_BENCH_PYTHON'] ?? 'python3',
): Promise<Workload | Skipped> {
  const id = 'js-attention-pytorch'
  const version = versionIn(python)
  if (version === undefined)
    return {
      id,
      skipped: `${python} has no PyTorch: \`pip install torch\`, and KVTIDE_BENCH_PYTHON says which Python has it`,
    }
  setThreads(2)
  const count = layers ?? layersBeyondCaches(2 * keys * HEADS * HEAD_DIM * 4)
  const held = Array.from({ length: count }, () => filled(keys))
  const caches = held.map(({ cache }) => cache)
  const q = noise(QUERY_HEADS * HEAD_DIM, 7)
  const out = new Float32Array(q.length)
  const pytorch = await start(python, count, { q, ...(held[0] as (typeof held)[number]).rows })
  const theirs = (way: Way, threads: number): Contestant =>
    lane('peer', named(`PyTorch ${version}, ${way}`, threads), count, () => pytorch.round(way, threads), {
      shared: true,
      before: pause,
    })
  const lanes = [1, 2].flatMap(threads => [
    ours(named('kvtide', threads), threads, caches, q, out),
    ...WAYS.map(way => theirs(way, threads)),
  ])
  try {
    await lanes[0]?.round()
    const off = Math.max(...WAYS.map(way => difference(pytorch.output(way), out)))
    if (!(off <= DIFFERENCE_MAX)) throw new Error(`PyTorch differs from kvtide by ${off}`)
    const measured = await measure(lanes, rounds)
    const ratios = [1, 2].map((threads): Ratio => {
      const ways = measured.filter(({ name }) =>
        WAYS.some(way => name === named(`PyTorch ${version}, ${way}`, threads)),
      )
      const [over, under] = [ways.toSorted((a, b) => middle(a) - middle(b))[0]?.name ?? '', named('kvtide', threads)]
      return {
        id: `${id}/pytorch-over-ours${threads === 1 ? '' : '-2'}`,
        says: `${over}, its faster way / ${under}`,
        over,
        under,
        toReach: 'more',
      }
    })
    const title = `TypeScript: attention beside PyTorch, 1 query of ${QUERY_HEADS} heads over ${keys} keys of ${HEADS}, ${count} layers in turn, f32`
    const workload = workloadOf(id, title, 'layer', measured, ratios)
    return { ...workload, claims: [...workload.claims, differenceOf(`${id}/difference`, off)] }
  } finally {
    pytorch.end()
    caches.forEach(cache => cache.dispose())
  }
}
