// The files that are downloaded from the repositories that people use, by the names of their files.
import test from 'ava'

import {
  companionsOf,
  configsOf,
  dataOf,
  genaiFiles,
  graphOf,
  graphsOf,
  isFirstChoice,
  modelFolder,
} from '../../../lib/text/hub/graphs.js'
import type { GraphDType } from '../../../lib/onnx/model-folder.js'

/** The names of files as the Hub lists them. */
const CONFIGS = [
  'config.json',
  'generation_config.json',
  'special_tokens_map.json',
  'tokenizer.json',
  'tokenizer_config.json',
]

const SMOLLM2 = [
  '.gitattributes',
  'README.md',
  'all_results.json',
  ...CONFIGS,
  'merges.txt',
  'model.safetensors',
  'vocab.json',
  'runs/events.out.tfevents.1',
  ...['', '_bnb4', '_fp16', '_int8', '_q4', '_q4f16', '_quantized', '_uint8'].map(suffix => `onnx/model${suffix}.onnx`),
]
const QWEN3 = [
  ...CONFIGS,
  'chat_template.jinja',
  ...['', '_bnb4', '_fp16', '_int8', '_q4', '_q4f16', '_quantized', '_uint8'].map(suffix => `onnx/model${suffix}.onnx`),
  'onnx/model.onnx_data',
  'onnx/model.onnx_data_1',
  'onnx/model_fp16.onnx_data',
  'onnx/model_q4.onnx_data',
]
const genai = (folder: string, name: string): string[] =>
  [
    'added_tokens.json',
    'config.json',
    'genai_config.json',
    name,
    `${name}.data`,
    ...CONFIGS.slice(2),
    'tokenizer.model',
  ].map(file => `${folder}/${file}`)
const PHI3 = [
  'README.md',
  'config.json',
  'configuration_phi3.py',
  ...genai('cpu_and_mobile/cpu-int4-rtn-block-32', 'phi3-mini-4k-instruct-cpu-int4-rtn-block-32.onnx'),
  ...genai(
    'cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4',
    'phi3-mini-4k-instruct-cpu-int4-rtn-block-32-acc-level-4.onnx',
  ),
  ...genai('cuda/cuda-fp16', 'phi3-mini-4k-instruct-cuda-fp16.onnx'),
  ...genai('cuda/cuda-int4-rtn-block-32', 'phi3-mini-4k-instruct-cuda-int4-rtn-block-32.onnx'),
  ...genai('directml/directml-int4-awq-block-128', 'model.onnx'),
]
const VISION = [
  ...CONFIGS,
  'preprocessor_config.json',
  ...['decoder_model_merged', 'embed_tokens', 'vision_encoder'].flatMap(name =>
    ['', '_fp16', '_q4'].map(suffix => `onnx/${name}${suffix}.onnx`),
  ),
  'onnx/decoder_model_merged_q4.onnx_data',
  'onnx/embed_tokens.onnx_data',
]

const fileOf = (paths: readonly string[], dtype?: GraphDType, folder?: string): string | undefined =>
  graphOf(graphsOf(paths, folder), dtype)?.file

test('a graph is chosen by its dtype, and q4 by default', t => {
  for (const paths of [SMOLLM2, QWEN3]) {
    t.is(fileOf(paths), 'onnx/model_q4.onnx')
    t.is(fileOf(paths, 'f32'), 'onnx/model.onnx')
    t.is(fileOf(paths, 'f16'), 'onnx/model_fp16.onnx')
    t.is(fileOf(paths, 'fp32'), 'onnx/model.onnx', 'another name')
    t.is(fileOf(paths, 'fp16'), 'onnx/model_fp16.onnx')
    t.is(fileOf(paths, 'q2'), undefined)
    t.is(fileOf(paths, 'q8'), 'onnx/model_quantized.onnx')
    t.is(fileOf(paths, 'int8'), 'onnx/model_int8.onnx')
    t.is(fileOf(paths, 'uint8'), 'onnx/model_uint8.onnx')
    t.is(fileOf(paths, 'q4f16'), 'onnx/model_q4f16.onnx')
    t.is(fileOf(paths, 'bnb4'), 'onnx/model_bnb4.onnx')
    t.is(fileOf(paths.filter(path => !path.includes('_q4.'))), 'onnx/model_quantized.onnx', 'then q8')
    t.is(fileOf(paths.filter(path => !/_(?:q4|quantized|int8)\./.test(path))), 'onnx/model_fp16.onnx', 'then f16')
    t.is(fileOf(paths.filter(path => !/_(?:q4|quantized|int8|fp16)\./.test(path))), 'onnx/model.onnx', 'then f32')
  }
  t.is(
    fileOf(
      SMOLLM2.filter(path => !path.includes('_quantized')),
      'q8',
    ),
    'onnx/model_int8.onnx',
    'the same under its other name',
  )
  t.is(fileOf(SMOLLM2, 'q8', 'nowhere'), undefined)
  t.is(fileOf(['config.json', 'model.safetensors']), undefined)
  t.is(fileOf(['model.onnx', 'model.onnx_data', 'config.json']), 'model.onnx')
  t.is(
    fileOf(['decoder_model.onnx', 'decoder_model_merged.onnx', 'decoder_with_past_model.onnx', 'encoder_model.onnx']),
    'decoder_model_merged.onnx',
  )
  t.is(fileOf(['gpt.onnx', 'config.json']), 'gpt.onnx', 'the only one, whatever its name')
})

