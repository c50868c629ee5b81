// The cross cache's bookkeeping, wrong encodings and inputs, and the forms of decoders that are refused. Tensors of the cross cache are passed to each call as they are.
import * as ort from 'onnxruntime-node'

import { INTERNAL } from '../../lib/border/owner.js'
import { binding } from '../../lib/loading/binding.js'
import { CrossCache } from '../../lib/onnx/cross-cache.js'
import { Encoding, OnnxModel } from '../../onnx.js'
import { KeptPresents } from '../../lib/onnx/kept-presents.js'
import { Plain } from '../../lib/onnx/plain.js'
import { OnnxPorts } from '../../lib/onnx/ports.js'
import { onnxPackage, type RuntimeSession, type RuntimeTensor } from '../../lib/onnx/runtime.js'
import { StepRun } from '../../lib/sequences/step-run.js'
import { computeLent } from '../../lib/onnx/open-sessions.js'
import type { StepSequence } from '../../lib/onnx/backend.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { read } from '../support/onnx/chat.js'
import { load, models, type Seq2Seq } from '../support/onnx/encoder-decoder.js'
import { graphFile } from '../support/onnx/graphs.js'
import { rejected, throwsCode } from '../support/throws.js'

const whisper = models.find(({ name }) => name === 'whisper') as Seq2Seq
const t5 = models.find(({ name }) => name === 't5') as Seq2Seq

const encodingOf = (value: number, frames = 2): Encoding =>
  new Encoding(INTERNAL, {
    type: 'float32',
    data: new Float32Array(frames * 4).fill(value),
    frames,
    width: 4,
    mask: undefined,
  })
const used = (...encodings: Encoding[]): StepSequence[] => encodings.map(encoding => ({ encoding }) as StepSequence)

test('encodings that were used longest ago are dropped, those of a step only behind it, and a failed step keeps none that it added', t => {
  // Two frames of 4 floats on both threads, and 10 bytes of keys and values each.
  const size = 2 * 2 * 16 + 2 * 10
  const cross = new CrossCache(2 * size, { frameBytes: 10, copies: 2 })
  const [a, b, c] = [1, 2, 3].map(value => encodingOf(value)) as [Encoding, Encoding, Encoding]
  const first = cross.of(used(a, b, a))
  t.deepEqual(first.encodings.numbers, [1, 2, 1])
  t.deepEqual(
    first.encodings.added.map(({ number }) => number),
    [1, 2],
  )
  first.done()
  t.deepEqual(cross.stats(), { encodings: 2, bytes: 2 * size, computed: 2, encoderRuns: 0 })
  const second = cross.of(used(a, c))
  t.deepEqual(second.encodings, { ...second.encodings, numbers: [1, 3], forget: [] })
  t.is(cross.stats().bytes, 3 * size)
  second.done()
  t.deepEqual(cross.stats(), { encodings: 2, bytes: 2 * size, computed: 3, encoderRuns: 0 })
  const third = cross.of(used(b))
  t.deepEqual([third.encodings.numbers, third.encodings.forget], [[4], [2]])
  third.failed()
  // It stays with its states; the one that was added is the newest.
  t.is(cross.stats().bytes, 2 * size + 32)
  const fourth = cross.of(used(b, a))
  // The backend may not have got the numbers of the step that failed.
  t.deepEqual(
    [fourth.encodings.numbers, fourth.encodings.forget],
    [
      [5, 1],
      [2, 4],
    ],
  )
  t.deepEqual(
    fourth.encodings.added.map(({ number }) => number),
    [5],
  )
  // An encoder's result that no sequence has used takes the bytes of its states only.
  const results = new CrossCache(100, { frameBytes: 10, copies: 2 })
  results.add('inputs', a)
  t.deepEqual(results.stats(), { encodings: 1, bytes: 32, computed: 0, encoderRuns: 1 })
  t.is(results.find('inputs'), a)
  t.is(results.find('others'), undefined)
})

/** A step of one sequence. */
const stepOf = (
  encoding: Encoding | undefined,
  before: readonly number[],
  id: number,
): Parameters<KeptPresents['of']>[0] =>
  ({
    sequences: [{ sequence: { id: 7 }, before: Uint32Array.from(before), encoding }],
    offsets: Int32Array.of(0, 1),
    ids: Uint32Array.of(id),
  }) as unknown as Parameters<KeptPresents['of']>[0]

test('presents of a sequence are not those of another encoding, even if number and tokens are the same', t => {
  const presents = new KeptPresents()
  const [a, b] = [encodingOf(1), encodingOf(2)]
  presents.of(stepOf(a, [], 5)).done()
  const same = presents.of(stepOf(encodingOf(1), [5], 6))
  t.is(same.pasts.sequences[0]?.from, 1)
  same.done()
  const other = presents.of(stepOf(b, [5, 6], 7))
  t.is(other.pasts.sequences[0]?.from, undefined)
  t.deepEqual(other.pasts.forget, [2])
})

