// Tokenizers of a few hundred ids, one for each kind of decoder, in the form of a `tokenizer.json`.
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { graphFile } from '../onnx/graphs.js'

/** The special tokens of the byte-level tokenizer; `<|im_end|>` is the id that ends the answers of the tiny llama. */
export const SPECIAL = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'] as const
/** Tokens that are added, but have text. */
export const ADDED = ['<think>', '</think>', '<tool_call>', '</tool_call>'] as const
/** Words that the byte-level tokenizer has as tokens. */
const WORDS = [
  'user',
  'assistant',
  'system',
  ' the',
  ' of',
  'Hello',
  ' world',
  'get',
  '_weather',
  'arguments',
  'name',
  '{"',
  '": "',
  '"}',
]

const isPrinted = (code: number): boolean => (code > 32 && code < 127) || (code > 160 && code !== 173)

const byteLevel = (byte: number): string => {
  if (isPrinted(byte)) return String.fromCharCode(byte)
  const others = Array.from({ length: byte }, (_, code) => code).filter(code => !isPrinted(code))
  return String.fromCharCode(256 + others.length)
}

const added = (id: number, content: string, special: boolean): object => ({
  id,
  content,
  special,
  normalized: false,
  lstrip: false,
  rstrip: false,
  single_word: false,
})

/** A special token, without its id and its text. */
export const SPECIAL_TOKEN: object = added(0, '', true)

/** Byte-level BPE as of GPT-2, Llama 3 and Qwen. */
export function byteLevelTokenizer(words: readonly string[] = WORDS): Record<string, unknown> {
  const vocab: Record<string, number> = {}
  let next = SPECIAL.length + ADDED.length
  for (let byte = 0; byte < 256; byte++) vocab[byteLevel(byte)] = next++
  const merges: [string, string][] = []
  for (const word of words) {
    const characters = [...new TextEncoder().encode(word)].map(byteLevel)
    for (let length = 2; length <= characters.length; length++) {
      const [left, right] = [characters.slice(0, length - 1).join(''), characters[length - 1] as string]
      if (vocab[left + right] !== undefined) continue
      merges.push([left, right])
      vocab[left + right] = next++
    }
  }
  return {
    version: '1.0',
    added_tokens: [
      ...SPECIAL.map((content, id) => added(id, content, true)),
      ...ADDED.map((content, id) => added(SPECIAL.length + id, content, false)),
    ],
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: { type: 'BPE', unk_token: null, byte_fallback: false, vocab, merges },
  }
}

/** Characters that the tokenizers with spaces have. */
const LETTERS = [...'▁abcdefghijklmnopqrstuvwxyz.,!éß東🙂']

/** BPE with `▁` for spaces and bytes for what it lacks, as of Gemma, Llama 2 and Mistral. */
export function fallbackTokenizer(strip: number): Record<string, unknown> {
  const vocab: Record<string, number> = { '<unk>': 0, '<s>': 1, '</s>': 2 }
  let next = 3
  for (let byte = 0; byte < 256; byte++) vocab[`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`] = next++
  for (const letter of LETTERS) vocab[letter] = next++
  const merges: [string, string][] = [
    ['▁', 'a'],
    ['▁', 't'],
    ['▁t', 'h'],
    ['▁', '▁'],
  ]
  for (const [left, right] of merges) vocab[left + right] = next++
  const replace = { type: 'Replace', pattern: { String: '▁' }, content: ' ' }
  const decoders = [replace, { type: 'ByteFallback' }, { type: 'Fuse' }]
  return {
    version: '1.0',
    added_tokens: ['<unk>', '<s>', '</s>'].map((content, id) => added(id, content, true)),
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: '▁' },
        { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
      ],
    },
    pre_tokenizer: null,
    post_processor: null,
    decoder: {
      type: 'Sequence',
      decoders: [...decoders, ...(strip > 0 ? [{ type: 'Strip', content: ' ', start: strip, stop: 0 }] : [])],
    },
    model: { type: 'BPE', unk_token: '<unk>', fuse_unk: true, byte_fallback: true, vocab, merges },
  }
}

/** Words with a suffix at their end. */
export function suffixTokenizer(): Record<string, unknown> {
  const vocab = Object.fromEntries(
    ['<unk>', ...[...'abcdef'].flatMap(letter => [letter, `${letter}</w>`])].map((token, id) => [token, id]),
  )
  return {
    ...fallbackTokenizer(0),
    added_tokens: [added(0, '<unk>', true)],
    normalizer: null,
    pre_tokenizer: { type: 'WhitespaceSplit' },
    decoder: { type: 'BPEDecoder', suffix: '</w>' },
    model: { type: 'BPE', unk_token: '<unk>', end_of_word_suffix: '</w>', vocab, merges: [] },
  }
}

/** The template of the tiny model, with tools in the form of Hermes. */
export const TEMPLATE = `{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}{{ '<tool_call>\\n{"name": …, "arguments": …}\\n</tool_call><|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}{{ '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls %}{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}`

const llama = JSON.parse(
  readFileSync(new URL('../../fixtures/llama/hf/config.json', import.meta.url), 'utf8'),
) as Record<string, unknown>

/** Writes the files of a tiny model into a folder: the graph of the llama fixture, a tokenizer, a template. */
export function tinyModel(folder: string, files: Readonly<Record<string, unknown>> = {}): string {
  const all: Record<string, unknown> = {
    'tokenizer.json': byteLevelTokenizer(),
    'tokenizer_config.json': { eos_token: '<|im_end|>', chat_template: TEMPLATE },
    'config.json': { ...llama, eos_token_id: 2, max_position_embeddings: 512 },
    ...files,
  }
  mkdirSync(folder, { recursive: true })
  for (const [name, content] of Object.entries(all)) {
    if (content === undefined) continue
    mkdirSync(dirname(join(folder, name)), { recursive: true })
    writeFileSync(join(folder, name), typeof content === 'string' ? content : JSON.stringify(content))
  }
  symlinkSync(graphFile('llama/onnx-gqa-f32'), join(folder, 'model.onnx'))
  return folder
}
