// Heads of all forms on the backend `graph`, where kvtide multiplies them, against the plain head in onnxruntime.
import { readFileSync } from 'node:fs'

import { distance } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { HEADS, otherHead } from '../support/onnx/changed.js'
import { graphFile } from '../support/onnx/graphs.js'
import { logitsOf } from '../support/onnx/row-counts.js'

const plain = readFileSync(graphFile('llama/onnx-gqa-f32'))

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
