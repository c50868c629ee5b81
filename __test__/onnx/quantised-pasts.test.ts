// Graphs whose pasts are codes of 8 or 4 bits with scales: kvtide drops both, and its pages have such codes by default. Oracles: the float model in transformers, the
// same graph over pages of floats, and the graph as it is in onnxruntime.
import * as ort from 'onnxruntime-node'

import type { PageFormat } from '../../index.js'
import { OnnxModel } from '../../onnx.js'
import { rejected } from '../support/throws.js'
import { distance } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { argmax, graphFile, quiet, referenceOf } from '../support/onnx/graphs.js'

const reference = referenceOf('families/llama-past')
const GRAPHS = [
  ['families/llama-past/builder-int8-past', 'q8', 'int8', 16],
  ['families/llama-past/builder-int4-past', 'q4', 'uint8', 8],
] as const
const SMALL = { threads: 1, cache: { memoryBytes: 2 ** 23, blockSize: 4 } }
const BACKENDS = ['graph', 'parts'] as const

const VOCABULARY = 72
const prompt = [...(reference.prompts['p33'] as readonly number[])]

/** The logits of the prompt, all tokens in one step. */
async function computed(model: OnnxModel): Promise<Float32Array> {
  using chat = model.open()
  const [logits] = (await model.run([{ sequence: chat, tokens: prompt }], { logits: 'all' })) as [Float32Array]
  return logits
}

/** The most probable token of a row. */
const best = (logits: Float32Array, row: number): number =>
  argmax(logits.subarray(row * VOCABULARY, (row + 1) * VOCABULARY))

/** The number of rows in which the most probable token is the same. */
function same(logits: Float32Array, expected: Float32Array): number {
  return prompt.filter((_, row) => best(logits, row) === best(expected, row)).length
}

/** The logits of the prompt by the graph as it is, one token in each call, over the codes that it returned. */
async function unmodified(graph: string, type: 'int8' | 'uint8', width: number) {
  const session = await ort.InferenceSession.create(graphFile(graph), quiet)
  const none = type === 'int8' ? new Int8Array(0) : new Uint8Array(0)
  let pasts: Record<string, ort.Tensor> = {}
  for (const name of session.inputNames.filter(one => one.startsWith('past')))
    pasts[name] = new ort.Tensor(type, none, [1, 2, 0, width])
  const rows: number[] = []
  for (const [at, id] of prompt.entries()) {
    const outputs = await session.run({
      ...pasts,
      input_ids: new ort.Tensor('int64', BigInt64Array.of(BigInt(id)), [1, 1]),
      attention_mask: new ort.Tensor('int64', new BigInt64Array(at + 1).fill(1n), [1, at + 1]),
    })
    rows.push(...(outputs['logits']?.data as Float32Array))
    pasts = Object.fromEntries(
      Object.keys(pasts).map(name => [name, outputs[name.replace('past_key_values', 'present')] as ort.Tensor]),
    )
  }
  await session.release()
  return Float32Array.from(rows)
}

/** The formats of the pages, if the caller names some. */
async function formats(graph: string, cache: { keyFormat?: PageFormat; valueFormat?: PageFormat }) {
  await using model = await OnnxModel.load(graphFile(graph), { ...SMALL, cache: { ...SMALL.cache, ...cache } })
  return [model.cache.keyFormat, model.cache.valueFormat]
}

for (const [graph, format, type, width] of GRAPHS) {
  test(`${graph}: its pages have ${format} by default, and are closer to the float model than the graph itself`, async t => {
    const expected = reference.logits('logits.p33')
    const own = await unmodified(graph, type, width)
    const itself = distance(own, expected)
    for (const backend of BACKENDS) {
      await using model = await OnnxModel.load(graphFile(graph), { ...SMALL, backend })
      t.deepEqual([model.cache.keyFormat, model.cache.valueFormat, model.cache.dtype], [format, format, 'f32'])
      const logits = await computed(model)
      const off = distance(logits, expected)
      t.true(off > 1e-3 && off < itself, `${backend}: ${off}, onnxruntime ${itself}`)
      t.true(same(logits, expected) >= same(own, expected), backend)
      const cache = { ...SMALL.cache, keyFormat: format, valueFormat: format }
      await using named = await OnnxModel.load(graphFile(graph), { ...SMALL, backend, cache })
      t.deepEqual(await computed(named), logits)
    }
  })

  test(`${graph}: formats that the caller names count, each on its own`, async t => {
    t.deepEqual(await formats(graph, { keyFormat: 'f32' }), ['f32', format])
    t.deepEqual(await formats(graph, { valueFormat: 'bf16' }), [format, 'bf16'])
    t.deepEqual(await formats(graph, { keyFormat: 'f8e4m3', valueFormat: 'f16' }), ['f8e4m3', 'f16'])
  })

  test(`${graph}: plain refuses its pasts, and says which types it takes`, async t => {
    const error = await rejected(OnnxModel.load(graphFile(graph), { ...SMALL, backend: 'plain' }), 'UNSUPPORTED_GRAPH')
    t.is(error.details.reason, `its type is ${type}, expected float32 or float16`)
    t.is(error.details.kind, 'quantised-past')
    t.regex(String(error.details.node), /^past_key_values\.0\.key$/)
  })
}
