// Pages in other formats under a graph of floats: what they are off by is what K and V lose when they are rounded, and nothing else. The oracle runs
// the graph's parts and rounds K and V itself, number by number, before they go into pages of floats: where pages have codes, of the pages before a
// query's own, whatever the step has in it.
import * as ort from 'onnxruntime-node'

import { PagedKvCache, Tensor } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { type BackendName, OnnxModel } from '../../onnx.js'
import { distance, referenceLogits } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { promptOf } from '../support/onnx/chat.js'
import { quiet } from '../support/onnx/graphs.js'
import { graphFile } from '../support/onnx/paged-graph.js'

type Format = 'f16' | 'bf16' | 'f8e4m3'

const BLOCK_SIZE = 16
const [KV_HEADS, DIM] = [2, 16]

/** The nearest number with so many bits behind its first, the even one of two: down to an exponent, and up to a largest number. */
function rounding(bits: number, least: number, most: number): (value: number) => number {
  return value => {
    if (value === 0) return 0
    const unit = 2 ** (Math.max(Math.floor(Math.log2(Math.abs(value))), least) - bits)
    const units = value / unit
    const nearest = Math.abs(units - Math.trunc(units)) === 0.5 ? 2 * Math.round(units / 2) : Math.round(units)
    return Math.max(-most, Math.min(most, nearest * unit))
  }
}

const ROUND: Readonly<Record<Format, (value: number) => number>> = {
  f16: rounding(10, -14, 65504),
  bf16: rounding(7, -126, 3e38),
  f8e4m3: rounding(3, -6, 448),
}

/** The number of tokens that are rounded for the queries of a page: of codes, those of the pages before it. */
const roundedTokens = (format: Format, tokens: number, page: number): number =>
  format === 'f8e4m3' ? page * BLOCK_SIZE : tokens

/** `[1, heads, tokens, dim]` with those tokens rounded. */
function rounded({ data, dims }: ort.Tensor, format: Format, page: number): Tensor {
  const [, heads, tokens, dim] = dims as [number, number, number, number]
  const values = Float32Array.from(data as Float32Array)
  for (let head = 0; head < heads; head++) {
    const start = head * tokens * dim
    const row = values.subarray(start, start + roundedTokens(format, tokens, page) * dim)
    row.set(row.map(ROUND[format]))
  }
  return Tensor.from(values, [...dims])
}

/** The two middle axes of four, turned. */
function turned(data: Float32Array, [outer, inner, dim]: readonly [number, number, number]): Float32Array {
  const out = new Float32Array(data.length)
  for (let a = 0; a < outer; a++)
    for (let b = 0; b < inner; b++)
      out.set(data.subarray((a * inner + b) * dim, (a * inner + b + 1) * dim), (b * outer + a) * dim)
  return out
}

/** Logits of a prompt, with K and V rounded. */
async function oracle(tokens: readonly number[], format: Format): Promise<Float32Array> {
  const graph = await binding.NativeOnnxGraph.open(graphFile('onnx'))
  const rewritten = await graph.rewrite(false)
  const layers = rewritten.layers()
  using cache = new PagedKvCache({
    model: { layers: layers.map(() => ({ kind: 'full', numKvHeads: KV_HEADS, headDim: DIM })) },
    capacity: 16,
    blockSize: BLOCK_SIZE,
  })
  using step = cache.beginStep({ sequences: [cache.openSequence()], offsets: [0, tokens.length] })
  const held: Record<string, ort.Tensor> = {
    input_ids: new ort.Tensor('int64', BigInt64Array.from(tokens, BigInt), [1, tokens.length]),
    position_ids: new ort.Tensor(
      'int64',
      BigInt64Array.from(tokens, (_, place) => BigInt(place)),
      [1, tokens.length],
    ),
  }
  for (const { bytes, inputs, attentions } of await rewritten.parts()) {
    const session = await ort.InferenceSession.create(bytes, quiet)
    Object.assign(held, await session.run(Object.fromEntries(inputs.map(name => [name, held[name] as ort.Tensor]))))
    await session.release()
    for (const { layer, q, k, v, out } of attentions) {
      const { data, dims } = held[q] as ort.Tensor
      const heads = dims[1] as number
      const { scale } = layers[layer] as { readonly scale: number }
      const queries = Tensor.from(turned(data as Float32Array, [heads, tokens.length, DIM]), [
        tokens.length,
        heads,
        DIM,
      ])
      const attended = new Float32Array(queries.length)
      for (let first = 0; first < tokens.length; first += BLOCK_SIZE) {
        const [keys, values] = [k, v].map(name => rounded(held[name] as ort.Tensor, format, first / BLOCK_SIZE)) as [
          Tensor,
          Tensor,
        ]
        step.write(layer, keys, values)
        const [from, to] = [first, first + BLOCK_SIZE].map(token => token * heads * DIM) as [number, number]
        attended.set(step.attend(layer, queries, { scale }).out.toFloat32Array().subarray(from, to), from)
      }
      held[out] = new ort.Tensor('float32', turned(attended, [tokens.length, heads, DIM]), dims)
    }
  }
  return (held['logits'] as ort.Tensor).data as Float32Array
}

/** The largest error of each format, of logits whose deviation is 2.4: three bits fewer are about eight times as much. */
const OFF: Readonly<Record<Format, number>> = { f16: 0.1, bf16: 0.4, f8e4m3: 4 }

for (const format of ['f16', 'bf16', 'f8e4m3'] satisfies Format[]) {
  for (const backend of ['graph', 'parts'] satisfies BackendName[]) {
    test(`${backend}: pages of ${format} are off by what rounding costs`, async t => {
      await using model = await OnnxModel.load(graphFile('onnx'), {
        backend,
        threads: 1,
        cache: { memoryBytes: 2 ** 23, keyFormat: format, valueFormat: format },
      })
      for (const prompt of ['p7', 'p33', 'p100']) {
        using sequence = model.open({ salt: prompt })
        const [logits] = (await model.run([{ sequence, tokens: promptOf(prompt) }], { logits: 'all' })) as [
          Float32Array,
        ]
        const off = distance(logits, referenceLogits(`logits.${prompt}`))
        t.true(off < OFF[format], `${prompt} is off by ${off}`)
        t.is(off > 1e-4, format !== 'f8e4m3' || promptOf(prompt).length > BLOCK_SIZE, prompt)
        const apart = distance(logits, await oracle(promptOf(prompt), format))
        t.true(apart < 1e-3, `${prompt} is ${apart} from its oracle`)
      }
    })
  }
}
