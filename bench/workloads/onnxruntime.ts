// onnxruntime's attention on the processor: sessions of one operator each.
//
// Two operators do this work: ONNX's own Attention, which reads K and V in place, and GroupQueryAttention, which most
// exported models use. The latter writes the newest token into the memory of K and V and reads them there. Its outputs
// share the memory of its inputs, so it copies nothing.
//
// The models in bench/onnxruntime have that one node each, as `onnx.helper` makes it: its inputs and outputs have the names
// below and dynamic sizes, IR 10, operator sets 23 and com.microsoft 1; GroupQueryAttention has num_heads 32 and kv_num_heads 8.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'

const HOME = new URL('../onnxruntime/', import.meta.url)

type Feeds = Readonly<Record<string, unknown>>

interface Session {
  run(feeds: Feeds, outputs: Feeds): Promise<unknown>
}

interface Runtime {
  readonly InferenceSession: { create(model: Uint8Array, options: object): Promise<Session> }
  readonly Tensor: new (type: string, data: Float32Array | Int32Array, shape: readonly number[]) => unknown
}

export function runtime(): Runtime | undefined {
  try {
    return createRequire(import.meta.url)('onnxruntime-node') as Runtime
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'MODULE_NOT_FOUND') return undefined
    throw error
  }
}

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

export type Attention = (layer: LayerRows) => Promise<void>

const session = (from: Runtime, model: string, threads: number): Promise<Session> =>
  from.InferenceSession.create(readFileSync(new URL(model, HOME)), {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    graphOptimizationLevel: 'all',
    logSeverityLevel: 3,
  })

export async function attention(
  from: Runtime,
  { queryHeads, heads, keys, dim }: Sizes,
  threads: number,
  q: Float32Array,
  out: Float32Array,
): Promise<Attention> {
  const running = await session(from, 'attention.onnx', threads)
  const tensor = (data: Float32Array, ...shape: readonly number[]): unknown => new from.Tensor('float32', data, shape)
  const [query, output] = [tensor(q, 1, queryHeads, 1, dim), { out: tensor(out, 1, queryHeads, 1, dim) }]
  return async ({ k, v }) =>
    void (await running.run({ q: query, k: tensor(k, 1, heads, keys, dim), v: tensor(v, 1, heads, keys, dim) }, output))
}

/** Runs the operator of exported models; each call writes the last key of a layer again. */
export async function groupQueryAttention(
  from: Runtime,
  { queryHeads, heads, keys, dim }: Sizes,
  threads: number,
  q: Float32Array,
  out: Float32Array,
): Promise<Attention> {
  const running = await session(from, 'group-query-attention.onnx', threads)
  const tensor = (data: Float32Array, ...shape: readonly number[]): unknown => new from.Tensor('float32', data, shape)
  const number = (value: number): unknown => new from.Tensor('int32', Int32Array.of(value), [1])
  const newest = (data: Float32Array): unknown => {
    const last = new Float32Array(heads * dim)
    for (let head = 0; head < heads; head++)
      last.set(data.subarray(((head + 1) * keys - 1) * dim, (head + 1) * keys * dim), head * dim)
    return tensor(last, 1, 1, heads * dim)
  }
  const [query, output, last, total] = [
    tensor(q, 1, 1, queryHeads * dim),
    tensor(out, 1, 1, queryHeads * dim),
    number(keys - 1),
    number(keys),
  ]
  return async ({ k, v }) => {
    const [pastK, pastV] = [tensor(k, 1, heads, keys, dim), tensor(v, 1, heads, keys, dim)]
    await running.run(
      { q: query, k: newest(k), v: newest(v), pastK, pastV, last, total },
      { out: output, presentK: pastK, presentV: pastV },
    )
  }
}
