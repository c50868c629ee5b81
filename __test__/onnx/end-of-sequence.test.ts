// The ids that end an answer: which config says them, and that a generation ends there unless it is told not to.
import { cpSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import test from 'ava'

import { endOfSequence } from '../../lib/onnx/end-of-sequence.js'
import {
  type BackendName,
  type GenerateOptions,
  OnnxModel,
  type OnnxModelOptions,
  type OnnxSequence,
} from '../../onnx.js'
import { folderOf } from '../support/folder.js'
import { onnxTest } from '../support/onnx/available.js'
import { copied } from '../support/onnx/changed.js'
import { greedyOf, promptOf } from '../support/onnx/chat.js'
import { models, type Seq2Seq } from '../support/onnx/encoder-decoder.js'
import { graphFile } from '../support/onnx/graphs.js'
import { alone, Dice, ToyBackend, toyModel } from '../support/onnx/toy-model.js'
import { rejected } from '../support/throws.js'

const SMALL = { threads: 1, cache: { memoryBytes: 2 ** 23 } } satisfies OnnxModelOptions

/** The tokens of a generation, and why it ended. */
async function ended(model: OnnxModel, sequence: OnnxSequence, options: GenerateOptions) {
  const generation = model.generate(sequence, options)
  const tokens: number[] = []
  for await (const token of generation) tokens.push(token)
  return { tokens, reason: generation.finishReason }
}

const GENERATION = 'generation_config.json'

test('the first config with ids counts', async t => {
  const folder = await folderOf(t)
  const model = join(folder, 'onnx', 'model.onnx')
  mkdirSync(dirname(model))
  const write = (name: string, fields: unknown): void =>
    writeFileSync(join(folder, name), typeof fields === 'string' ? fields : JSON.stringify(fields))
  t.deepEqual(endOfSequence(model, undefined), [], 'there is no config')
  t.deepEqual(endOfSequence(undefined, undefined), [], 'a model given as bytes')
  write('onnx/genai_config.json', { model: { eos_token_id: [7, 8] } })
  t.deepEqual(endOfSequence(model, undefined), [7, 8])
  write('config.json', { text_config: { eos_token_id: 6 } })
  t.deepEqual(endOfSequence(model, undefined), [6])
  write('config.json', { eos_token_id: 5, text_config: { eos_token_id: 6 } })
  t.deepEqual(endOfSequence(model, undefined), [5])
  write(GENERATION, { eos_token_id: [4, 3, 4] })
  t.deepEqual(endOfSequence(model, undefined), [4, 3], 'those of a chat, each once')
  write(join('onnx', GENERATION), { eos_token_id: 9 })
  t.deepEqual(endOfSequence(model, undefined), [9], 'the nearest file')
  // A config of the caller's takes the place of config.json; what a chat ends with is beside it, or beside the model.
  const given = { eos_token_id: 11 }
  t.deepEqual(endOfSequence(model, given), [9])
  t.deepEqual(endOfSequence(undefined, given), [11])
  const other = await folderOf(t)
  writeFileSync(join(other, 'config.json'), JSON.stringify({ eos_token_id: 12 }))
  t.deepEqual(endOfSequence(undefined, join(other, 'config.json')), [12])
  t.deepEqual(endOfSequence(model, join(other, 'config.json')), [9])
  writeFileSync(join(other, GENERATION), JSON.stringify({ eos_token_id: 13 }))
  t.deepEqual(endOfSequence(undefined, join(other, 'config.json')), [13])
  t.deepEqual(endOfSequence(model, join(other, 'config.json')), [9], 'the one beside the model comes first')
  t.true(Object.isFrozen(endOfSequence(model, undefined)))
})

test('what is malformed says nothing, and the next config counts', async t => {
  const folder = await folderOf(t)
  const model = join(folder, 'model.onnx')
  writeFileSync(join(folder, 'config.json'), JSON.stringify({ eos_token_id: 5 }))
  for (const wrong of ['{', '', 'null', '[]', '5', '"text"', '{"eos_token_id": null}', '{"eos_token_id": "2"}']) {
    writeFileSync(join(folder, GENERATION), wrong)
    t.deepEqual(endOfSequence(model, undefined), [5], wrong)
  }
  for (const wrong of [-1, 1.5, 1e300, true, {}, [], [[2]], [-1, null], 2 ** 32]) {
    writeFileSync(join(folder, GENERATION), JSON.stringify({ eos_token_id: wrong }))
    t.deepEqual(endOfSequence(model, undefined), [5], JSON.stringify(wrong))
  }
  // Ids that the vocabulary does not have are left out.
  writeFileSync(join(folder, GENERATION), JSON.stringify({ eos_token_id: [400, 7, -1] }))
  t.deepEqual(endOfSequence(model, undefined, 320), [7])
  writeFileSync(join(folder, GENERATION), JSON.stringify({ eos_token_id: 400 }))
  t.deepEqual(endOfSequence(model, undefined, 320), [5])
  // Not a file at all.
  const beside = await folderOf(t)
  mkdirSync(join(beside, GENERATION))
  writeFileSync(join(beside, 'genai_config.json'), '{"model": null}')
  t.deepEqual(endOfSequence(join(beside, 'model.onnx'), undefined), [])
  t.deepEqual(endOfSequence(undefined, { text_config: 5 }), [])
})

onnxTest('a model whose configs are malformed loads as before, and has no end', async t => {
  const file = copied(t, graphFile('llama/onnx'))
  for (const [name, text] of [
    [GENERATION, '{'],
    ['config.json', '[1]'],
    ['genai_config.json', '{"model": {"eos_token_id": {"a": 1}}}'],
  ] as const)
    writeFileSync(join(dirname(file), name), text)
  await using model = await OnnxModel.load(file, SMALL)
  t.deepEqual(model.endOfSequence, [])
  t.true(Object.isFrozen(model.endOfSequence))
})

for (const backend of ['graph', 'parts', 'plain'] satisfies BackendName[]) {
  onnxTest(`${backend}: a generation ends at the end of the sequence, drafted or not`, async t => {
    const file = graphFile('llama/onnx-gqa-f32')
    await using model = await OnnxModel.load(file, { ...SMALL, backend })
    await using second = await OnnxModel.load(file, SMALL)
    const greedy = greedyOf('p7')
    const end = greedy.indexOf(2)
    t.deepEqual([model.endOfSequence, end], [[2], 18])
    for (const draft of [undefined, 'lookup', second] as const) {
      const given = draft === undefined ? {} : { draft }
      using chat = model.open({ tokens: promptOf('p7') })
      t.deepEqual(await ended(model, chat, given), { tokens: greedy.slice(0, end), reason: 'stop' })
      t.deepEqual([...chat.tokens], [...promptOf('p7'), ...greedy.slice(0, end)], 'the id is no part of the sequence')
      // Asked again, it says the same.
      t.deepEqual(await ended(model, chat, given), { tokens: [], reason: 'stop' })
      using past = model.open({ tokens: promptOf('p7') })
      const options = { ...given, maxTokens: 40, ignoreEndOfSequence: true }
      t.deepEqual(await ended(model, past, options), { tokens: greedy.slice(0, 40), reason: 'length' })
      // Ids of `stop` are added to it.
      for (const ignoreEndOfSequence of [false, true]) {
        for (const stop of [greedy[5] as number, 319]) {
          using other = model.open({ tokens: promptOf('p7') })
          const first = greedy.findIndex(id => id === stop || (!ignoreEndOfSequence && id === 2))
          const wanted = greedy.slice(0, Math.min(first < 0 ? 40 : first, 40))
          const { tokens } = await ended(model, other, { ...given, maxTokens: 40, stop: [stop], ignoreEndOfSequence })
          t.deepEqual(tokens, wanted, `${stop} ${ignoreEndOfSequence}`)
        }
      }
    }
  })
}

onnxTest('a decoder with an encoder ends where its generation_config.json says', async t => {
  const folder = await folderOf(t)
  const whisper = models.find(({ name }) => name === 'whisper') as Seq2Seq
  const prompt = [...(whisper.prompts['p4'] as readonly number[])]
  cpSync(dirname(whisper.file), folder, { recursive: true })
  const greedy = whisper.greedy('a', 'p4')
  const last = greedy[3] as number
  writeFileSync(join(folder, GENERATION), JSON.stringify({ eos_token_id: last, forced_decoder_ids: null }))
  await using model = await OnnxModel.load(folder, SMALL)
  t.deepEqual(model.endOfSequence, [last])
  const encoded = await model.encode(whisper.inputsOf('a'))
  using sequence = model.open({ tokens: prompt, encoded })
  const { tokens, reason } = await ended(model, sequence, { maxTokens: greedy.length })
  t.deepEqual([tokens, reason], [greedy.slice(0, greedy.indexOf(last)), 'stop'])
  using past = model.open({ tokens: prompt, encoded })
  t.deepEqual((await ended(model, past, { maxTokens: greedy.length, ignoreEndOfSequence: true })).tokens, greedy)
})

test('an option that is no true or false is refused', async t => {
  await using model = toyModel(new ToyBackend(new Dice(1)), { capacity: 8 })
  t.deepEqual(model.endOfSequence, [])
  t.is(model.path, undefined)
  using chat = model.open({ tokens: [1, 2, 3] })
  for (const wrong of [1, 'true', null]) {
    const call = async (): Promise<unknown> => model.generate(chat, { ignoreEndOfSequence: wrong as never })
    t.is((await rejected(call(), 'INVALID_ARGUMENT')).details.argument, 'ignoreEndOfSequence')
  }
  t.deepEqual((await ended(model, chat, { maxTokens: 3 })).tokens, alone([1, 2, 3], 3))
})
