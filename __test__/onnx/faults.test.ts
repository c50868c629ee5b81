// What can be wrong with a model, with its files, with the runtime and with what it computes: an error with a code and the name of the node or the
// file, and everybody else goes on.
import { mkdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'

import type { ExecutionContext } from 'ava'

import { PagedKvCache } from '../../index.js'
import { INTERNAL } from '../../lib/border/owner.js'
import type { Backend } from '../../lib/onnx/backend.js'
import { loadModel } from '../../lib/onnx/load.js'
import { type BackendName, OnnxModel, type OnnxModelOptions } from '../../onnx.js'
import { distance, referenceLogits } from '../support/llama/references.js'
import { readSafetensors } from '../support/llama/safetensors.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { greedyOf, promptOf, read } from '../support/onnx/chat.js'
import { copied, inBf16, withNodes } from '../support/onnx/changed.js'
import { models as encoderDecoders, type Seq2Seq } from '../support/onnx/encoder-decoder.js'
import { graphFile as anyGraph } from '../support/onnx/graphs.js'
import { graphFile, WINDOWED } from '../support/onnx/paged-graph.js'
import { rejected, throwsCode } from '../support/throws.js'
import { startWorker } from '../support/worker.js'

const BACKENDS = ['graph', 'parts', 'plain'] satisfies BackendName[]
const SMALL = { threads: 1, cache: { memoryBytes: 2 ** 23 } } satisfies OnnxModelOptions

/** A graph that is not recognised: another node reads a past. */
const unrecognised = (bytes: Uint8Array, output = 'extra'): Buffer =>
  withNodes(bytes, [{ operator: 'Identity', inputs: ['past_key_values.0.key'], output }])

/** A `config.json` of a family that is not known. */
const STRANGER = { model_type: 'stranger', hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2 }

/** The model gives the references' numbers, also where the past is read back from the cache. */
async function isRight(t: ExecutionContext, model: OnnxModel): Promise<void> {
  using sequence = model.open()
  const [logits] = (await model.run([{ sequence, tokens: promptOf('p33') }], { logits: 'all' })) as [Float32Array]
  t.true(distance(logits, referenceLogits('logits.p33')) < 1e-4)
  using fork = sequence.fork()
  fork.truncate(30)
  t.deepEqual(await read(model, fork, 12), await read(model, model.open({ tokens: promptOf('p33').slice(0, 30) }), 12))
  t.deepEqual(await read(model, sequence, 12), greedyOf('p33').slice(0, 12))
}

test('a graph that is not recognised is refused by the node, and runs as it is', async t => {
  const bytes = unrecognised(readFileSync(graphFile('onnx')))
  for (const backend of ['graph', 'parts'] as const) {
    const { details } = await rejected(OnnxModel.load(bytes, { ...SMALL, backend }), 'UNSUPPORTED_GRAPH')
    t.deepEqual(details, {
      node: 'added/extra',
      operator: 'Identity',
      reason: 'it reads past_key_values.0.key, which the rewrite drops',
      kind: 'form',
    })
  }
  await using model = await OnnxModel.load(bytes, SMALL)
  t.is(model.backend, 'plain')
  t.deepEqual(
    model.refusals.map(({ backend, error: { code } }) => [backend, code]),
    [
      ['graph', 'UNSUPPORTED_GRAPH'],
      ['parts', 'UNSUPPORTED_GRAPH'],
    ],
  )
  await isRight(t, model)
})

test('the slow backend is a warning once, with the node and the reason, unless it was asked for', async t => {
  const warnings: (Error & { code?: string })[] = []
  const note = (warning: Error): void => void warnings.push(warning)
  process.on('warning', note)
  t.teardown(() => process.off('warning', note))
  const file = copied(t, graphFile('onnx'), bytes => unrecognised(bytes, 'warned'))
  for (const options of [{ ...SMALL, backend: 'plain' }, SMALL, SMALL] as const) {
    await using model = await OnnxModel.load(file, options)
    t.is(model.backend, 'plain')
  }
  await using fast = await OnnxModel.load(graphFile('onnx'), SMALL)
  t.not(fast.backend, 'plain')
  const [warning, ...others] = warnings.filter(
    ({ code, message }) => code === 'KVTIDE_PLAIN' && message.includes('added/warned'),
  )
  t.deepEqual(others, [])
  t.regex(
    warning?.message ?? '',
    /^model\.onnx runs on the slow backend plain, .* added\/warned .*it reads past_key_values.*; export it with optimum/,
  )
  t.true((warning?.message.length ?? Infinity) <= 300 && !warning?.message.includes('\n'))
})

test('a decoder with an encoder says once that it runs on the slow backend, unless that one was asked for', async t => {
  const warnings: (Error & { code?: string })[] = []
  const note = (warning: Error): void => void warnings.push(warning)
  process.on('warning', note)
  t.teardown(() => process.off('warning', note))
  const { file } = encoderDecoders.find(({ backends }) => backends.length === 1) as Seq2Seq
  for (const options of [{ ...SMALL, backend: 'plain' }, SMALL, SMALL] as const) {
    await using model = await OnnxModel.load(file, options)
    t.is(model.backend, 'plain')
  }
  const about = warnings.filter(({ code, message }) => code === 'KVTIDE_PLAIN' && message.startsWith('decoder_model'))
  t.deepEqual(
    about.map(({ message }) => message),
    [
      "decoder_model_merged.onnx runs on the slow backend plain, one sequence after the other: /decoder/block.0/layer.0/SelfAttention/Softmax (Softmax): /decoder/block.0/layer.0/SelfAttention/Add_1_output_0 adds 0.33748146891593933 to scores; pass backend: 'plain' to load it without this warning",
    ],
  )
})

test('where no way works, the first refusal is told', async t => {
  // The graph does not say how wide its heads are, and no config does.
  const { details } = await rejected(
    OnnxModel.load(unrecognised(readFileSync(graphFile('onnx-gqa-f32'))), SMALL),
    'UNSUPPORTED_GRAPH',
  )
  t.is(details.node, 'added/extra')
  const plain = await rejected(
    OnnxModel.load(unrecognised(readFileSync(graphFile('onnx-gqa-f32'))), { ...SMALL, backend: 'plain' }),
    'UNSUPPORTED_GRAPH',
  )
  t.is(plain.details.node, 'past_key_values.0.key')
})

test('sizes are those of a config, also of a family that is not known', async t => {
  const file = copied(t, graphFile('onnx-gqa-f32'), bytes => unrecognised(bytes))
  const genai = await OnnxModel.load(file, SMALL)
  t.is(genai.backend, 'plain', 'genai_config.json says them as well')
  await genai.dispose()
  rmSync(join(dirname(file), 'genai_config.json'))
  await rejected(OnnxModel.load(file, SMALL), 'UNSUPPORTED_GRAPH')
  writeFileSync(join(dirname(file), 'config.json'), JSON.stringify({ ...STRANGER, sliding_window: 8 }))
  await using beside = await OnnxModel.load(file, SMALL)
  t.is(beside.backend, 'plain')
  await isRight(t, beside)
  await using given = await OnnxModel.load(readFileSync(file), {
    ...SMALL,
    config: { ...STRANGER, hidden_size: 1, head_dim: 16 } as never,
  })
  await isRight(t, given)
  await using nested = await OnnxModel.load(readFileSync(file), {
    ...SMALL,
    config: { model_type: 'stranger', text_config: STRANGER } as never,
  })
  await isRight(t, nested)
  // Where its windows count, they may not be ignored.
  const { details } = await rejected(
    OnnxModel.load(file, { ...SMALL, config: { ...STRANGER, sliding_window: 8 } as never }),
    'UNSUPPORTED_MODEL',
  )
  t.is(details.value, 'stranger')
  for (const wrong of ['null', '[]', '{', '"text"', '{"text_config":null}']) {
    writeFileSync(join(dirname(file), 'config.json'), wrong)
    t.is((await rejected(OnnxModel.load(file, SMALL), 'UNSUPPORTED_GRAPH')).details.node, 'added/extra', wrong)
  }
})

const loadPlain = (config: unknown): Promise<OnnxModel> =>
  OnnxModel.load(graphFile('onnx-gqa-f32'), { ...SMALL, backend: 'plain', config: config as never })

test('a window that only the config declares is refused by the backend that adds none', async t => {
  const { details } = await rejected(loadPlain(WINDOWED), 'UNSUPPORTED_GRAPH')
  t.is(details.node, 'past_key_values.0.key')
  t.regex(details.reason, /^the config declares a window of \d+ for layer 0, which the graph itself does not have/)
  await using model = await loadPlain({ ...WINDOWED, sliding_window: null })
  t.deepEqual(
    model.layers.map(({ kind }) => kind),
    ['full'],
  )
  await isRight(t, model)
})

test('a window that nothing declares is refused by its past', async t => {
  const slid = anyGraph('families/qwen2-window/builder')
  const config = { model_type: 'stranger', head_dim: 16, num_key_value_heads: 2 }
  // The graph that is recognised says its window itself.
  await using found = await OnnxModel.load(slid, { ...SMALL, backend: 'plain' })
  t.deepEqual(
    found.layers.map(({ window }) => window),
    [undefined, 9],
  )
  const { details } = await rejected(
    OnnxModel.load(
      copied(t, slid, bytes => unrecognised(bytes)),
      { ...SMALL, backend: 'plain', config: config as never },
    ),
    'UNSUPPORTED_GRAPH',
  )
  t.deepEqual(details, {
    node: 'past_key_values.1.key',
    operator: 'input',
    reason: 'the graph slides it, but the cache declares no window for its layer',
    kind: 'windows',
  })
})

test('what is no model is refused by the name of its file', async t => {
  const folder = dirname(graphFile('onnx'))
  const other = join(dirname(folder), 'hf')
  t.is(
    (await rejected(OnnxModel.load(other), 'INVALID_ARGUMENT')).message,
    `model is "${other}", expected a folder with a decoder, such as model.onnx or onnx/model_q4.onnx: it has no .onnx file`,
  )
  const text = join(folder, 'check.json')
  const error = await rejected(OnnxModel.load(text), 'INVALID_GRAPH')
  t.is(error.details.file, text)
  t.true(error.message.startsWith(`${text}: the model is malformed at offset 0`), error.message)
})

for (const backend of BACKENDS) {
  test(`${backend}: weights that are missing or cut short are refused by the name of their file`, async t => {
    const file = copied(t, graphFile('onnx-gqa-f32-ext'))
    truncateSync(`${file}.data`, 1000)
    const short = await rejected(OnnxModel.load(file, { ...SMALL, backend }), 'INVALID_GRAPH')
    t.is(short.details.file, 'model.onnx.data')
    t.regex(short.message, /model\.onnx\.data: expected at least \d+ bytes, not 1000/)
    rmSync(`${file}.data`)
    const missing = await rejected(OnnxModel.load(file, { ...SMALL, backend }), 'INVALID_GRAPH')
    t.is(missing.details.file, 'model.onnx.data')
    const inside = readFileSync(graphFile('onnx-gqa-f32'))
    t.is(
      typeof (
        await rejected(OnnxModel.load(inside.subarray(0, inside.length - 1000), { ...SMALL, backend }), 'INVALID_GRAPH')
      ).details.offset,
      'number',
    )
  })

  test(`${backend}: bytes have no folder, so weights beside them are refused with what to do`, async t => {
    const error = await rejected(
      OnnxModel.load(readFileSync(graphFile('onnx-gqa-f32-ext')), { ...SMALL, backend }),
      'INVALID_GRAPH',
    )
    t.is(error.details.file, 'model.onnx.data')
    t.regex(error.message, /model\.onnx\.data, expected the path of the model instead of its bytes/)
  })

  test(`${backend}: a token outside of the vocabulary fails alone, whatever shares its step`, async t => {
    await using model = await OnnxModel.load(graphFile('onnx'), { ...SMALL, backend })
    using known = model.open({ tokens: promptOf('p7') })
    for (const call of [() => model.open({ tokens: [3, 320] }), () => model.generate(known, { tokens: [3, 320] })]) {
      t.is(throwsCode(t, 'INVALID_ARGUMENT', call).details.argument, 'tokens[1]')
    }
    t.is(
      (await rejected(model.run([{ sequence: known, tokens: [2 ** 31] }]), 'INVALID_ARGUMENT')).details.argument,
      'entries[0].tokens[0]',
    )
    t.deepEqual([...known.tokens], promptOf('p7'))
    // Where the graph does not say how many there are, the runtime refuses the step.
    await using open = new OnnxModel(INTERNAL, {
      ...(await loadModel(graphFile('onnx'), { ...SMALL, backend })),
      vocabulary: undefined,
    })
    const [wrong, right] = [open.open({ tokens: [3, 4, 100_000] }), open.open({ tokens: promptOf('p33') })]
    const [failed, tokens] = await Promise.allSettled([read(open, wrong, 8), read(open, right, 8)])
    t.deepEqual(tokens, { status: 'fulfilled', value: greedyOf('p33').slice(0, 8) })
    const { details } = await rejected(
      failed.status === 'rejected' ? Promise.reject(failed.reason as Error) : Promise.resolve(),
      'RUNTIME_FAILED',
    )
    t.regex(details.node ?? '', /embed/)
    t.deepEqual([[...wrong.tokens], wrong.length], [[3, 4, 100_000], 0])
    wrong.truncate(2)
    t.is((await read(open, wrong, 4)).length, 4)
  })

  test(`${backend}: logits that are no numbers are refused, and the others go on`, async t => {
    const weights = readSafetensors(new URL('../fixtures/llama/hf/model.safetensors', import.meta.url)).get(
      'model.embed_tokens.weight',
    )?.data as Float32Array
    const bytes = readFileSync(graphFile('onnx'))
    const row = weights.subarray(7 * 64, 8 * 64)
    const at = bytes.indexOf(Buffer.from(row.buffer, row.byteOffset, row.byteLength))
    t.true(at > 0)
    bytes.fill(0xff, at, at + row.byteLength)
    await using model = await OnnxModel.load(bytes, { ...SMALL, backend })
    const [wrong, right] = [model.open({ tokens: [3, 4] }), model.open({ tokens: promptOf('p33') })]
    t.false(promptOf('p33').includes(7))
    await model.run([{ sequence: wrong }])
    const [failed, tokens] = await Promise.allSettled([read(model, wrong, 8, { tokens: [7] }), read(model, right, 8)])
    t.deepEqual(tokens, { status: 'fulfilled', value: greedyOf('p33').slice(0, 8) })
    const { details } = await rejected(
      failed.status === 'rejected' ? Promise.reject(failed.reason as Error) : Promise.resolve(),
      'NOT_FINITE',
    )
    t.is(details.row, 0)
    t.deepEqual([...wrong.tokens], [3, 4, 7])
    wrong.truncate(2)
    t.is((await read(model, wrong, 1)).length, 1)
  })

  test(`${backend}: a step that fails when its layers are written is undone, and the others go on`, async t => {
    const loaded = await loadModel(graphFile('onnx'), { ...SMALL, backend })
    const failing: Backend = {
      name: backend,
      run: async step => {
        const logits = await loaded.backend.run(step)
        if (!step.ids.includes(11)) return logits
        logits.dispose()
        throw new Error('in the middle')
      },
      dispose: () => loaded.backend.dispose(),
    }
    await using model = new OnnxModel(INTERNAL, { ...loaded, backend: failing })
    const chats = [
      ['p7', []],
      ['p33', [11]],
      ['p100', []],
    ] as const
    const opened = chats.map(([name, more]) => ({
      name,
      more,
      sequence: model.open({ tokens: promptOf(name).map(id => (id === 11 ? 12 : id)) }),
    }))
    const before = opened.map(({ sequence }) => [...sequence.tokens])
    const answers = await Promise.allSettled(
      opened.map(({ sequence, more }) => model.run([{ sequence, tokens: [...more] }])),
    )
    t.deepEqual(
      answers.map(({ status }) => status),
      ['fulfilled', 'rejected', 'fulfilled'],
    )
    t.deepEqual(
      opened.map(({ sequence }) => [...sequence.tokens]),
      before,
    )
    t.is(
      model.cache.stats().activeBlocks,
      opened.reduce((sum, { sequence }) => sum + Math.ceil(sequence.length / model.cache.blockSize), 0),
    )
    model.cache.checkInvariants()
  })

  test(`${backend}: what the cache cannot hold is refused in the middle of a step`, async t => {
    const loaded = await loadModel(graphFile('onnx'), { ...SMALL, backend })
    loaded.cache.dispose()
    // The third layer is not there: the first two are computed before it.
    const cache = new PagedKvCache({
      model: { layers: [0, 1].map(() => ({ kind: 'full', numKvHeads: 2, headDim: 16 })) },
      capacity: 64,
    })
    await using model = new OnnxModel(INTERNAL, { ...loaded, cache })
    using chat = model.open({ tokens: promptOf('p7') })
    await rejected(model.run([{ sequence: chat }]), 'INVALID_ARGUMENT')
    t.deepEqual([chat.length, [...chat.tokens], cache.stats().activeBlocks], [0, promptOf('p7'), 0])
    cache.checkInvariants()
  })
}

/** The message of a worker in which `onnxruntime-node` is another package. */
async function withRuntime(folder: string | null, backend?: BackendName): Promise<unknown> {
  const entry = new URL('../../onnx.ts', import.meta.url).href
  const source = `
    const Module = (await import('node:module')).default
    const resolve = Module._resolveFilename
    const packages = /^onnxruntime-node(\\/|$)/
    Module._resolveFilename = function (name, ...rest) {
      if (!packages.test(name)) return resolve.call(this, name, ...rest)
      if (workerData.folder === null) throw Object.assign(new Error('Cannot find module ' + name), { code: 'MODULE_NOT_FOUND' })
      return resolve.call(this, name.replace('onnxruntime-node', workerData.folder), ...rest)
    }
    const { OnnxModel } = await import(${JSON.stringify(entry)})
    try {
      const model = await OnnxModel.load(workerData.file, { threads: 1, ...(workerData.backend === undefined ? {} : { backend: workerData.backend }) })
      const told = { backend: model.backend, refusals: model.refusals.map(({ backend, error }) => [backend, error.code, error.details.reason]) }
      await model.dispose()
      parentPort.postMessage(told)
    } catch (error) {
      parentPort.postMessage({ code: error.code, ...error.details })
    }`
  const worker = startWorker(source, { folder, backend, file: graphFile('onnx') })
  return await new Promise<unknown>((resolve, reject) => worker.once('message', resolve).once('error', reject))
}

/** A package in the place of onnxruntime-node. */
function packaged(t: ExecutionContext, version: string, code: string): string {
  const folder = dirname(copied(t, graphFile('onnx')))
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name: 'onnxruntime-node', version, main: 'index.js' }))
  writeFileSync(join(folder, 'index.js'), code)
  return folder
}

