// Products with weights of 4 bits on the backend `graph`, where kvtide computes them, against onnxruntime's own on `parts`.
import { readFileSync } from 'node:fs'

import { OnnxModel, type OnnxModelOptions } from '../../onnx.js'
import { distance } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { BLOCK_FORMS, withBlocks } from '../support/onnx/changed.js'
import { graphFile } from '../support/onnx/graphs.js'
import { logitsOf } from '../support/onnx/row-counts.js'

const plain = readFileSync(graphFile('llama/onnx-gqa-int4'))

/**
 * The distance of each row of logits. Where a number is half-way between two bytes, the last bit of a sum decides how it is rounded: such a row, and
 * those behind it, differ by some hundredths. A mistake makes all rows differ.
 */
function distances(found: Float32Array, expected: Float32Array): number[] {
  return Array.from({ length: expected.length / 320 }, (_, row) =>
    distance(found.subarray(row * 320, row * 320 + 320), expected.subarray(row * 320, row * 320 + 320)),
  )
}

for (const threads of [1, 2])
  for (const form of BLOCK_FORMS)
    test(`${form}, ${threads} threads: many rows, few and one have the logits of onnxruntime's products`, async t => {
      const model = withBlocks(plain, form)
      const [found, expected] = [await logitsOf(model, 'graph', threads), await logitsOf(model, 'parts', threads)]
      const rows = found.flatMap((logits, place) => distances(logits, expected[place] as Float32Array))
      t.true(rows.filter(row => row < 1e-4).length > rows.length / 5)
      t.true(Math.max(...rows) < 1)
    })

/** The graph without `accuracy_level` 4, which allows products of bytes. */
const inFloats = Buffer.from(
  plain.toString('latin1').replaceAll('accuracy_level\x18\x04', 'accuracy_level\x18\x00'),
  'latin1',
)

for (const threads of [1, 2])
  for (const form of BLOCK_FORMS)
    test(`${form} in floats, ${threads} threads: each row has the logits of onnxruntime's products`, async t => {
      const model = withBlocks(inFloats, form)
      const [found, expected] = [await logitsOf(model, 'graph', threads), await logitsOf(model, 'parts', threads)]
      const rows = found.flatMap((logits, place) => distances(logits, expected[place] as Float32Array))
      t.true(Math.max(...rows) < 1e-4, `${Math.max(...rows)}`)
    })

for (const backend of ['graph', 'parts', 'plain'] as const)
  test(`${backend}: \`accuracyLevel\` stands for the level in the graph`, async t => {
    const [bytes, floats] = [await logitsOf(plain, backend, 1), await logitsOf(inFloats, backend, 1)]
    t.deepEqual(await logitsOf(inFloats, backend, 1, { accuracyLevel: 4 }), bytes)
    t.deepEqual(await logitsOf(plain, backend, 1, { accuracyLevel: 0 }), floats)
    t.notDeepEqual(bytes, floats)
  })

async function namespaceOf(options: OnnxModelOptions): Promise<string> {
  await using model = await OnnxModel.load(plain, options)
  return model.namespace
}

test('a model with another level has another namespace', async t => {
  const options: OnnxModelOptions[] = [{}, { accuracyLevel: 4 }, { accuracyLevel: 0 }]
  const [own, bytes, floats] = await Promise.all(options.map(namespaceOf))
  t.is(own, bytes)
  t.not(own, floats)
})

test('a level that is neither 0 nor 4 is refused', async t => {
  for (const level of [1, 3, 5, -1, 4.5, '4', null])
    await t.throwsAsync(OnnxModel.load(plain, { accuracyLevel: level as never }), {
      code: 'INVALID_ARGUMENT',
      message: /accuracyLevel is .*, expected 0 or 4/,
    })
})

test('another form has other logits', async t => {
  const all = await Promise.all(BLOCK_FORMS.map(form => logitsOf(withBlocks(plain, form), 'graph', 1)))
  t.true(distance(all[0]?.[0] as Float32Array, (await logitsOf(inFloats, 'graph', 1))[0] as Float32Array) > 1e-4)
  for (const other of all.slice(1)) t.true(distance(other[0] as Float32Array, all[0]?.[0] as Float32Array) > 1e-2)
})
