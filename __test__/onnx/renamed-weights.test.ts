// Names of files of weights in a model's bytes, changed without a change of anything else.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { renamedWeights } from '../../lib/onnx/renamed-weights.js'
import { graphFile } from '../support/onnx/graphs.js'

const varint = (value: number): number[] =>
  value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))]
const field = (number: number, content: Buffer | string): Buffer => {
  const bytes = Buffer.from(content as string)
  return Buffer.concat([Buffer.from([...varint(number * 8 + 2), ...varint(bytes.length)]), bytes])
}
const count = (number: number, value: number): Buffer => Buffer.from([...varint(number * 8), ...varint(value)])
const entry = (key: string, value: string): Buffer => field(13, Buffer.concat([field(1, key), field(2, value)]))

/** A tensor whose weights are in a file. */
const tensor = (file: string): Buffer =>
  Buffer.concat([
    count(1, 300),
    entry('offset', '0'),
    entry('location', file),
    entry('length', '1200'),
    field(8, 'a name'),
    count(14, 1),
  ])

/** A model with tensors as initializers, in attributes and in graphs of attributes, between fields of all kinds. */
function modelOf(one: string, two: string): Buffer {
  const inner = Buffer.concat([field(2, 'inner'), field(5, tensor(two))])
  const attributes = [field(5, tensor(one)), field(6, inner), field(10, tensor(two)), field(11, inner), count(3, 7)]
  const node = Buffer.concat([
    field(1, 'x'),
    ...attributes.map(attribute => field(5, Buffer.concat([field(1, 'a'), attribute]))),
  ])
  const graph = Buffer.concat([
    field(1, node),
    field(2, 'main'),
    field(5, tensor(one)),
    field(5, tensor('other')),
    field(12, 'shape'),
  ])
  const numbers = Buffer.concat([
    Buffer.from([...varint(99 * 8 + 1), 1, 2, 3, 4, 5, 6, 7, 8]),
    Buffer.from([...varint(98 * 8 + 5), 1, 2, 3, 4]),
  ])
  return Buffer.concat([count(1, 2 ** 40), numbers, field(2, 'kvtide'), field(7, graph), field(8, 'one')])
}

test('a file is renamed wherever a tensor is', t => {
  for (const [one, two] of [
    ['1', '2'],
    ['a'.repeat(64), 'b'.repeat(64)],
    ['a'.repeat(300), ''],
    ['folder/é', 'x'],
  ] as const) {
    const names = new Map([
      ['one.data', one],
      ['two.data', two],
    ])
    t.deepEqual(Buffer.from(renamedWeights(modelOf('one.data', 'two.data'), names)), modelOf(one, two))
  }
})

test('a model without such files stays the same bytes', t => {
  const model = modelOf('one.data', 'two.data')
  t.is(renamedWeights(model, new Map([['three.data', 'x']])), model)
  t.is(renamedWeights(model, new Map()), model)
  const file = readFileSync(graphFile('llama/onnx-gqa-f32'))
  t.is(renamedWeights(file, new Map([['model.onnx.data', 'x']])), file)
})

test('a name and its own again give the same bytes', t => {
  const file = readFileSync(graphFile('llama/onnx-gqa-f32-ext'))
  const away = renamedWeights(file, new Map([['model.onnx.data', 'f'.repeat(64)]]))
  t.not(away.length, file.length)
  t.true(Buffer.from(renamedWeights(away, new Map([['f'.repeat(64), 'model.onnx.data']]))).equals(file))
})
