// What attention computes for the nodes around it, against the same nodes in onnxruntime: the backend `parts` keeps them.
import { readFileSync } from 'node:fs'

import { OnnxModel } from '../../onnx.js'
import { distance, references } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { graphFile } from '../support/onnx/graphs.js'

/** The graph with an attribute of all its nodes set to 1. */
function withOne(graph: string, attribute: string): Uint8Array {
  const bytes = readFileSync(graphFile(graph))
  // An attribute's number is its field 3, right behind the name.
  const zero = Buffer.concat([Buffer.from(attribute), Buffer.from([0x18, 0])])
  for (let at = bytes.indexOf(zero); at >= 0; at = bytes.indexOf(zero, at + 1)) bytes[at + zero.length - 1] = 1
  return bytes
}

async function logitsOf(model: Uint8Array, backend: 'graph' | 'parts', threads: number): Promise<Float32Array[]> {
  await using loaded = await OnnxModel.load(model, { backend, threads, cache: { memoryBytes: 2 ** 23, blockSize: 4 } })
  const entries = Object.values(references.prompts).map(tokens => ({ sequence: loaded.open(), tokens }))
  return await loaded.run(entries, { logits: 'all' })
}

for (const threads of [1, 2]) {
  test(`neighbours are rotated as onnxruntime rotates them, with ${threads} threads`, async t => {
    const straight = await logitsOf(readFileSync(graphFile('llama/onnx-gqa-f32')), 'graph', threads)
    const model = withOne('llama/onnx-gqa-f32', 'rotary_interleaved')
    const [fused, apart] = [await logitsOf(model, 'graph', threads), await logitsOf(model, 'parts', threads)]
    for (const [place, logits] of fused.entries()) {
      t.true(distance(logits, apart[place] as Float32Array) < 1e-4)
      if (logits.length > 320) t.true(distance(logits, straight[place] as Float32Array) > 1e-2)
    }
  })
}
