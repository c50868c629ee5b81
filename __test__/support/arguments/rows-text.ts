import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import type { OnnxModel } from '../../../onnx.js'
import { INTERNAL } from '../../../lib/border/owner.js'
import { Codec } from '../../../lib/text/codec.js'
import { readTextFiles } from '../../../lib/text/files.js'
import { ChatTemplate } from '../../../lib/text/template.js'
import { TextStream } from '../../../lib/text/tokenizer.js'
import * as text from '../../../text.js'
import { keptFolder } from '../folder.js'
import { Dice, ToyBackend, toyModel } from '../onnx/toy-model.js'
import { tinyModel } from '../text/tiny-tokenizer.js'
import { but, count, flag, type Kind, never, optional, options, prompt, text as string, tokenIds } from './kinds.js'
import { free, Members, param, type Row, rowsOf } from './row.js'
import { NO_OPTIONS, some } from './rows-contiguous.js'
import { vocabularyRows } from './rows-vocabulary.js'
import { bare, sampling, signal } from './sampling.js'

const folder = tinyModel(keptFolder())
const files = readTextFiles(folder)
const codec = await Codec.load(files)
const tokenizer = new text.TextTokenizer(INTERNAL, codec)
const template = await ChatTemplate.of(files.templates, undefined, { eos_token: '<|im_end|>' })

/** A toy that says noise in the tokens of the tiny tokenizer. */
function toy(): OnnxModel {
  const { size: vocabulary } = tokenizer
  const backend = new ToyBackend(new Dice(1), { vocabulary })
  return toyModel(backend, { capacity: 256, contextLength: 512, ends: [2], vocabulary })
}

const modelOf = (inner: OnnxModel): text.TextModel =>
  new text.TextModel(INTERNAL, { model: inner, codec, template, files, name: 'toy' })
const model = (): text.TextModel => modelOf(toy())

/** A text; any text is valid. */
const words: Kind = but(string, { '"3"': 'ok' })
/** A text that OpenAI's clients leave out or send as `null`. */
const nullable: Kind = optional(but(words, { null: 'ok' }))
/** Objects that JSON can write, apart from arrays. */
const json: Kind = {
  legal: {
    ...bare('ok'),
    'a proxy of an array': 'ok',
    'a Sequence': 'ok',
    'a disposed Sequence': 'ok',
    'a PrefixMatch': 'ok',
    'a disposed PrefixMatch': 'ok',
    'a KvCache': 'ok',
  },
}

const part = (): object => ({ type: 'text', text: 'Hello' })
const user = (): object => ({ role: 'user', content: 'Hello' })
const called = (): object => ({ name: 'weather', arguments: '{}' })
const call = (): object => ({ id: '1', type: 'function', function: called() })
const tool = (): object => ({ type: 'function', function: { name: 'weather' } })

const calls: Kind = {
  legal: { null: 'ok', nothing: 'ok', 'an empty array': 'ok' },
  entries: [
    options(call, {
      id: nullable,
      type: optional(string),
      function: options(called, { name: words, arguments: words }),
    }),
  ],
}

const content: Kind = {
  legal: { '"3"': 'ok', 'an empty array': 'ok' },
  entries: [options(part, { type: string, text: words }, { '"3"': 'ok' })],
}

const messages: Kind = {
  legal: {},
  entries: [
    options(user, {
      role: string,
      content,
      tool_calls: { legal: { null: 'ok', nothing: 'ok' } },
      tool_call_id: nullable,
      name: nullable,
      reasoning_content: nullable,
    }),
    options(() => ({ role: 'assistant' }), { content: but(content, { null: 'ok', nothing: 'ok' }), tool_calls: calls }),
  ],
}

const tools: Kind = {
  legal: { nothing: 'ok', 'an empty array': 'ok' },
  entries: [
    options(tool, {
      type: string,
      function: options(() => ({ name: 'weather' }), {
        name: words,
        description: nullable,
        parameters: but(json, { null: 'ok', nothing: 'ok' }),
        strict: but(flag, { null: 'ok', nothing: 'ok' }),
      }),
    }),
  ],
}

/** Options that chats and completions have in common. */
const { allowed: _, ...drawn } = sampling
const answer = {
  ...drawn,
  maxTokens: optional(count),
  stop: optional({ legal: { '"3"': 'ok', 'an empty array': 'ok' }, entries: [words] }),
  stopTokens: optional(tokenIds),
  ignoreEndOfSequence: optional(flag),
  schema: optional(json),
  grammar: optional(options(() => ({}), { json: but(json, { true: 'ok' }), regex: words, lark: words })),
  signal: optional(signal),
  draft: optional(options(() => ({}), { lookup: count, model: { legal: {} } })),
  salt: prompt['salt'] as Kind,
  saltFrom: optional(count),
  checkpoints: optional({ legal: { 'an empty array': 'ok' } }),
}

const chat = (): object => ({ messages: [user()] })
const rendered = { messages, tools, templateOptions: optional(json) }

