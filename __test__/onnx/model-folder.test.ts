// Models that are given as a folder or as a `file:` URL: which graph is taken, and what an error says about a folder in which none is.
import { cpSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { basename, dirname, join, relative, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'

import test, { type ExecutionContext } from 'ava'

import { type GraphDType, graphFile } from '../../lib/onnx/model-folder.js'
import { type BackendName, OnnxModel, type OnnxModelOptions } from '../../onnx.js'
import { folderOf } from '../support/folder.js'
import { onnxTest } from '../support/onnx/available.js'
import { greedyOf, promptOf, read } from '../support/onnx/chat.js'
import { graphFile as fixture } from '../support/onnx/graphs.js'
import { rejected, throwsCode } from '../support/throws.js'

const SMALL = { threads: 1, cache: { memoryBytes: 2 ** 23 } } satisfies OnnxModelOptions

/** A folder with these files, all of them empty but the given ones. */
async function folderWith(
  t: ExecutionContext,
  files: readonly string[],
  contents: Readonly<Record<string, string>> = {},
): Promise<string> {
  const folder = await folderOf(t)
  for (const file of [...files, ...Object.keys(contents)]) {
    mkdirSync(dirname(join(folder, file)), { recursive: true })
    writeFileSync(join(folder, file), contents[file] ?? '')
  }
  return folder
}

const genai = (filename: unknown): Record<string, string> => ({
  'genai_config.json': JSON.stringify({ model: { decoder: { filename } } }),
})

/** Files of a folder, the option `dtype`, and the file that is taken. */
type Case = readonly [files: readonly string[], dtype: GraphDType | undefined, taken: string, named?: unknown]

const HUB = ['', '_q4', '_quantized', '_fp16', '_q4f16', '_int8', '_uint8', '_bnb4'].map(
  suffix => `onnx/model${suffix}.onnx`,
)
const MERGED = ['onnx/decoder_model_merged.onnx', 'onnx/decoder_model_merged_q4.onnx', 'onnx/encoder_model.onnx']

const CASES: readonly Case[] = [
  [['model.onnx'], undefined, 'model.onnx'],
  [['onnx/model.onnx'], undefined, 'onnx/model.onnx'],
  [['model.onnx', 'onnx/model.onnx'], undefined, 'model.onnx'],
  [HUB, undefined, 'onnx/model.onnx'],
  [HUB.slice(1), undefined, 'onnx/model_q4.onnx'],
  [HUB.slice(2), undefined, 'onnx/model_quantized.onnx'],
  [HUB.slice(3), undefined, 'onnx/model_fp16.onnx'],
  [HUB.slice(4), undefined, 'onnx/model_q4f16.onnx'],
  [['model_bnb4.onnx'], undefined, 'model_bnb4.onnx'],
  [HUB, 'f32', 'onnx/model.onnx'],
  [HUB, 'fp32', 'onnx/model.onnx'],
  [HUB, 'f16', 'onnx/model_fp16.onnx'],
  [HUB, 'fp16', 'onnx/model_fp16.onnx'],
  [HUB, 'q8', 'onnx/model_quantized.onnx'],
  [HUB, 'q4', 'onnx/model_q4.onnx'],
  [HUB, 'q4f16', 'onnx/model_q4f16.onnx'],
  [HUB, 'int8', 'onnx/model_int8.onnx'],
  [HUB, 'uint8', 'onnx/model_uint8.onnx'],
  [HUB, 'bnb4', 'onnx/model_bnb4.onnx'],
  [MERGED, undefined, 'onnx/decoder_model_merged.onnx'],
  [MERGED, 'q4', 'onnx/decoder_model_merged_q4.onnx'],
  // The parts of a model that takes images.
  [['decoder_model_merged.onnx', 'embed_tokens.onnx', 'vision_encoder.onnx'], undefined, 'decoder_model_merged.onnx'],
  [['model.onnx', 'embedding.onnx', 'vision.onnx'], undefined, 'model.onnx'],
  // Exporters of decoders alone leave the parts that they merged.
  [
    ['decoder_model.onnx', 'decoder_model_merged.onnx', 'decoder_with_past_model.onnx'],
    undefined,
    'decoder_model_merged.onnx',
  ],
  // The only graph, whatever its name.
  [['phi.onnx'], undefined, 'phi.onnx'],
  [['text.onnx', 'embedding.onnx', 'vision.onnx'], undefined, 'text.onnx'],
  [['text_q4.onnx', 'text_fp16.onnx'], 'q4', 'text_q4.onnx'],
  [['text.onnx', 'text_q4f16.onnx'], 'f32', 'text.onnx'],
  // The decoder that genai_config.json names.
  [['model.onnx', 'decoder.onnx'], undefined, 'decoder.onnx', 'decoder.onnx'],
  [['model.onnx', 'cpu/decoder.onnx'], undefined, 'cpu/decoder.onnx', 'cpu/decoder.onnx'],
  [['model.onnx'], undefined, 'model.onnx', 'gone.onnx'],
  [['model.onnx'], undefined, 'model.onnx', 5],
  [['model.onnx'], undefined, 'model.onnx', ''],
  [['model.onnx', 'model_q4.onnx'], 'q4', 'model_q4.onnx', 'model.onnx'],
]

test('the graph of a folder', async t => {
  for (const [files, dtype, taken, named] of CASES) {
    const folder = await folderWith(t, files, named === undefined ? {} : genai(named))
    t.is(relative(folder, graphFile(folder, dtype)), join(taken), `${files.join()} ${dtype} ${named}`)
  }
  const broken = await folderWith(t, ['model.onnx'], { 'genai_config.json': '{' })
  t.is(graphFile(broken, undefined), join(broken, 'model.onnx'))
  // A path that is no folder is taken as it is.
  t.is(graphFile(join(broken, 'none.onnx'), undefined), join(broken, 'none.onnx'))
  t.is(graphFile('a\0b', undefined), 'a\0b')
})

test('an error about a folder lists the graphs that are there', async t => {
  const cases: readonly (readonly [
    files: readonly string[],
    dtype: GraphDType | undefined,
    argument: string,
    says: RegExp,
    named?: string,
  ])[] = [
    [[], undefined, 'model', /it has no \.onnx file$/],
    [['config.json', 'model.safetensors'], undefined, 'model', /it has no \.onnx file$/],
    [['encoder_model.onnx'], undefined, 'model', /a folder with a decoder, .*: it has encoder_model\.onnx$/],
    [
      ['onnx/vision_encoder.onnx', 'onnx/embed_tokens.onnx'],
      undefined,
      'model',
      /embed_tokens\.onnx, .*vision_encoder/,
    ],
    [['a.onnx', 'b.onnx'], undefined, 'model', /the path of one of several graphs: it has a\.onnx, b\.onnx$/],
    // The split form of older exporters.
    [
      ['decoder_model.onnx', 'decoder_with_past_model.onnx'],
      undefined,
      'model',
      /one of several graphs: it has decoder_model\.onnx, decoder_with_past_model\.onnx$/,
    ],
    [
      ['model.onnx', 'onnx/model_q4.onnx'],
      'q8',
      'dtype',
      /model_quantized\.onnx: it has model\.onnx, onnx.model_q4\.onnx$/,
    ],
    [['encoder_model_q4.onnx'], 'q4', 'dtype', /it has encoder_model_q4\.onnx$/],
    [[], 'q4', 'model', /it has no \.onnx file$/],
    [[], undefined, 'model', /it has no \.onnx file, and not gone\.onnx, which genai_config\.json names$/, 'gone.onnx'],
  ]
  for (const [files, dtype, argument, says, named] of cases) {
    const folder = await folderWith(t, files, named === undefined ? {} : genai(named))
    const { details } = throwsCode(t, 'INVALID_ARGUMENT', () => graphFile(folder, dtype))
    t.is(details.argument, argument, files.join())
    t.regex(details.expected, says)
  }
  const many = await folderWith(
    t,
    Array.from({ length: 40 }, (_, place) => `part${place}.onnx`),
  )
  t.regex(throwsCode(t, 'INVALID_ARGUMENT', () => graphFile(many, undefined)).details.expected, /and 28 more$/)
  // A file has no choice of graphs.
  const { details } = throwsCode(t, 'INVALID_ARGUMENT', () => graphFile(fixture('llama/onnx'), 'q4'))
  t.is(details.argument, 'dtype')
})

onnxTest('a folder, its file: URL and that of the file are the same model, which knows its path', async t => {
  const file = fixture('llama/onnx-gqa-f32')
  const folder = dirname(file)
  for (const given of [
    file,
    folder,
    relative('.', folder),
    pathToFileURL(file),
    pathToFileURL(folder),
    pathToFileURL(`${folder}/`),
    pathToFileURL(folder).href,
  ]) {
    await using model = await OnnxModel.load(given, SMALL)
    t.is(model.path, resolve(file), String(given))
    t.deepEqual([model.contextLength, model.endOfSequence], [512, [2]])
    using chat = model.open({ tokens: promptOf('p33') })
    t.deepEqual(await read(model, chat, 8), greedyOf('p33').slice(0, 8))
  }
})

onnxTest('what is no folder, file or URL of one is refused', async t => {
  for (const given of [
    new URL('https://example.org/model.onnx'),
    '',
    'file://%',
    5,
    undefined,
    { href: 'file:///x' },
  ]) {
    const { details } = await rejected(OnnxModel.load(given as never), 'INVALID_ARGUMENT')
    t.is(details.argument, 'model', String(given))
  }
  for (const dtype of ['Q4', 'f64', '', 4, null]) {
    const load = OnnxModel.load(dirname(fixture('llama/onnx')), { dtype: dtype as never })
    t.is((await rejected(load, 'INVALID_ARGUMENT')).details.argument, 'dtype')
  }
  const bytes = OnnxModel.load(new Uint8Array(4), { dtype: 'q4' })
  t.is((await rejected(bytes, 'INVALID_ARGUMENT')).details.argument, 'dtype')
  await rejected(OnnxModel.load(join(dirname(fixture('llama/onnx')), 'none')), 'INVALID_ARGUMENT')
})

/** A snapshot as the Hub's cache keeps it: links to files that have hashes as their names, in another folder. */
function snapshotOf(folder: string, from: string): string {
  const [blobs, snapshot] = ['blobs', 'snapshots/0123'].map(name => join(folder, name)) as [string, string]
  mkdirSync(blobs)
  mkdirSync(join(snapshot, 'onnx'), { recursive: true })
  for (const [place, name] of readdirSync(from).entries()) {
    const [blob, isGraph] = [join(blobs, `${place}`), name.includes('.onnx')]
    cpSync(join(from, name), blob)
    const link = join(snapshot, isGraph ? 'onnx' : '', name)
    symlinkSync(relative(dirname(link), blob), link)
  }
  return snapshot
}

for (const backend of ['graph', 'parts', 'plain'] satisfies BackendName[]) {
  onnxTest(
    `${backend}: a snapshot of links, whose weights are in another file, is a folder like any other`,
    async t => {
      if (process.platform === 'win32') return t.pass('Windows makes links for administrators only')
      const snapshot = snapshotOf(await folderOf(t), dirname(fixture('llama/onnx-gqa-f32-ext')))
      await using model = await OnnxModel.load(snapshot, { ...SMALL, backend })
      t.is(model.path, join(snapshot, 'onnx', 'model.onnx'))
      t.deepEqual(model.endOfSequence, [2])
      using chat = model.open({ tokens: promptOf('p33') })
      t.deepEqual(await read(model, chat, 8), greedyOf('p33').slice(0, 8))
      const data = readdirSync(join(snapshot, 'onnx')).find(name => name !== 'model.onnx') as string
      rmSync(join(snapshot, 'onnx', data))
      const { details } = await rejected(OnnxModel.load(snapshot, { ...SMALL, backend }), 'INVALID_GRAPH')
      t.is(basename(String(details.file)), data)
    },
  )
}

onnxTest('the parts of a model in a folder are found beside its graph', async t => {
  await using whisper = await OnnxModel.load(dirname(fixture('encoder-decoder/whisper')), SMALL)
  t.is(basename(String(whisper.path)), 'decoder_model_merged.onnx')
  t.not(whisper.crossCache, undefined)
  await using images = await OnnxModel.load(dirname(fixture('vision/qwen2-vl')), SMALL)
  t.is(basename(String(images.path)), 'decoder_model_merged.onnx')
  await using built = await OnnxModel.load(dirname(fixture('vision/llama')), SMALL)
  t.is(basename(String(built.path)), 'model.onnx')
  // By their URLs as well.
  const folder = dirname(fixture('encoder-decoder/whisper'))
  const decoder = pathToFileURL(join(folder, 'decoder_model_merged.onnx'))
  await using other = await OnnxModel.load(decoder, {
    ...SMALL,
    encoder: pathToFileURL(join(folder, 'encoder_model.onnx')),
  })
  t.not(other.crossCache, undefined)
})
