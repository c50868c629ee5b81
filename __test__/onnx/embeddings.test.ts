// The model of a decoder's embeddings: where it is looked for, which one is taken, and what is refused at load.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { OnnxModel, type OnnxModelOptions } from '../../onnx.js'
import { folderOf } from '../support/folder.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { read } from '../support/onnx/chat.js'
import { graphFile } from '../support/onnx/graphs.js'
import { visionFile, visionPrompts } from '../support/onnx/vision.js'
import { rejected } from '../support/throws.js'

const { text } = visionPrompts('qwen2-vl')
const decoder = visionFile('qwen2-vl')
const embeddings = visionFile('qwen2-vl', 'embed_tokens.onnx')
const small = { threads: 1, backend: 'graph', cache: { memoryBytes: 2 ** 22 } } as const
const refused = (model: string | Uint8Array, options: OnnxModelOptions = {}) =>
  rejected(OnnxModel.load(model, { ...small, ...options }), 'UNSUPPORTED_GRAPH')

async function says(model: string | Uint8Array, options: OnnxModelOptions = {}): Promise<number[]> {
  await using loaded = await OnnxModel.load(model, { ...small, ...options })
  using chat = loaded.open({ tokens: text?.tokens as number[] })
  return await read(loaded, chat, 12)
}

test('a decoder without its embeddings is refused, with the names that were looked for', async t => {
  const folder = await folderOf(t)
  const names = {
    model: 'embed_tokens.onnx, embedding.onnx',
    model_q4: 'embed_tokens_q4.onnx, embed_tokens.onnx, embedding_q4.onnx, embedding.onnx',
  }
  for (const [name, looked] of Object.entries(names)) {
    const file = join(folder, `${name}.onnx`)
    copyFileSync(decoder, file)
    const { message, details } = await refused(file)
    t.is(details.node, 'inputs_embeds')
    t.true(message.includes(`there is none of ${looked}; put`), message)
    t.deepEqual(await says(file, { embeddings }), text?.greedy as number[])
  }
  const { message } = await refused(readFileSync(decoder))
  t.true(message.includes('the model is given as bytes'), message)
  for (const backend of ['graph', 'parts', 'plain'] as const) {
    const given = { backend, embeddings: readFileSync(embeddings) }
    t.deepEqual(await says(readFileSync(decoder), given), text?.greedy as number[], backend)
  }
})

test('embeddings with the suffix of the decoder are taken before those without', async t => {
  const folder = await folderOf(t)
  const put = (from: string, to: string): void => copyFileSync(from, join(folder, to))
  for (const name of ['decoder_model_merged_q4.onnx', 'decoder_model_merged_fp16.onnx', 'text_fp16.onnx'])
    put(decoder, name)
  put(embeddings, 'embed_tokens_fp16.onnx')
  writeFileSync(join(folder, 'embed_tokens.onnx'), 'nothing')
  t.deepEqual(await says(join(folder, 'decoder_model_merged_fp16.onnx')), text?.greedy as number[])
  t.deepEqual(await says(join(folder, 'text_fp16.onnx')), text?.greedy as number[])
  await rejected(says(join(folder, 'decoder_model_merged_q4.onnx')), 'INVALID_GRAPH')
})

test("the embeddings that onnxruntime-genai's config names are taken", async t => {
  const folder = await folderOf(t)
  copyFileSync(decoder, join(folder, 'language.onnx'))
  mkdirSync(join(folder, 'parts'))
  copyFileSync(embeddings, join(folder, 'parts', 'embed.onnx'))
  writeFileSync(
    join(folder, 'genai_config.json'),
    JSON.stringify({ model: { embedding: { filename: 'parts/embed.onnx' } } }),
  )
  t.deepEqual(await says(join(folder, 'language.onnx')), text?.greedy as number[])
})

test('a model of embeddings that does not fit is refused', async t => {
  const changed = (from: string, to: string): Buffer => {
    const bytes = readFileSync(embeddings)
    const whole = bytes.toString('latin1')
    const at = whole.lastIndexOf(from)
    if (/^\w+$/.test(from)) return Buffer.from(whole.replaceAll(from, to), 'latin1')
    t.true(at >= 0 && from.length === to.length)
    return Buffer.from(whole.slice(0, at) + to + whole.slice(at + from.length), 'latin1')
  }
  const other = await refused(decoder, { embeddings: changed('inputs_embeds', 'inputs_embedz') })
  t.deepEqual([other.details.node, other.details.operator], ['inputs_embeds', 'output'])
  const wide = await refused(decoder, { embeddings: changed('\x08 ', '\x08!') })
  t.true(wide.message.includes('give f32 [batch_size, sequence_length, 33], but the decoder takes'), wide.message)
  // A decoder has more inputs than ids.
  t.is((await refused(decoder, { embeddings: graphFile('llama/onnx') })).details.operator, 'input')
  t.is((await refused(decoder, { embeddings: decoder })).details.node, 'position_ids')
  const { details } = await rejected(OnnxModel.load(graphFile('llama/onnx'), { embeddings }), 'INVALID_ARGUMENT')
  t.is(details.argument, 'embeddings')
  await rejected(OnnxModel.load(decoder, { embeddings: join(decoder, 'nothing') }), 'INVALID_ARGUMENT')
})

test('embeddings belong to the namespace: other ones find no blocks', async t => {
  await using one = await OnnxModel.load(decoder, small)
  const bytes = Buffer.from(readFileSync(embeddings).toString('latin1').replace('/embed', '/other'), 'latin1')
  await using other = await OnnxModel.load(decoder, { ...small, embeddings: bytes })
  t.not(one.namespace, other.namespace)
})
