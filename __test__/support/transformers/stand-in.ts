// Loaded before an example that uses transformers.js: every model name leads to the smallest model of the fixtures, with a byte tokenizer.
import { cpSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'

import { graphFile } from '../onnx/graphs.js'
import { transformers } from './package.js'

const isShown = (byte: number): boolean => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173)

/** Ids 0 to 2 stand for nothing, start and end; then the bytes follow, written as visible characters. */
function vocabulary(): Record<string, number> {
  let hidden = 0
  const characters = Array.from({ length: 256 }, (_, byte) =>
    String.fromCodePoint(isShown(byte) ? byte : 256 + hidden++),
  )
  return Object.fromEntries(['<pad>', '<s>', '</s>', ...characters].map((token, id) => [token, id]))
}

const TOKENIZER = {
  version: '1.0',
  truncation: null,
  padding: null,
  added_tokens: ['<pad>', '<s>', '</s>'].map((content, id) => ({
    id,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  })),
  normalizer: null,
  pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
  post_processor: null,
  decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
  model: {
    type: 'BPE',
    dropout: null,
    unk_token: null,
    continuing_subword_prefix: '',
    end_of_word_suffix: '',
    fuse_unk: false,
    vocab: vocabulary(),
    merges: [],
  },
}
const TOKENIZER_CONFIG = {
  tokenizer_class: 'PreTrainedTokenizerFast',
  bos_token: '<s>',
  eos_token: '</s>',
  pad_token: '<pad>',
  chat_template:
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}",
}

/** Writes a model of the fixtures in the form that transformers.js reads. The references never stop at a token, so there is no stop token. */
export function writeModel(folder: string, graph = 'llama/onnx', dtype = ''): void {
  const file = graphFile(graph)
  mkdirSync(join(folder, 'onnx'), { recursive: true })
  const { eos_token_id: _, ...config } = JSON.parse(
    readFileSync(join(dirname(dirname(file)), 'hf', 'config.json'), 'utf8'),
  ) as Record<string, unknown>
  for (const [name, content] of Object.entries({
    'config.json': config,
    'tokenizer.json': TOKENIZER,
    'tokenizer_config.json': TOKENIZER_CONFIG,
  }))
    writeFileSync(join(folder, name), JSON.stringify(content))
  cpSync(file, join(folder, 'onnx', `model${dtype}.onnx`))
}

const name = process.env['KVTIDE_STAND_IN']
if (name !== undefined) {
  const { env } = transformers
  Object.assign(env, { allowRemoteModels: false, localModelPath: mkdtempSync(join(tmpdir(), 'kvtide-stand-in-')) })
  writeModel(join(env.localModelPath, name), 'llama/onnx', '_q4')
}
