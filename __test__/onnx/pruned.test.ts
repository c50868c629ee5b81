// Graphs whose head sees the last token alone, as `prune_lm_head` makes them: one row of logits, however many tokens were computed. Rewritten, they give any row.
import { readFileSync } from 'node:fs'

import * as ort from 'onnxruntime-node'

import { PagedKvCache } from '../../index.js'
import { INTERNAL } from '../../lib/border/owner.js'
import type { Backend } from '../../lib/onnx/backend.js'
import { loadModel } from '../../lib/onnx/load.js'
import { readLogits } from '../../lib/onnx/logits.js'
import { OnnxModel, type OnnxModelOptions, OnnxPast } from '../../onnx.js'
import { distance, referenceLogits } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { prunedHead } from '../support/onnx/changed.js'
import { greedyOf, promptOf, read } from '../support/onnx/chat.js'
import { argmax, floats, graphFile, quiet } from '../support/onnx/graphs.js'
import { ELEMENT } from '../support/onnx/model-bytes.js'
import { SMALL_VOCABULARY, smallDecoder } from '../support/onnx/small-decoder.js'
import { rejected, throwsCode } from '../support/throws.js'

const SMALL = { threads: 1, cache: { memoryBytes: 2 ** 23 } } satisfies OnnxModelOptions
const GRAPHS = ['llama/onnx', 'llama/onnx-gqa-f32', 'llama/onnx-gqa-f16'] as const
const pruned = (graph: string, form?: Parameters<typeof prunedHead>[1]): Buffer =>
  prunedHead(readFileSync(graphFile(graph)), form)
const config = { model_type: 'stranger', head_dim: 16, num_key_value_heads: 2 } as never
const BACKENDS = ['graph', 'parts', 'plain'] as const
const load = (
  graph: string,
  form?: Parameters<typeof prunedHead>[1],
  backend?: (typeof BACKENDS)[number],
): Promise<OnnxModel> => OnnxModel.load(pruned(graph, form), { ...SMALL, config, ...(backend && { backend }) })

for (const graph of GRAPHS) {
  for (const [form, backend] of BACKENDS.flatMap(one => [['last', one] as const, ['flat', one] as const])) {
    test(`${graph}, ${form}, ${backend}: greedy tokens are those of the reference, drafted too, in batches and in pieces`, async t => {
      await using model = await load(graph, form, backend)
      const names = ['p7', 'p33', 'p100'] as const
      for (const draft of [undefined, 'lookup'] as const) {
        const chats = names.map(name => model.open({ tokens: promptOf(name), salt: `${draft}` }))
        const found = await Promise.all(chats.map(chat => read(model, chat, 24, draft === undefined ? {} : { draft })))
        t.deepEqual(
          found,
          names.map(name => greedyOf(name).slice(0, 24)),
          `${draft}`,
        )
        for (const chat of chats) chat.dispose()
      }
    })

    test(`${graph}, ${form}, ${backend}: all rows are those of the reference`, async t => {
      await using model = await load(graph, form, backend)
      const far = graph.endsWith('f16') ? 0.1 : 1e-4
      using whole = model.open({ salt: 'whole' })
      using other = model.open({ salt: 'other' })
      const entries = [
        { sequence: whole, tokens: promptOf('p33') },
        { sequence: other, tokens: promptOf('p7') },
      ]
      const [first, second] = (await model.run(entries, { logits: 'all' })) as [Float32Array, Float32Array]
      t.true(distance(first, referenceLogits('logits.p33')) < far)
      t.true(distance(second, referenceLogits('logits.p7')) < far)
      t.deepEqual(await read(model, whole, 8), greedyOf('p33').slice(0, 8))
    })
  }

  test(`${graph}: any backend computes a pruned head, the fastest one by default`, async t => {
    for (const form of ['last', 'flat'] as const) {
      await using model = await load(graph, form)
      t.is(model.backend, 'graph')
    }
  })

  test(`${graph}: a shape that cannot be what was asked is refused with both when the model is loaded`, async t => {
    const first = await rejected(load(graph, 'twice'), 'UNSUPPORTED_GRAPH')
    t.regex(first.message, /it has the rows \[2, 2\] of 3 tokens/)
    const { details } = await rejected(load(graph, 'twice', 'plain'), 'UNSUPPORTED_GRAPH')
    t.like(details, { node: 'logits', operator: 'output', kind: 'output' })
    t.true(details.reason.includes('[1, 2, 320]') && details.reason.includes('[1, 1, 320]'), details.reason)
  })
}

