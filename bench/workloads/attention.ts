// Measures attention of one query over more layers than fit into the processor's caches, through the TypeScript API, against onnxruntime's
// operators.
import { KvCache, attend, setThreads } from 'kvtide'

import { attention, groupQueryAttention, runtime, type Attention, type LayerRows, type Sizes } from './onnxruntime.js'
import { workloadOf, type Ratio, type Skipped, type Workload } from '../report/report.js'
import { read } from '../run/machine.js'
import { lane, measure, pause, type Contestant } from '../../lib/cli/rounds.js'
import { HEAD_DIM, HEADS } from './rows.js'

export const QUERY_HEADS = 32

/** Returns how many layers of this size exceed the last-level cache of the processor: more than eight times its size in total. */
export function layersBeyondCaches(layerBytes: number): number {
  // If the system does not report the size, assume that of a large processor.
  const cache = Number.parseInt(read('/sys/devices/system/cpu/cpu0/cache/index3/size'), 10) * 1024 || 32 * 2 ** 20
  return Math.floor((8 * cache) / layerBytes) + 1
}

export function noise(count: number, seed: number): Float32Array {
  let state = seed
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 31 - 1
  })
}

export function filled(keys: number): { readonly cache: KvCache; readonly rows: LayerRows } {
  const cache = new KvCache({
    batchSize: 1,
    numKvHeads: HEADS,
    initialCapacity: keys,
    maxSeqLen: keys,
    headDim: HEAD_DIM,
  })
  const token = (seed: number): { data: Float32Array; shape: number[] } => ({
    data: noise(keys * HEADS * HEAD_DIM, seed),
    shape: [1, HEADS, keys, HEAD_DIM],
  })
  const rows = { k: token(3), v: token(5) }
  cache.update(rows.k, rows.v)
  return { cache, rows: { k: rows.k.data, v: rows.v.data } }
}

export function ours(
  name: string,
  threads: number,
  caches: readonly KvCache[],
  q: Float32Array,
  out: Float32Array,
): Contestant {
  const query = { data: q, shape: [1, QUERY_HEADS, 1, HEAD_DIM] }
  return lane(
    'ours',
    name,
    caches.length,
    () => {
      for (const cache of caches) attend(query, cache.getKv(), { threads }, out)
    },
    { shared: threads > 1 },
  )
}

/** Each round computes one layer, and the next round the next layer. */
function theirs(name: string, threads: number, run: Attention, layers: readonly LayerRows[]): Contestant {
  let turn = 0
  return lane('peer', name, 1, () => run(layers[turn++ % layers.length] as LayerRows), {
    shared: threads > 1,
    after: pause,
  })
}

export const named = (what: string, threads: number): string => (threads === 1 ? what : `${what}, ${threads} threads`)

function ratios(id: string): Ratio[] {
  return [1, 2].flatMap(threads =>
    ['Attention', 'GroupQueryAttention'].map(operator => {
      const [over, under] = [named(`onnxruntime ${operator}`, threads), named('kvtide', threads)]
      return {
        id: `${id}/${operator.toLowerCase()}-over-ours${threads === 1 ? '' : '-2'}`,
        says: `${over} / ${under}`,
        over,
        under,
        toReach: 'more' as const,
      }
    }),
  )
}

/** The largest difference of an element; NaN if any element is NaN. */
export const difference = (one: Float32Array, other: Float32Array): number =>
  one.reduce((most, value, index) => Math.max(most, Math.abs(value - (other[index] as number))), 0)

function agree(what: string, one: Float32Array, other: Float32Array): void {
  const largest = difference(one, other)
  if (!(largest < 1e-4)) throw new Error(`${what} differs from kvtide by ${largest}`)
}

export async function attentionOverCaches(keys: number, rounds: number, layers?: number): Promise<Workload | Skipped> {
  const id = 'js-attention'
  const onnxruntime = runtime()
  if (onnxruntime === undefined) return { id, skipped: 'onnxruntime-node is not installed: npm ci' }
  setThreads(2)
  const sizes: Sizes = { queryHeads: QUERY_HEADS, heads: HEADS, keys, dim: HEAD_DIM }
  const count = layers ?? layersBeyondCaches(2 * keys * HEADS * HEAD_DIM * 4)
  const held = Array.from({ length: count }, () => filled(keys))
  const [caches, rows] = [held.map(({ cache }) => cache), held.map(layer => layer.rows)]
  const q = noise(QUERY_HEADS * HEAD_DIM, 7)
  const [own, other] = [new Float32Array(q.length), new Float32Array(q.length)]
  const lanes: Contestant[] = []
  for (const threads of [1, 2]) {
    const mine = ours(named('kvtide', threads), threads, caches, q, own)
    lanes.push(mine)
    await mine.round()
    for (const [operator, make] of [
      ['Attention', attention],
      ['GroupQueryAttention', groupQueryAttention],
    ] as const) {
      const run = await make(onnxruntime, sizes, threads, q, other)
      await run(rows[0] as LayerRows)
      agree(operator, other, own)
      lanes.push(theirs(named(`onnxruntime ${operator}`, threads), threads, run, rows))
    }
  }
  const measured = await measure(lanes, rounds)
  for (const cache of caches) cache.dispose()
  const title = `TypeScript: attention, 1 query of ${QUERY_HEADS} heads over ${keys} keys of ${HEADS}, ${count} layers in turn, f32`
  return workloadOf(id, title, 'layer', measured, ratios(id))
}