test('a repository for onnxruntime-genai has its models in folders', t => {
  const level4 = 'cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4'
  t.is(graphOf(graphsOf(PHI3), undefined)?.folder, level4, 'that for processors')
  t.is(graphOf(graphsOf(PHI3), 'q4')?.folder, level4)
  t.is(graphOf(graphsOf(PHI3), 'f16')?.folder, 'cuda/cuda-fp16', 'the only one')
  t.is(graphOf(graphsOf(PHI3), 'q8'), undefined)
  const own = 'cpu_and_mobile/cpu-int4-rtn-block-32'
  t.is(fileOf(PHI3, undefined, own), `${own}/phi3-mini-4k-instruct-cpu-int4-rtn-block-32.onnx`)
  t.is(graphOf(graphsOf(PHI3, 'cuda'), 'q4')?.folder, 'cuda/cuda-int4-rtn-block-32')
  t.true(graphsOf(PHI3).every(({ file }) => file !== undefined))
  t.is(graphsOf([...PHI3, `${level4}/another.onnx`])[0]?.file, undefined, 'the config says which')
  t.deepEqual(
    genaiFiles(
      JSON.stringify({ model: { decoder: { filename: 'model.onnx' }, embedding: { filename: 'e.onnx' } } }),
      'a/b',
    ),
    ['a/b/model.onnx', 'a/b/e.onnx'],
  )
  for (const text of ['', '[]', 'null', '{"model":{"decoder":{"filename":3}}}']) t.deepEqual(genaiFiles(text, ''), [])
})

test('the weights of a graph are known by their names', t => {
  t.deepEqual(dataOf(QWEN3, 'onnx/model.onnx'), ['onnx/model.onnx_data', 'onnx/model.onnx_data_1'])
  t.deepEqual(dataOf(QWEN3, 'onnx/model_q4.onnx'), ['onnx/model_q4.onnx_data'])
  t.deepEqual(dataOf(QWEN3, 'onnx/model_q4f16.onnx'), [])
  const folder = 'cpu_and_mobile/cpu-int4-rtn-block-32'
  const graph = `${folder}/phi3-mini-4k-instruct-cpu-int4-rtn-block-32.onnx`
  t.deepEqual(dataOf(PHI3, graph), [`${graph}.data`])
  const names = [
    'm.onnx',
    'm.onnx.data',
    'm.data',
    'm_data',
    'm.onnx_data-00001',
    'm.weights',
    'm.bin',
    'm.onnx.json',
    'm_q4.onnx',
    'm2.data',
    'x/m.data',
  ]
  t.deepEqual(dataOf(names, 'm.onnx'), ['m.onnx.data', 'm.data', 'm_data', 'm.onnx_data-00001', 'm.weights', 'm.bin'])
})

test('configs come from the folder of the graph, or from the nearest one above', t => {
  t.deepEqual(configsOf(SMOLLM2, 'onnx').toSorted(), CONFIGS)
  t.is(modelFolder(SMOLLM2, 'onnx'), '')
  const folder = 'cpu_and_mobile/cpu-int4-rtn-block-32'
  t.true(configsOf(PHI3, folder).every(path => path.startsWith(`${folder}/`)))
  t.true(configsOf(PHI3, folder).includes(`${folder}/genai_config.json`))
  t.is(modelFolder(PHI3, folder), folder)
  t.deepEqual(
    configsOf(['genai_config.json', 'tokenizer.json', 'onnx/model.onnx'], 'onnx'),
    ['tokenizer.json'],
    'no config of another graph',
  )
  t.deepEqual(
    configsOf(
      [
        'additional_chat_templates/tool_use.jinja',
        'additional_chat_templates/x.txt',
        'a/additional_chat_templates/b/c.jinja',
      ],
      'a',
    ),
    ['additional_chat_templates/tool_use.jinja'],
  )
  t.is(modelFolder(['q4/model.onnx', 'config.json'], 'q4'), '')
  t.is(modelFolder(['q4/model.onnx'], 'q4'), 'q4')
})

test('a decoder of embeddings has its own beside it', t => {
  t.is(fileOf(VISION), 'onnx/decoder_model_merged_q4.onnx')
  t.deepEqual(companionsOf(VISION, 'onnx/decoder_model_merged_q4.onnx', ['embed_tokens', 'embedding']), [
    'onnx/embed_tokens_q4.onnx',
  ])
  t.deepEqual(companionsOf(VISION, 'onnx/decoder_model_merged_q8.onnx', ['embed_tokens']), [
    'onnx/embed_tokens.onnx',
    'onnx/embed_tokens.onnx_data',
  ])
  t.deepEqual(companionsOf(VISION, 'onnx/decoder_model_merged.onnx', ['encoder_model']), [])
})

const first = (paths: readonly string[]): boolean => isFirstChoice(graphsOf(paths)[0] as never)

test('only a graph that no other can precede is a choice without the list', t => {
  t.true(first(['onnx/model_q4.onnx']))
  t.true(first(PHI3))
  t.false(first(['onnx/model.onnx']), 'a q4 may be on the Hub')
  t.false(first(PHI3.filter(path => path.includes('cuda'))))
  t.false(first(PHI3.filter(path => !path.includes('acc-level-4'))), 'one with acc-level-4 may be')
})
