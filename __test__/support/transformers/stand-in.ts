// Loaded before an example that uses transformers.js: every model name leads to the smallest model of the fixtures, with a byte tokenizer.
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { byteTokenizer } from '../byte-tokenizer.js'
import { keptFolder } from '../folder.js'
import { graphFile } from '../onnx/graphs.js'
import { transformers } from './package.js'

/** Ids 0 to 2 stand for nothing, start and end; then the bytes follow, written as visible characters. */
const TOKENIZER = byteTokenizer({ '<pad>': 0, '<s>': 1, '</s>': 2 }, 3)
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
  Object.assign(env, { allowRemoteModels: false, localModelPath: keptFolder() })
  writeModel(join(env.localModelPath, name), 'llama/onnx', '_q4')
}
