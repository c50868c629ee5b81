// Heads of all forms on the backend `graph`, where kvtide multiplies them, against the plain head in onnxruntime.
import { readFileSync } from 'node:fs'

import { OnnxModel } from '../../onnx.js'
import { distance, references } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { HEADS, otherHead } from '../support/onnx/changed.js'
import { graphFile } from '../support/onnx/graphs.js'

const plain = readFileSync(graphFile('llama/onnx-gqa-f32'))

/** The logits of all tokens of some prompts in one step, and of a token behind each. */
async function logitsOf(model: Uint8Array, backend: 'graph' | 'parts', threads: number): Promise<Float32Array[]> {
  await using loaded = await OnnxModel.load(model, { backend, threads, cache: { memoryBytes: 2 ** 23, blockSize: 4 } })
  const entries = Object.values(references.prompts).map(tokens => ({ sequence: loaded.open(), tokens }))
  const all = await loaded.run(entries, { logits: 'all' })
  const behind = entries.map(({ sequence }) => ({ sequence, tokens: [5] }))
  return [...all, ...(await loaded.run(behind)), ...(await loaded.run(behind.slice(0, 1)))]
}

for (const threads of [1, 2])
  for (const form of HEADS)
    test(`${form}, ${threads} threads: many rows, few and one have the logits of the plain head`, async t => {
      const expected = await logitsOf(plain, 'parts', threads)
      const found = await logitsOf(otherHead(plain, form), 'graph', threads)
      t.is(found.length, expected.length)
      const isBiased = form === 'Gemm with a bias'
      for (const [place, logits] of found.entries()) {
        const unbiased = isBiased ? logits.map((logit, at) => logit - (at % 320) / 100) : logits
        t.true(distance(unbiased, expected[place] as Float32Array) < 1e-4, `${place}`)
      }
    })
