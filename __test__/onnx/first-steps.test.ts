// Graphs that the runtime refuses only when they run: a load is refused, not the first token.
import { binding } from '../../lib/loading/binding.js'
import { Plain } from '../../lib/onnx/plain.js'
import { onnxPackage } from '../../lib/onnx/runtime.js'
import type { RuntimeCall } from '../../lib/onnx/sessions.js'
import { type BackendName, OnnxModel, type OnnxModelOptions } from '../../onnx.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { load, models, type Seq2Seq } from '../support/onnx/encoder-decoder.js'
import { type SmallDecoder, smallDecoder } from '../support/onnx/small-decoder.js'
import { rejected } from '../support/throws.js'

const SMALL = { threads: 1, cache: { memoryBytes: 2 ** 20 } } satisfies OnnxModelOptions

test('a node that the runtime has no code for is refused when the model is loaded, with the reason of the runtime', async t => {
  const warnings: (Error & { code?: string })[] = []
  const note = (warning: Error): void => void warnings.push(warning)
  process.on('warning', note)
  t.teardown(() => process.off('warning', note))
  const bytes = smallDecoder({ isPacked: true })
  const error = await rejected(OnnxModel.load(bytes, { ...SMALL, backend: 'plain' }), 'UNSUPPORTED_GRAPH')
  t.like(error.details, { node: 'node/attended', operator: 'MultiHeadAttention', kind: 'form' })
  t.regex(error.details.reason, /^onnxruntime: Packed QKV .* not implemented for CPU$/)
  t.regex(error.message, /at node\/attended \(MultiHeadAttention\): onnxruntime: Packed QKV .*; export it with optimum/)
  const { details } = await rejected(OnnxModel.load(bytes, SMALL), 'UNSUPPORTED_GRAPH')
  t.is(details.node, 'node/attended')
  t.regex(details.reason, /^onnxruntime: /, 'rather than the reason of a faster backend')
  t.deepEqual(
    warnings.filter(({ code }) => code === 'KVTIDE_PLAIN'),
    [],
  )
})

const FAILING: readonly (readonly [name: string, form: SmallDecoder, backends: readonly BackendName[]])[] = [
  ['every token', { fails: 'always' }, ['graph', 'parts', 'plain']],
  ['several tokens in one call', { fails: 'several' }, ['plain']],
  ['tokens behind others', { fails: { behind: 1 } }, ['plain']],
]
for (const [name, form, backends] of FAILING)
  for (const backend of backends)
    test(`${backend}: a graph that fails for ${name} is refused when the model is loaded`, async t => {
      const { details } = await rejected(OnnxModel.load(smallDecoder(form), { ...SMALL, backend }), 'UNSUPPORTED_GRAPH')
      t.regex(details.reason, /^onnxruntime: \S/)
      t.true(['Reshape', 'Gather'].includes(details.operator), details.operator)
    })

test('no more tokens are computed than a step and the context have room for', async t => {
  for (const options of [{ maxStepTokens: 1 }, { config: { model_type: 'stranger', n_ctx: 1 } as never }] as const) {
    await using model = await OnnxModel.load(smallDecoder({ fails: 'several' }), {
      ...SMALL,
      ...options,
      backend: 'plain',
    })
    using sequence = model.open({ tokens: [3] })
    const [logits] = await model.run([{ sequence }])
    t.is(logits?.length, 24)
  }
  const config = { model_type: 'stranger', n_ctx: 2 } as never
  await using model = await OnnxModel.load(smallDecoder({ fails: { behind: 1 } }), {
    ...SMALL,
    config,
    backend: 'plain',
  })
  t.is(model.contextLength, 2)
})

test('the steps leave nothing in the cache of the model', async t => {
  for (const backend of ['graph', 'parts', 'plain'] as const) {
    await using model = await OnnxModel.load(smallDecoder(), { ...SMALL, backend })
    const { activeBlocks, hitTokens } = model.cache.stats()
    t.deepEqual([activeBlocks, hitTokens], [0, 0])
    using sequence = model.open({ tokens: [0, 0, 0, 0] })
    t.is(sequence.length, 0)
    model.cache.checkInvariants()
  }
})

test('a decoder with an encoder is refused if it fails in its first calls, and gets one token at a time if it fails for several', async t => {
  const whisper = models.find(({ name }) => name === 'whisper') as Seq2Seq
  await using model = await load(whisper)
  const { groups, dtype, keyFormat, valueFormat } = model.cache
  const graph = await binding.NativeOnnxGraph.open(whisper.file)
  const reason = "Non-zero status code returned while running Foo node. Name:'foo' Status Message: not implemented"
  /** Opens the decoder with a runtime whose call of this number fails. The first two calls load it and make the session. */
  const opened = async (failing: number): Promise<Plain> => {
    let calls = 0
    const calling: RuntimeCall = async call => {
      if (calls++ === failing) throw new Error(reason)
      return call()
    }
    const cache = { groups: groups.map(group => ({ ...group })), dtype, keyFormat, valueFormat }
    const runtime = onnxPackage()
    return Plain.open({ kind: 'plain', graph: graph.share(), cache, threads: 1, takesFolder: true, runtime }, calling)
  }
  for (const [failing, what] of [
    [2, 'several tokens without the cross cache'],
    [3, 'a token with the cross cache'],
  ] as const) {
    const { details } = await rejected(opened(failing), 'UNSUPPORTED_GRAPH')
    t.deepEqual(details, { node: 'foo', operator: 'Foo', reason: 'onnxruntime: not implemented', kind: 'form' }, what)
  }
  for (const [failing, isPruned] of [
    [4, true],
    [5, true],
    [6, false],
  ] as const) {
    const plain = await opened(failing)
    t.is(plain.isPruned, isPruned)
    await plain.release()
  }
})
