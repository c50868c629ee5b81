// The model's context: what says how long it is, that nothing longer is computed, and that a generation ends there.
import { readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { type BackendName, OnnxModel, type OnnxModelOptions } from '../../onnx.js'
import { binding } from '../../lib/loading/binding.js'
import { configSizes, parseConfig } from '../../lib/onnx/config.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { copied } from '../support/onnx/changed.js'
import { greedyOf, promptOf, read } from '../support/onnx/chat.js'
import { graphFile } from '../support/onnx/graphs.js'
import { rejected, throwsCode } from '../support/throws.js'

const SMALL = { threads: 1, cache: { memoryBytes: 2 ** 23 } } satisfies OnnxModelOptions
/** A context of 40 tokens, by a graph whose own tables have 512 rows, or none. */
const config = (max_position_embeddings = 40) =>
  ({ model_type: 'stranger', head_dim: 16, num_key_value_heads: 2, max_position_embeddings }) as never
const [long, short] = [promptOf('p100'), promptOf('p33')]

const context = (fields: object): number | undefined => configSizes(JSON.stringify(fields)).contextLength

test('a config may have numbers that Python writes and JSON lacks', t => {
  const text = String.raw`{ "time_step_limit": [-Infinity, Infinity], "x": NaN, "name": "Infinity \"NaN\"", "n_ctx": 77 }`
  t.is(configSizes(text).contextLength, 77)
  t.deepEqual(parseConfig(text), { time_step_limit: [null, null], x: null, name: 'Infinity "NaN"', n_ctx: 77 })
})

test('a config says it under the names of all families, with rope that is scaled', t => {
  for (const name of [
    'max_position_embeddings',
    'n_positions',
    'n_ctx',
    'max_seq_len',
    'max_sequence_length',
    'seq_length',
    'model_max_length',
  ])
    t.is(context({ [name]: 77 }), 77, name)
  t.is(context({ n_positions: 100, n_ctx: 80 }), 80)
  t.is(context({ text_config: { max_position_embeddings: 9 } }), 9)
  for (const wrong of [-1, 0, 1.5, '40', null, 1e30]) t.is(context({ max_position_embeddings: wrong }), undefined)
  const scaled = (rope_scaling: object, more: object = {}): number | undefined =>
    context({ max_position_embeddings: 100, rope_scaling, ...more })
  // What is scaled stands in the config already, but where families add it.
  for (const rope_type of ['linear', 'llama3', 'longrope', 'su', 'default'])
    t.is(scaled({ rope_type, factor: 8, original_max_position_embeddings: 50 }), 100, rope_type)
  t.is(scaled({ rope_type: 'yarn', factor: 4, original_max_position_embeddings: 100 }), 400)
  t.is(scaled({ type: 'yarn', factor: 4 }), 400)
  t.is(scaled({ rope_type: 'yarn', factor: 4, original_max_position_embeddings: 25 }), 100)
  t.is(scaled({ type: 'dynamic', factor: 2.5 }), 250)
  t.is(
    context({
      max_position_embeddings: 100,
      rope_parameters: {
        full_attention: { rope_type: 'yarn', factor: 2 },
        sliding_attention: { rope_type: 'default' },
      },
    }),
    200,
  )
  t.is(scaled({ type: 'yarn', factor: 'four' }), 100)
})

const contextOf = async (model: string | Uint8Array, given?: object): Promise<number | undefined> => {
  await using loaded = await OnnxModel.load(model, {
    ...SMALL,
    ...(given === undefined ? {} : { config: given as never }),
  })
  return loaded.contextLength
}

test('config, genai_config and the tables of the graph are asked, and the smallest counts', async t => {
  t.is(await contextOf(graphFile('llama/onnx')), undefined, 'nothing says it')
  t.is(await contextOf(readFileSync(graphFile('llama/onnx-gqa-f32'))), 512, 'rows of the tables')
  const file = copied(t, graphFile('llama/onnx-gqa-f32'))
  const write = (name: string, fields: object): void => writeFileSync(join(dirname(file), name), JSON.stringify(fields))
  write('genai_config.json', { model: { context_length: 300 } })
  t.is(await contextOf(file), 300)
  write('config.json', { max_position_embeddings: 200 })
  t.is(await contextOf(file), 200)
  t.is(await contextOf(file, { max_position_embeddings: 400 }), 400, "the caller's own config comes before both")
  t.is(await contextOf(file, { max_position_embeddings: 4000 }), 512, 'and never before the graph')
  t.is(await contextOf(file, { head_dim: 16 }), 300)
  for (const wrong of ['{', 'null', '[]', '{"model":5}', '{"model":{"context_length":-4}}']) {
    writeFileSync(join(dirname(file), 'genai_config.json'), wrong)
    t.is(await contextOf(file), 200, wrong)
  }
})

for (const backend of ['graph', 'parts', 'plain'] satisfies BackendName[]) {
  test(`${backend}: what is longer is refused before anything is computed`, async t => {
    await using model = await OnnxModel.load(graphFile('llama/onnx'), { ...SMALL, backend, config: config() })
    t.is(model.contextLength, 40)
    const details = { tokens: 100, contextLength: 40 }
    using chat = model.open({ tokens: long })
    t.deepEqual((await rejected(read(model, chat, 4), 'CONTEXT_OVERFLOW')).details, details)
    t.deepEqual((await rejected(model.run([{ sequence: chat }]), 'CONTEXT_OVERFLOW')).details, details)
    t.deepEqual(throwsCode(t, 'CONTEXT_OVERFLOW', () => model.admit(long)).details, details)
    using other = model.open({ tokens: short })
    t.deepEqual(
      (await rejected(model.run([{ sequence: other }, { sequence: model.open(), tokens: long }]), 'CONTEXT_OVERFLOW'))
        .details,
      details,
    )
    t.deepEqual((await rejected(read(model, other, 4, { tokens: long.slice(0, 8) }), 'CONTEXT_OVERFLOW')).details, {
      tokens: 41,
      contextLength: 40,
    })
    t.deepEqual([chat.length, other.length, model.cache.stats().activeBlocks], [0, 0, 0])
    t.deepEqual([[...chat.tokens], [...other.tokens]], [long, short])
    // Cut to what it holds, it is computed.
    chat.resume(long.slice(0, 40))
    t.is((await model.run([{ sequence: chat }]))[0]?.length, 320)
    t.is(chat.length, 40)
  })

  test(`${backend}: a generation ends at the end of the context, drafted or not`, async t => {
    await using model = await OnnxModel.load(graphFile('llama/onnx'), { ...SMALL, backend, config: config() })
    await using second = await OnnxModel.load(graphFile('llama/onnx'), { ...SMALL, config: config(36) })
    for (const draft of [undefined, 'lookup', second] as const) {
      for (const maxTokens of [undefined, 1000, 7]) {
        using chat = model.open({ tokens: short })
        const generation = model.generate(chat, {
          ...(maxTokens === undefined ? {} : { maxTokens }),
          ...(draft === undefined ? {} : { draft }),
        })
        const found: number[] = []
        for await (const token of generation) found.push(token)
        t.deepEqual(found, greedyOf('p33').slice(0, 7), `${maxTokens}`)
        t.deepEqual([generation.finishReason, chat.tokens.length], ['length', 40])
        // There is no room for one more.
        const more = model.generate(chat)
        t.deepEqual([await more.next(), more.finishReason], [{ done: true, value: undefined }, 'length'])
        t.deepEqual((await rejected(read(model, chat, 1, { tokens: [5] }), 'CONTEXT_OVERFLOW')).details, {
          tokens: 41,
          contextLength: 40,
        })
      }
    }
    t.true(second.cache.stats().promptTokens > 0)
  })
}

test('a graph whose tables end is never asked for more', async t => {
  await using model = await OnnxModel.load(graphFile('llama/onnx-gqa-f32'), {
    ...SMALL,
    cache: { memoryBytes: 2 ** 24 },
  })
  const tokens = Array.from({ length: 510 }, (_, place) => 3 + ((place * 7) % 300))
  using chat = model.open({ tokens })
  const generation = model.generate(chat, { draft: 'lookup' })
  let count = 0
  for await (const _ of generation) count += 1
  t.deepEqual([count, generation.finishReason, chat.tokens.length], [2, 'length', 512])
  t.deepEqual((await rejected(read(model, chat, 1, { tokens: [5] }), 'CONTEXT_OVERFLOW')).details, {
    tokens: 513,
    contextLength: 512,
  })
})

/** The rows of the tables of a graph's masks. */
const rowsOfMasks = async (graph: string) => {
  const opened = await binding.NativeOnnxGraph.open(graphFile(graph))
  return (await opened.rewrite(true)).contextLength()
}

test('tables that masks are cut out of limit the context', async t => {
  t.deepEqual([await rowsOfMasks('families/gpt_neo/optimum'), await rowsOfMasks('llama/onnx')], [160, null])
  await using model = await OnnxModel.load(graphFile('families/gpt_neo/optimum'), SMALL)
  const tokens = Array.from({ length: 159 }, (_, place) => 3 + ((place * 7) % 69))
  using chat = model.open({ tokens })
  t.is((await read(model, chat, 9)).length, 1)
  t.deepEqual((await rejected(read(model, chat, 1, { tokens: [5] }), 'CONTEXT_OVERFLOW')).details, {
    tokens: 161,
    contextLength: 160,
  })
})

test('an answer is admitted with the room that the context leaves', async t => {
  await using model = await OnnxModel.load(graphFile('llama/onnx'), {
    threads: 1,
    cache: { capacity: 10, blockSize: 4 },
    config: config(),
  })
  const { sequence, lacking } = model.admit(short, { answerTokens: 1000 })
  t.is(lacking, undefined)
  sequence?.dispose()
  await using wide = await OnnxModel.load(graphFile('llama/onnx'), {
    threads: 1,
    cache: { capacity: 10, blockSize: 4 },
  })
  t.true(wide.admit(short, { answerTokens: 1000 }).lacking !== undefined)
})
