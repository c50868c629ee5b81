// A folder with a model that reads and writes text: the tiny Llama, with a tokenizer whose ids are bytes, and a chat template with tools in Hermes' form.
import { cpSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { byteTokenizer } from '../byte-tokenizer.js'
import { keptFolder } from '../folder.js'

/** The ids of bytes begin behind those of padding, begin and end. */
export const FIRST_BYTE = 3

/** Special tokens behind the bytes. */
const SPECIAL: Readonly<Record<string, number>> = {
  '<pad>': 0,
  '<s>': 1,
  '<|im_end|>': 2,
  '<|im_start|>': 259,
  '<tool_call>': 260,
  '</tool_call>': 261,
}

const TEMPLATE = `{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
Answer with <tool_call>
{"name": .., "arguments": ..}
</tool_call> to call one.<|im_end|>
{% endif %}{% for message in messages %}{% if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif not (tools and loop.first and message.role == 'system') %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

/** Writes the files beside the graph. */
export function writeTextFiles(folder: string, contextLength = 4096): void {
  const write = (name: string, content: object): void => writeFileSync(join(folder, name), JSON.stringify(content))
  const config = {
    model_type: 'llama',
    hidden_size: 64,
    head_dim: 16,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    num_hidden_layers: 3,
    vocab_size: 320,
    max_position_embeddings: contextLength,
    eos_token_id: 2,
  }
  write('config.json', config)
  write('generation_config.json', { eos_token_id: [2] })
  write('tokenizer.json', byteTokenizer(SPECIAL, FIRST_BYTE, ['<tool_call>', '</tool_call>']))
  write('tokenizer_config.json', {
    tokenizer_class: 'PreTrainedTokenizerFast',
    bos_token: '<s>',
    eos_token: '<|im_end|>',
    pad_token: '<pad>',
    add_bos_token: false,
    chat_template: TEMPLATE,
  })
}

/** Makes the folder, which is removed when the process ends. */
export function modelFolder(contextLength?: number): string {
  const folder = keptFolder('text')
  cpSync('__test__/fixtures/llama/onnx/model.onnx', join(folder, 'model.onnx'))
  writeTextFiles(folder, contextLength)
  return folder
}