test('each call gets the same tensors of the cross cache, and returns none', async t => {
  await using model = await load(whisper)
  const graph = await binding.NativeOnnxGraph.open(whisper.file)
  const { groups, dtype, keyFormat, valueFormat } = model.cache
  const calls: { feeds: Readonly<Record<string, RuntimeTensor>>; outputs: readonly string[] }[] = []
  const { prototype } = ort.InferenceSession as unknown as { readonly prototype: RuntimeSession }
  const { run } = prototype
  const seen: RuntimeSession['run'] = async function (this: RuntimeSession, feeds, fetches = []) {
    calls.push({ feeds, outputs: fetches })
    return run.call(this, feeds, fetches)
  }
  Object.assign(prototype, { run: seen })
  t.teardown(() => Object.assign(prototype, { run }))
  const plain = await Plain.open(
    {
      kind: 'plain',
      graph: graph.share(),
      cache: { groups: groups.map(group => ({ ...group })), dtype, keyFormat, valueFormat },
      threads: 1,
      takesFolder: true,
      runtime: onnxPackage(),
    },
    async call => call(),
  )
  // Both branches compute several tokens in a call, so drafts are not off.
  t.false(plain.isPruned)
  calls.length = 0
  const { data, shape } = whisper.tensor('encoded.a')
  const [, frames = 0, width = 0] = shape
  const sequence = model.cache.openSequence()
  for (const [at, token] of [3, 29, 33, 28].entries()) {
    using step = model.cache.beginStep({ sequences: [sequence], offsets: [0, 1], tokens: [token] })
    using lent = StepRun.of(step)
    await computeLent(plain, lent.share(), {
      offsets: Int32Array.of(0, 1),
      ids: Uint32Array.of(token),
      positions: Int32Array.of(at),
      rows: Int32Array.of(0),
      pasts: { sequences: [{ length: at, from: at === 0 ? undefined : at, keep: at + 1 }], forget: [] },
      encodings: {
        numbers: [9],
        added: at === 0 ? [{ number: 9, states: { type: 'float32', data, frames, width, mask: undefined } }] : [],
        forget: [],
      },
    })
    lent.end()
    step.commit()
  }
  t.is(calls.length, 4)
  const names = Object.keys(calls[1]?.feeds ?? {}).filter(name => /encoder/.test(name))
  t.is(names.length, 5)
  for (const name of names) {
    t.not(calls[1]?.feeds[name]?.dims[2], 0)
    t.is(new Set(calls.slice(1).map(({ feeds }) => feeds[name]?.data)).size, 1, name)
  }
  t.deepEqual(
    calls.map(({ outputs }) => outputs.filter(name => name.includes('encoder')).length),
    [4, 0, 0, 0],
  )
  sequence.dispose()
  await plain.release()
})