for (const backend of BACKENDS) {
  test(`${backend}: onnxruntime-node is missing, too old, or does not load`, async t => {
    const runtime = 'onnxruntime-node'
    const code = 'RUNTIME_UNAVAILABLE'
    const isSkipped = process.platform === 'linux' && process.arch === 'x64'
    const install = `run \`${isSkipped ? 'ONNXRUNTIME_NODE_INSTALL=skip ' : ''}npm install onnxruntime-node@latest\``
    t.deepEqual(await withRuntime(null, backend), { code, runtime, reason: `it is not installed: ${install}` })
    t.deepEqual(await withRuntime(packaged(t, '1.16.3', ''), backend), {
      code,
      runtime,
      reason: `its version is 1.16.3, at least 1.17 is needed: ${install}`,
    })
    const reason = "/x/libonnxruntime.so.1: version `VERS_1.30.0' not found (required by /x/onnxruntime_binding.node)"
    t.deepEqual(await withRuntime(packaged(t, '1.30.0', `throw new Error(${JSON.stringify(reason)})`), backend), {
      code,
      runtime,
      reason: `another version of it is already loaded: use a single version in the project (${reason})`,
    })
    const ended = "Module did not self-register: '/x/onnxruntime_binding.node'."
    t.deepEqual(await withRuntime(packaged(t, '1.24.3', `throw new Error(${JSON.stringify(ended)})`), backend), {
      code,
      runtime,
      reason: `before version 1.25 it cannot be loaded again once all threads that had loaded it have ended: import it on the main thread as well, or ${install} (${ended})`,
    })
  })
}

