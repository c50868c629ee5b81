// Graphs that are read and rewritten, as the addon hands them out.
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

import test from 'ava'

import { OnnxModel } from '../../onnx.js'
import { binding } from '../../lib/loading/binding.js'
import { rejected } from '../support/throws.js'

const { NativeOnnxGraph } = binding
const fixtures = fileURLToPath(new URL('../fixtures/llama', import.meta.url))
const graphs = ['onnx', 'onnx-gqa-f32', 'onnx-gqa-f32-ext', 'onnx-gqa-f16', 'onnx-gqa-pos-f32', 'onnx-gqa-int4']
const file = (graph: string): string => join(fixtures, graph, 'model.onnx')

for (const name of graphs) {
  test(`${name}: layers, ports, the model and its parts`, async t => {
    const graph = await NativeOnnxGraph.open(file(name))
    t.is(graph.path, file(name))
    t.deepEqual(graph.inputs().find(port => port.name === 'input_ids')?.element, 'i64')
    t.is(graph.outputs().length, 7)
    const rewritten = await graph.rewrite(true)
    const layers = rewritten.layers()
    t.deepEqual(
      layers.map(layer => layer.layer),
      [0, 1, 2],
    )
    for (const layer of layers) {
      t.is(layer.form, name === 'onnx' ? 'plain' : 'GroupQueryAttention')
      t.deepEqual([layer.numHeads, layer.numKvHeads, layer.headDim, layer.valueHeadDim], [4, 2, 16, 16])
      t.is(layer.element, name.endsWith('f16') ? 'f16' : 'f32')
      t.is(layer.scale, 0.25)
      t.deepEqual([layer.softcap, layer.window, layer.sinks], [undefined, undefined, undefined])
    }
    t.deepEqual(
      rewritten
        .inputs()
        .map(port => port.name)
        .toSorted(),
      ['input_ids', 'logit_rows', 'position_ids'],
    )
    t.deepEqual(
      rewritten.outputs().map(port => port.name),
      ['logits'],
    )
    const found = rewritten.inspect()
    t.is(found.vocabulary, 320)
    t.is(found.layers.length, 3)
    t.true(found.text.includes('dropped inputs'))
    const whole = await rewritten.model()
    const small = await rewritten.model('model.onnx')
    t.true(small.length < 100_000 && small.length <= whole.length, `${small.length} of ${whole.length} bytes`)
    const parts = await rewritten.parts()
    t.deepEqual(
      parts.flatMap(part => part.attentions.map(attention => attention.layer)),
      [0, 1, 2],
    )
    t.deepEqual(parts.at(-1)?.outputs, ['logits'])
    t.true(parts.every(part => part.bytes.length > 0))
  })
}

test('bytes are a graph as a file is, and are copied', async t => {
  const bytes = new Uint8Array(readFileSync(file('onnx')))
  const opening = NativeOnnxGraph.of(bytes)
  const again = bytes.slice()
  bytes.fill(0)
  const graph = await opening
  t.is(graph.path, null)
  t.deepEqual(graph.externalFiles(), [])
  t.true(Buffer.from(await graph.model()).equals(Buffer.from(again)))
  t.deepEqual((await graph.rewrite(false)).layers().length, 3)
})

test('models that differ only in their weights have other namespaces', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-tuned-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const namespaces = new Set<string>()
  for (const bit of [0, 0, 1]) {
    const from = file('onnx-gqa-f32-ext')
    const weights = readFileSync(`${from}.data`)
    for (let at = 0; at < weights.length; at += 1000) weights[at] = (weights[at] as number) ^ bit
    writeFileSync(join(folder, 'model.onnx'), readFileSync(from))
    writeFileSync(join(folder, 'model.onnx.data'), weights)
    await using model = await OnnxModel.load(join(folder, 'model.onnx'), {
      threads: 1,
      cache: { memoryBytes: 2 ** 22 },
    })
    namespaces.add(model.namespace)
  }
  t.is(namespaces.size, 2)
})

test('files with weights are named with their bytes', async t => {
  const graph = await NativeOnnxGraph.open(file('onnx-gqa-f32-ext'))
  const { size } = statSync(join(fixtures, 'onnx-gqa-f32-ext', 'model.onnx.data'))
  t.deepEqual(graph.externalFiles(), [{ file: 'model.onnx.data', bytes: size }])
})

test('what is no model is refused, and names what was expected', async t => {
  const missing = await rejected(NativeOnnxGraph.open(join(fixtures, 'nothing.onnx')), 'INVALID_ARGUMENT')
  t.is(missing.details.argument, 'model')
  t.regex(missing.message, /nothing\.onnx.*expected a file that can be read/)
  const malformed = await rejected(NativeOnnxGraph.of(new Uint8Array([1, 2, 3])), 'INVALID_GRAPH')
  t.is(typeof malformed.details.offset, 'number')
  t.is(typeof malformed.details.expected, 'string')
  const bytes = readFileSync(file('onnx'))
  await rejected(NativeOnnxGraph.of(new Uint8Array(bytes.subarray(0, bytes.length - 100))), 'INVALID_GRAPH')
  const empty = await rejected(NativeOnnxGraph.of(new Uint8Array()), 'INVALID_GRAPH')
  t.regex(empty.message, /expected a graph/)
})

test('weights that are missing or cut short are refused by the name of their file', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-onnx-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  const model = join(folder, 'model.onnx')
  writeFileSync(model, readFileSync(file('onnx-gqa-f32-ext')))
  const missing = await rejected(NativeOnnxGraph.open(model), 'INVALID_GRAPH')
  t.is(missing.details.file, 'model.onnx.data')
  const data = readFileSync(join(fixtures, 'onnx-gqa-f32-ext', 'model.onnx.data'))
  writeFileSync(join(folder, 'model.onnx.data'), data.subarray(0, data.length - 1))
  const short = await rejected(NativeOnnxGraph.open(model), 'INVALID_GRAPH')
  t.is(short.details.file, 'model.onnx.data')
  t.regex(short.message, new RegExp(`at least ${data.length} bytes, not ${data.length - 1}`))
})

test('a graph that is not recognised is refused by the node, and a window has to be declared for each layer', async t => {
  const graph = await NativeOnnxGraph.open(file('onnx-gqa-f32'))
  const refused = await rejected(graph.rewrite(true, [16, null]), 'UNSUPPORTED_GRAPH')
  t.regex(refused.details.reason, /2 layers, the graph has 3/)
  const windows = (await graph.rewrite(true, [16, null, 8])).layers().map(layer => layer.window)
  t.deepEqual(windows, [16, undefined, 8])
  t.throws(() => graph.rewrite(true, [16, 0.5, 8]), { code: 'INVALID_ARGUMENT' })
})