const models = new Members('TextModel', model)
  .method(
    'chat',
    param('options', options(chat, { ...rendered, ...answer, toolChoice: optional({ legal: {} }) }), chat),
  )
  .method(
    'complete',
    param(
      'options',
      options(() => ({ prompt: 'Hello' }), { prompt: but(tokenIds, { '"3"': 'ok' }), ...answer }),
      () => ({ prompt: 'Hello' }),
    ),
  )
  .method('render', param('options', options(chat, rendered), chat))
  .disposable()
  .special('[asyncDispose]', { disposed: 'ok', foreign: 'INVALID_ARGUMENT' })

const shared = model()

/** An answer that is JSON, and was not read yet. */
const generation = (): object => shared.complete({ prompt: 'Hello', schema: { const: true }, maxTokens: 8 })

const generations = new Members('TextGeneration', generation)
  .plain('finishReason', 'usage', '[asyncIterator]', 'events', 'message', 'text', 'json', 'return')
  .special('[asyncDispose]', { disposed: 'ok', foreign: 'INVALID_ARGUMENT' })

const always = { disposed: 'ok', foreign: 'INVALID_ARGUMENT' }
const shown = some({ skipSpecialTokens: optional(flag) })
const tokenizers = new Members('TextTokenizer', () => new text.TextTokenizer(INTERNAL, codec))
  .special(
    'encode',
    always,
    param('text', words, () => 'Hello'),
    some({ addSpecialTokens: optional(flag) }),
  )
  .special(
    'encodeAsync',
    always,
    param('text', words, () => 'Hello'),
    some({ addSpecialTokens: optional(flag), signal: optional({ legal: {} }) }),
  )
  .special(
    'decode',
    always,
    param('ids', tokenIds, () => [3]),
    shown,
  )
  .special('stream', always, shown)
  .special('vocabulary', always, some({ size: optional(count), endOfSequence: optional(tokenIds) }))

/** The object that turns ids into text, which is no export. */
export const streamRows: readonly Row[] = rowsOf(
  { TextStream },
  new Members('TextStream', () => tokenizer.stream() as TextStream)
    .special(
      'push',
      always,
      param('id', but(count, { '2^31': 'ok' }), () => 3),
    )
    .special('end', always).rows,
)

/** A cache folder of the Hub that has a model. */
function cached(): string {
  const [hub, commit] = [keptFolder(), '0'.repeat(40)]
  const home = join(hub, 'models--org--name')
  mkdirSync(join(home, 'refs'), { recursive: true })
  writeFileSync(join(home, 'refs', 'main'), commit)
  tinyModel(join(home, 'snapshots', commit))
  return hub
}

const cacheFolder = cached()

/** Sets the variables of the Hub: a wrong value in place of an option must ask no server. */
export function offline(): void {
  Object.assign(process.env, { HF_HUB_OFFLINE: '1', HF_HUB_CACHE: cacheFolder })
}

const onHub = (): object => ({ cacheFolder, isOffline: true })
/** Options of a download; `away` is the outcome for a place that has no model. */
const fromHub = (away: string): Readonly<Record<string, Kind>> => ({
  revision: optional(but(words, { '"3"': away })),
  folder: optional(but(words, { '"3"': away })),
  cacheFolder: optional(but(words, { '"3"': away })),
  isOffline: optional(flag),
  token: optional(words),
  endpoint: optional({ legal: {} }),
  onProgress: optional({ legal: { 'a function': 'ok' } }),
  onRetry: optional({ legal: { 'a function': 'ok' } }),
  signal: optional(signal),
  dtype: optional(string),
})

/** Objects without options. A getter for `dtype` is read. */
const withDType = (half: string): Kind['legal'] => ({
  ...NO_OPTIONS,
  'a Tensor of another dtype': half,
  'a disposed Tensor': 'DISPOSED',
})

/** Rows of kvtide/text that need no runtime. */
export const textRows: readonly Row[] = rowsOf(text, [
  ...['TextModel', 'TextGeneration', 'TextTokenizer'].map(name =>
    free(
      `new ${name}`,
      param('token', never, () => undefined),
      param('inner', never, () => undefined),
    ),
  ),
  ...models.rows,
  ...generations.rows,
  ...tokenizers.rows,
  ...vocabularyRows,
  free(
    'downloadModel',
    param('name', { legal: {} }, () => 'org/name'),
    param('options', options(onHub, fromHub('HUB_UNAVAILABLE'), withDType('HUB_UNAVAILABLE')), onHub),
  ),
])

const small = (): object => ({ backend: 'plain', threads: 1, cache: { capacity: 4, blockSize: 2 }, isOffline: true })

/** Options of a load besides those of `OnnxModel.load`, whose rows have the others. */
export const textLoadRows: readonly Row[] = rowsOf(text, [
  free(
    'TextModel.load',
    param('model', { legal: { '"3"': 'INVALID_TOKENIZER' } }, () => folder),
    param(
      'options',
      options(
        small,
        { template: optional({ legal: { '"3"': 'INVALID_ARGUMENT' } }), threads: optional(count), ...fromHub('ok') },
        withDType('INVALID_ARGUMENT'),
      ),
      small,
    ),
  ),
])