test('wrong encodings are refused by name, and change nothing', async t => {
  await using model = await load(t5)
  const { data, shape } = t5.tensor('encoded.a')
  const [, frames = 0, width = 0] = shape
  const before = JSON.stringify(model.cache.stats())
  const tokens = [0]
  const cases: readonly (readonly [encoded: unknown, message: RegExp])[] = [
    [undefined, /^encoded is undefined, expected the result of encode\(inputs\), or the output of an encoder/],
    [null, /^encoded is null, expected an object/],
    [data, /^encoded is .*expected an object with data and dims/],
    [{ data, dims: shape, maks: [1] }, /^encoded\.maks is an unknown option.*did you mean 'mask'/],
    [{ data, dims: [frames * width] }, /^encoded\.dims is .*expected \[frames, 16\] or \[1, frames, 16\]/],
    [{ data, dims: [2, frames, width / 2] }, /^encoded\.dims is .*expected \[frames, 16\]/],
    [{ data, dims: [frames * 2, width / 2] }, /^encoded\.dims is .*expected \[frames, 16\]/],
    [{ data: new Float32Array(0), dims: [0, width] }, /^encoded\.dims is .*without zeros/],
    [
      { data, dims: [frames + 1, width] },
      new RegExp(`^encoded\\.data\\.length is ${data.length}, expected ${(frames + 1) * width}`),
    ],
    [{ data: Float64Array.from(data), dims: shape }, /^encoded\.data is .*expected Float32Array/],
    [{ data: new Uint16Array(data.length), dims: shape }, /^encoded\.data is .*expected Float32Array/],
    [{ data: data.with(17, NaN), dims: shape }, /^encoded\.data\[17\] is NaN, expected a finite number/],
    [{ data: data.with(3, -Infinity), dims: shape }, /^encoded\.data\[3\] is -Infinity, expected a finite number/],
    [
      { data, dims: shape, mask: [1, 1] },
      new RegExp(`^encoded\\.mask\\.length is 2, expected ${frames}, one number for each frame`),
    ],
    [
      { data, dims: shape, mask: Array.from({ length: frames }, () => 0) },
      /^encoded\.mask is .*expected at least one 1/,
    ],
    [{ data, dims: shape, mask: Array.from({ length: frames }, () => 2) }, /^encoded\.mask\[0\] is 2, expected 0 or 1/],
    [encodingOf(1), /^encoded\.width is 4, expected 16, as the model has/],
    [
      new Encoding(INTERNAL, { type: 'float16', data: new Uint16Array(16), frames: 1, width: 16, mask: undefined }),
      /^encoded is .*float16.* expected float32, as the model has/,
    ],
  ]
  for (const [encoded, message] of cases) {
    for (const call of [
      () => model.open({ tokens, encoded: encoded as never }),
      () => model.admit(tokens, { encoded: encoded as never }),
    ]) {
      const error = throwsCode(t, 'INVALID_ARGUMENT', call)
      t.regex(error.message, message)
    }
  }
  t.is(JSON.stringify(model.cache.stats()), before)
  t.like(model.crossCache, { encodings: 0, computed: 0 })
  // A mask of a decoder that takes none may have ones only.
  await using speech = await load(whisper)
  const states = whisper.tensor('encoded.a')
  const masked = { data: states.data, dims: states.shape, mask: Array.from({ length: 12 }, () => 1) }
  using sequence = speech.open({ tokens: [3], encoded: masked })
  t.deepEqual(await read(speech, sequence, 3), whisper.greedy('a', 'p1').slice(0, 3))
  masked.mask[4] = 0
  t.regex(throwsCode(t, 'INVALID_ARGUMENT', () => speech.open({ encoded: masked })).message, /takes no mask/)
})

test('a mask hides frames: an encoding with one is another one', async t => {
  await using model = await load(t5)
  const { data, shape } = t5.tensor('encoded.c')
  const mask = BigInt64Array.from([...t5.tensor('attention_mask.c').data], BigInt)
  using hidden = model.open({ tokens: [0], encoded: { data, dims: shape, mask: mask as never } })
  t.deepEqual(await read(model, hidden, 12), t5.greedy('c', 'p1'))
  using seen = model.open({ tokens: [0], encoded: { data, dims: shape } })
  t.notDeepEqual(await read(model, seen, 12), t5.greedy('c', 'p1'))
  // A mask of the same length that hides another frame.
  const first = mask.map((_, frame) => (frame === 0 ? 0n : 1n))
  using other = model.open({ tokens: [0], encoded: { data, dims: shape, mask: first as never } })
  await read(model, other, 12)
  t.is(model.crossCache?.encodings, 3)
})

test('wrong inputs of an encoder are refused by name, and it does not run', async t => {
  await using model = await load(t5)
  await using speech = await load(whisper)
  const { data, shape } = whisper.tensor('input_features.a')
  const cases: readonly (readonly [model: OnnxModel, inputs: unknown, message: RegExp])[] = [
    [model, undefined, /^inputs is undefined, expected an object/],
    [model, {}, /^inputs\.input_ids is undefined, expected an object/],
    [model, { input_ids: [] }, /^inputs\.input_ids\.length is 0, expected at least 1/],
    [model, { input_ids: [1.5] }, /^inputs\.input_ids\[0\] is 1\.5/],
    [
      model,
      { input_ids: [5], token_type_ids: [0] },
      /^inputs is .*token_type_ids.*expected only inputs of the encoder: input_ids, attention_mask/,
    ],
    [model, { input_ids: [5, 6], attention_mask: [1] }, /^inputs\.attention_mask\.length is 1, expected 2/],
    [model, { input_ids: [5, 6], attention_mask: [0, 0] }, /^inputs\.attention_mask is 0, expected zeros and ones/],
    [model, { input_ids: [5, 6], attention_mask: [1, 2] }, /^inputs\.attention_mask is .*expected zeros and ones/],
    [
      model,
      { input_ids: { data: BigInt64Array.of(5n, 6n), dims: [2, 1] } },
      /^inputs\.input_ids\.dims is .*expected \[1, encoder_sequence_length\]/,
    ],
    [
      model,
      { input_ids: { data: Int32Array.of(5), dims: [1, 1] } },
      /^inputs\.input_ids\.data is .*expected BigInt64Array/,
    ],
    [speech, { input_features: [1, 2] }, /^inputs\.input_features is .*expected a tensor \{ data, dims \} of float32/],
    [
      speech,
      { input_features: { data, dims: [1, 8, 25] } },
      /^inputs\.input_features\.dims is .*expected \[1, 8, 24\]/,
    ],
    [
      speech,
      { input_features: { data: data.subarray(1), dims: shape } },
      /^inputs\.input_features\.data\.length is 191, expected 192/,
    ],
  ]
  for (const [of, inputs, message] of cases) {
    const error = await rejected(of.encode(inputs as never), 'INVALID_ARGUMENT')
    t.regex(error.message, message)
    t.true(error.message.length <= 300)
  }
  t.is(model.crossCache?.encoderRuns, 0)
  // An id beyond its vocabulary is the runtime's to refuse. The encoder goes on with the next input.
  await rejected(model.encode({ input_ids: [5000] }), 'RUNTIME_FAILED')
  t.is(model.crossCache?.encoderRuns, 0)
  t.is((await model.encode({ input_ids: [5] })).frames, 1)
})