test('nothing is drafted where a step would give one row', async t => {
  const loaded = await loadModel(pruned('llama/onnx'), { ...SMALL, backend: 'plain' })
  let tokens = 0
  const counting: Backend = {
    name: 'plain',
    get isPruned() {
      return loaded.backend.isPruned === true
    },
    run: step => {
      tokens += step.ids.length
      return loaded.backend.run(step)
    },
    dispose: () => loaded.backend.dispose(),
  }
  await using model = new OnnxModel(INTERNAL, { ...loaded, backend: counting })
  await using second = await OnnxModel.load(graphFile('llama/onnx'), SMALL)
  using chat = model.open({ tokens: promptOf('p33') })
  t.deepEqual(await read(model, chat, 24, { draft: second }), greedyOf('p33').slice(0, 24))
  t.is(tokens, 33 + 23)
  t.is(second.cache.stats().promptTokens, 0, 'the second model is not asked either')
})

test('the past of one sequence goes on with one row', async t => {
  for (const form of ['last', 'flat'] as const) {
    const session = await ort.InferenceSession.create(pruned('llama/onnx', form), quiet)
    using cache = new PagedKvCache({ numLayers: 3, numKvHeads: 2, headDim: 16, blockSize: 16, capacity: 64 })
    using past = new OnnxPast<ort.Tensor>({ session, cache, Tensor: ort.Tensor })
    const tokens = promptOf('p33')
    while (tokens.length < 33 + 8) {
      const outputs = (await session.run(past.resume(tokens).feeds)) as Record<string, ort.Tensor>
      past.commit(outputs)
      const logits = floats(outputs['logits'] as ort.Tensor)
      t.is(logits.length, 320)
      tokens.push(argmax(logits))
    }
    t.deepEqual(tokens.slice(33), greedyOf('p33').slice(0, 8))
  }
})

const product = (dims: readonly number[]): number => dims.reduce((all, dim) => all * dim, 1)
const tensor = (dims: readonly number[], elements: number = product(dims)) => ({
  type: 'float32',
  dims,
  data: new Float32Array(elements),
})

const rows = (dims: readonly number[], count: number): number => readLogits(tensor(dims), count).rows

test('rows are read as a shape says, and none is made up', t => {
  t.deepEqual(
    [
      [1, 5, 8],
      [5, 8],
      [5, 1, 8],
      [1, 1, 5, 8],
    ].map(dims => rows(dims, 5)),
    [5, 5, 5, 5],
  )
  t.deepEqual(
    [[1, 1, 8], [1, 8], [8]].map(dims => rows(dims, 5)),
    [1, 1, 1],
  )
  for (const dims of [[1, 4, 8], [2, 5, 8], [5, 5, 8], [1, 6, 8], [1, 0, 8], [1, 5, 0], [], [2, 3, 8]]) {
    const { message } = throwsCode(t, 'RUNTIME_FAILED', () => rows(dims, 5))
    t.true(message.includes(`[${dims.join(', ')}]`) && message.includes('[1, 5, '), message)
  }
  throwsCode(t, 'RUNTIME_FAILED', () => readLogits(tensor([1, 5, 8], 39), 5))
  t.true(
    throwsCode(t, 'RUNTIME_FAILED', () => readLogits({ ...tensor([1, 5, 8]), type: 'int64' }, 5)).message.includes(
      'int64',
    ),
  )
})

for (const [name, element, dims] of [
  ['num_logits_to_keep', 'int64', []],
  ['logits_to_keep', 'int64', []],
  ['logits_to_keep', 'int64', [1]],
  ['logits_to_keep', 'int32', []],
] as const) {
  test(`${name} of ${element} and [${dims.join()}] gives all rows, on plain and in a session of the caller's own`, async t => {
    const options = { ...SMALL, backend: 'plain' } as const
    const [bytes, tokens] = [smallDecoder({ kept: { name, element: ELEMENT[element], dims } }), [3, 9, 14, 22, 8]]
    await using model = await OnnxModel.load(bytes, options)
    await using other = await OnnxModel.load(smallDecoder(), options)
    const all = async (one: OnnxModel): Promise<Float32Array> => {
      using sequence = one.open()
      return (await one.run([{ sequence, tokens }], { logits: 'all' }))[0] as Float32Array
    }
    const [found, wanted] = [await all(model), await all(other)]
    t.is(found.length, tokens.length * SMALL_VOCABULARY)
    t.true(distance(found, wanted) < 1e-5)
    const session = await ort.InferenceSession.create(bytes, quiet)
    using cache = new PagedKvCache({ capacity: 16, numLayers: 1, numKvHeads: 2, headDim: 8 })
    using past = new OnnxPast({ session, cache, Tensor: ort.Tensor })
    const { logits } = await session.run(past.resume(tokens).feeds)
    t.true(distance((logits as ort.Tensor).data as Float32Array, wanted) < 1e-5)
  })
}
