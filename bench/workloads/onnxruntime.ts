// onnxruntime's attention on the processor, where it is installed: sessions of one operator each.
//
// Two operators do this work: ONNX's own Attention, which reads K and V as they are given, and GroupQueryAttention, which most
// exported models have. The latter writes the newest token into the memory of K and V and reads them there: outputs that
// are the inputs' own memory spare it a copy.
import { createRequire } from 'node:module'

import { modelOf, type OneNode, type Port } from './onnx-model.js'

/** What installs it. */
export const INSTALL = 'ONNXRUNTIME_NODE_INSTALL=skip npm install --prefix bench/onnxruntime'

type Feeds = Readonly<Record<string, unknown>>

interface Session {
  run(feeds: Feeds, outputs: Feeds): Promise<unknown>
}

interface Runtime {
  readonly InferenceSession: { create(model: Uint8Array, options: object): Promise<Session> }
  readonly Tensor: new (type: string, data: Float32Array | Int32Array, shape: readonly number[]) => unknown
}

/** The runtime; `undefined` when it is not installed. */
export function runtime(): Runtime | undefined {
  try {
    return createRequire(new URL('../onnxruntime/package.json', import.meta.url))('onnxruntime-node') as Runtime
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'MODULE_NOT_FOUND') return undefined
    throw error
  }
}

/** The sizes of one layer. */
export interface Sizes {
  readonly queryHeads: number
  readonly heads: number
  readonly keys: number
  readonly dim: number
}

/** K and V of a layer, `[heads, keys, dim]` each. */
export interface LayerRows {
  readonly k: Float32Array
  readonly v: Float32Array
}

/** Runs attention over one layer; the output is in `out` then. */
export type Attention = (layer: LayerRows) => Promise<void>

const floats = (name: string, ...shape: readonly number[]): Port => ({ name, type: 'float32', shape })

const oneNumber = (name: string): Port => ({ name, type: 'int32', shape: [1] })

const session = (from: Runtime, node: OneNode, threads: number): Promise<Session> =>
  from.InferenceSession.create(modelOf(node), {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    graphOptimizationLevel: 'all',
    logSeverityLevel: 3,
  })

/** ONNX's own operator. */
export async function attention(from: Runtime, { queryHeads, heads, keys, dim }: Sizes, threads: number, q: Float32Array, out: Float32Array): Promise<Attention> {
  const [row, rows] = [[1, queryHeads, 1, dim], [1, heads, keys, dim]]
  const inputs = [floats('q', ...row), floats('k', ...rows), floats('v', ...rows)]
  const node = { operator: 'Attention', domain: '', attributes: {}, inputs, outputs: [floats('out', ...row)] }
  const running = await session(from, node, threads)
  const tensor = (data: Float32Array, shape: readonly number[]): unknown => new from.Tensor('float32', data, shape)
  const [query, output] = [tensor(q, row), { out: tensor(out, row) }]
  return async ({ k, v }) => void (await running.run({ q: query, k: tensor(k, rows), v: tensor(v, rows) }, output))
}

/** The operator of exported models; the last key of a layer is written again by each call. */
export async function groupQueryAttention(
  from: Runtime,
  { queryHeads, heads, keys, dim }: Sizes,
  threads: number,
  q: Float32Array,
  out: Float32Array,
): Promise<Attention> {
  const [row, token, rows] = [[1, 1, queryHeads * dim], [1, 1, heads * dim], [1, heads, keys, dim]]
  const inputs = [floats('q', ...row), floats('k', ...token), floats('v', ...token), floats('pastK', ...rows), floats('pastV', ...rows)]
  const node = {
    operator: 'GroupQueryAttention',
    domain: 'com.microsoft',
    attributes: { num_heads: queryHeads, kv_num_heads: heads },
    inputs: [...inputs, oneNumber('last'), oneNumber('total')],
    outputs: [floats('out', ...row), floats('presentK', ...rows), floats('presentV', ...rows)],
  }
  const running = await session(from, node, threads)
  const tensor = (data: Float32Array, shape: readonly number[]): unknown => new from.Tensor('float32', data, shape)
  const number = (value: number): unknown => new from.Tensor('int32', Int32Array.of(value), [1])
  const newest = (data: Float32Array): unknown => {
    const last = new Float32Array(heads * dim)
    for (let head = 0; head < heads; head++) last.set(data.subarray(((head + 1) * keys - 1) * dim, (head + 1) * keys * dim), head * dim)
    return tensor(last, token)
  }
  const [query, output, last, total] = [tensor(q, row), tensor(out, row), number(keys - 1), number(keys)]
  return async ({ k, v }) => {
    const [pastK, pastV] = [tensor(k, rows), tensor(v, rows)]
    const feeds = { q: query, k: newest(k), v: newest(v), pastK, pastV, last, total }
    await running.run(feeds, { out: output, presentK: pastK, presentV: pastV })
  }
}