test('models without an encoder, and decoders whose encoder is not found, are told so', async t => {
  await using model = await OnnxModel.load(graphFile('llama/onnx'), { threads: 1, cache: { capacity: 16 } })
  t.is(model.crossCache, undefined)
  const { data, shape } = t5.tensor('encoded.a')
  const wrong = throwsCode(t, 'INVALID_ARGUMENT', () => model.open({ encoded: { data, dims: shape } }))
  t.regex(wrong.message, /^encoded is .*expected no value: the model has no inputs for the output of an encoder/)
  t.regex((await rejected(model.encode({}), 'INVALID_ARGUMENT')).message, /none: it has no inputs for one/)
  for (const options of [{ encoder: whisper.file }, { crossCacheBytes: 5 }]) {
    const error = await rejected(OnnxModel.load(graphFile('llama/onnx'), options), 'INVALID_ARGUMENT')
    t.regex(error.message, /expected no value: the model has no inputs for the output of an encoder/)
  }
  await using own = await OnnxModel.load(t5.file, { threads: 1, backend: 'plain', cache: { capacity: 16 } })
  t.throws(() => model.generate(model.open({ tokens: [1] }), { draft: own }), {
    message: /expected a model without an encoder/,
  })
})

const layer = (kind: string): string[] => ['key', 'value'].map(side => `past_key_values.0.${kind}.${side}`)
const presents = (kind: string): string[] => ['key', 'value'].map(side => `present.0.${kind}.${side}`)

test('decoders in other forms than the merged one, and other objects than OnnxModel, are refused with the form that runs', async t => {
  const forms: readonly (readonly [inputNames: string[], outputNames: string[], message: RegExp])[] = [
    [
      ['input_ids', 'encoder_hidden_states'],
      ['logits', ...presents('decoder')],
      /at encoder_hidden_states \(input\): it has no past; load decoder_model_merged\.onnx/,
    ],
    [
      ['input_ids', ...layer('decoder'), ...layer('encoder')],
      ['logits', ...presents('decoder')],
      /at encoder_hidden_states \(input\): it is missing; load decoder_model_merged/,
    ],
    [
      ['input_ids', 'encoder_hidden_states', 'use_cache_branch', ...layer('decoder'), ...layer('encoder')],
      ['logits', ...presents('decoder')],
      /at present\.0\.encoder\.key \(output\): it is missing/,
    ],
    [
      ['input_ids', 'encoder_hidden_states', 'use_cache_branch', ...layer('decoder')],
      ['logits', ...presents('decoder')],
      /at past_key_values\.0\.encoder\.key \(input\): it is missing/,
    ],
    [
      ['input_ids', 'past_key_self_0', 'past_value_self_0', 'past_value_cross_0'],
      ['logits', 'present_key_self_0', 'present_value_self_0'],
      /at past_key_cross_0 \(input\): it is missing/,
    ],
    [
      ['input_ids', 'encoder_hidden_states', ...layer('self'), ...layer('cross')],
      ['logits', ...presents('self'), ...presents('cross')],
      /at past_key_values\.0\.cross\.key \(input\): this form of a decoder is not known/,
    ],
  ]
  for (const [inputNames, outputNames, message] of forms)
    t.regex(throwsCode(t, 'UNSUPPORTED_GRAPH', () => new OnnxPorts({ inputNames, outputNames })).message, message)
  // Its attentions add numbers that depend on the distance of two tokens.
  for (const backend of ['graph', 'parts'] as const) {
    const error = await rejected(OnnxModel.load(t5.file, { backend }), 'UNSUPPORTED_GRAPH')
    t.regex(error.message, /SelfAttention.* \(Softmax\): .* adds .* to scores/)
  }
})