test('where another library is loaded than the package has, the parts are run', async t => {
  const require = createRequire(import.meta.url)
  const folder = packaged(
    t,
    '1.30.0',
    `module.exports = require(${JSON.stringify(require.resolve('onnxruntime-node'))})`,
  )
  const at = join(folder, 'bin', 'napi-v6', process.platform, process.arch)
  mkdirSync(at, { recursive: true })
  const name =
    process.platform === 'win32'
      ? 'onnxruntime.dll'
      : process.platform === 'darwin'
        ? 'libonnxruntime.1.dylib'
        : 'libonnxruntime.so.1'
  writeFileSync(join(at, name), '')
  const { backend, refusals } = (await withRuntime(folder)) as { backend: string; refusals: [string, string, string][] }
  t.is(backend, 'parts')
  t.deepEqual(
    refusals.map(([way, code]) => [way, code]),
    [['graph', 'RUNTIME_UNAVAILABLE']],
  )
  t.regex(refusals[0]?.[2] ?? '', /another onnxruntime is loaded/)
})

test('a graph in bf16 runs as one graph; the other ways refuse it by name', async t => {
  const bytes = inBf16(readFileSync(graphFile('onnx-gqa-pos-f32')))
  await using model = await OnnxModel.load(bytes, SMALL)
  t.deepEqual([model.backend, model.cache.dtype, model.cache.keyFormat], ['graph', 'bf16', 'bf16'])
  for (const [prompt, close] of [
    ['p7', 0.1],
    ['p33', 0.2],
    ['p100', 0.4],
  ] as const) {
    using whole = model.open({ salt: 'whole' })
    const [logits] = (await model.run([{ sequence: whole, tokens: promptOf(prompt) }], { logits: 'all' })) as [
      Float32Array,
    ]
    const off = distance(logits, referenceLogits(`logits.${prompt}`))
    t.true(off > 1e-3 && off < close, `${prompt} is off by ${off}`)
    using pieces = model.open({ salt: 'pieces' })
    for (let at = 0; at < promptOf(prompt).length; at += 7) {
      const tokens = promptOf(prompt).slice(at, at + 7)
      const [piece] = (await model.run([{ sequence: pieces, tokens }], { logits: 'all' })) as [Float32Array]
      t.true(distance(piece, logits.subarray(at * 320, (at + tokens.length) * 320)) < 0.1, `${prompt} from ${at} on`)
    }
  }
  const parts = await rejected(OnnxModel.load(bytes, { ...SMALL, backend: 'parts' }), 'UNSUPPORTED_GRAPH')
  t.regex(parts.message, /layers\.0\/attn\/GroupQueryAttention .*onnxruntime-node has no tensors of bf16 in JavaScript/)
  const plain = await rejected(OnnxModel.load(bytes, { ...SMALL, backend: 'plain' }), 'UNSUPPORTED_GRAPH')
  t.deepEqual(plain.details, {
    node: 'past_key_values.0.key',
    operator: 'input',
    reason: 'its type is bfloat16, expected float32 or float16',
    kind: 'type',
  })
  // What the runtime has no kernel for, it names.
  const rotary = await rejected(
    OnnxModel.load(inBf16(readFileSync(graphFile('onnx-gqa-f32'))), { ...SMALL, backend: 'graph' }),
    'RUNTIME_FAILED',
  )
  t.is(rotary.details.node, 'kvtide/rotary.0.q')
})
