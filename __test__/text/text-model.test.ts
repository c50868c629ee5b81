// Text models end to end, with the tiny llama: what it says is noise, but its tokens, its cache and its ends are real.
import { renameSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

import type { ExecutionContext } from 'ava'

import { OnnxModel } from '../../onnx.js'
import {
  type ChatMessage,
  type TextGeneration,
  TextModel,
  type TextModelOptions,
  type TextOptions,
  type Tool,
} from '../../text.js'
import { folderOf } from '../support/folder.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { models as seq2seq } from '../support/onnx/encoder-decoder.js'
import { Dice, ToyBackend, toyModel } from '../support/onnx/toy-model.js'
import { byteLevelTokenizer, SPECIAL_TOKEN, TEMPLATE, tinyModel } from '../support/text/tiny-tokenizer.js'
import { rejected, throwsCode } from '../support/throws.js'

const SMALL = { threads: 1, cache: { memoryBytes: 2 ** 24 } } satisfies TextModelOptions
const ask = (content: string): ChatMessage => ({ role: 'user', content })

const load = async (t: ExecutionContext, files: Record<string, unknown> = {}): Promise<TextModel> =>
  TextModel.load(tinyModel(await folderOf(t), files), SMALL)

test('a folder, its graph, URLs of both, and names that are none', async t => {
  const folder = tinyModel(join(await folderOf(t), 'tiny'))
  for (const place of [folder, join(folder, 'model.onnx'), pathToFileURL(folder), pathToFileURL(folder).href]) {
    await using model = await TextModel.load(place, SMALL)
    t.is(model.name, 'tiny')
    t.is(model.contextLength, 512)
    t.deepEqual([model.hasTemplate, model.toolFamily, [...model.model.endOfSequence]], [true, 'hermes', [2]])
  }
  await rejected(TextModel.load(join(folder, 'missing', 'a', 'b c')), 'INVALID_ARGUMENT')
  for (const wrong of [undefined, '', 5, 'no such name!', 'a\0b', new URL('https://x.y/z')])
    await rejected(TextModel.load(wrong as never), 'INVALID_ARGUMENT')
  const offline = { isOffline: true, cacheFolder: folder }
  const away = await rejected(TextModel.load('org/name', offline), 'HUB_UNAVAILABLE')
  t.regex(away.message, /^there is no folder org\/name; cannot get org\/name from /)
  const misspelt = await rejected(TextModel.load('org/name', { ...offline, templat: 'x' } as never), 'INVALID_ARGUMENT')
  t.regex(misspelt.message, /did you mean 'template'\? .*cacheFolder/)
  await rejected(TextModel.load(folder, { ...SMALL, templates: 'x' } as never), 'INVALID_ARGUMENT')
  await rejected(TextModel.load(folder, { ...SMALL, dtype: 'q4' }), 'INVALID_ARGUMENT')
  await rejected(TextModel.load(folder, { signal: AbortSignal.abort() }), 'ABORTED')
  await rejected(TextModel.load(folder, { template: 'missing' }), 'INVALID_ARGUMENT')
})

test('a chat that goes on computes its new tokens alone', async t => {
  await using model = await load(t)
  const messages: ChatMessage[] = [ask('Hello, what of the world? '.repeat(3))]
  let computed = 0
  for (let turn = 0; turn < 8; turn++) {
    const generation = model.chat({ messages, maxTokens: 23, seed: turn, temperature: 2 })
    messages.push(await generation.message(), ask('And the weather?'))
    const { promptTokens, cachedTokens, generatedTokens } = generation.usage
    t.true(generatedTokens <= 23)
    // All but the last block of the turns before is there, whatever the answers' tokens were.
    if (turn > 0) t.true(cachedTokens >= computed - 16, `${turn}: ${cachedTokens} of ${computed}`)
    computed = promptTokens + generatedTokens
  }
  t.true(computed > 250)
})

test('chats that run together are those that run alone', async t => {
  await using model = await load(t)
  const all = Array.from({ length: 6 }, (_, which) => ({ messages: [ask(`Hello ${which} world`)], maxTokens: 12 }))
  const alone: string[] = []
  for (const chat of all) alone.push(await model.chat(chat).text())
  await using other = await load(t)
  t.deepEqual(await Promise.all(all.map(chat => other.chat(chat).text())), alone)
})

test('tenants share nothing', async t => {
  await using model = await load(t)
  const chat = { messages: [ask('Hello, what of the world? '.repeat(4))], maxTokens: 4 }
  const used = async (salt: string): Promise<number> => {
    const generation = model.chat({ ...chat, salt })
    await generation.text()
    return generation.usage.cachedTokens
  }
  t.is(await used('a'), 0)
  t.true((await used('a')) > 32)
  t.is(await used('b'), 0)
})

test('complete continues a text and ids, with log-probabilities', async t => {
  await using model = await load(t)
  const ids = model.tokenizer.encode('Hello world')
  const text = await model.complete({ prompt: 'Hello world', maxTokens: 8 }).text()
  t.is(await model.complete({ prompt: ids, maxTokens: 8 }).text(), text)
  let tokens = 0
  for await (const event of model.complete({ prompt: ids, maxTokens: 8, logprobs: 2 }).events()) {
    if (event.type !== 'text') continue
    t.is(event.logprobs?.length, event.tokens.length)
    for (const [place, entry] of (event.logprobs ?? []).entries()) {
      t.is(entry.token, event.tokens[place] as number)
      t.is(entry.top.length, 2)
      t.true(entry.logprob <= 0 && entry.bytes.length > 0)
    }
    tokens += event.tokens.length
  }
  t.is(tokens, 8)
})

const SCHEMA = {
  type: 'object',
  properties: { city: { enum: ['Paris', 'Rome'] }, warm: { type: 'boolean' } },
  required: ['city', 'warm'],
  additionalProperties: false,
}

test('a schema gives JSON that matches it, and ends the answer', async t => {
  await using model = await load(t)
  const messages = [ask('Where?')]
  for (const seed of [1, 2, 3]) {
    const answer = model.chat({ messages, schema: SCHEMA, seed, temperature: 1.5, maxTokens: 200 })
    const { city, warm } = await answer.json<{ city: string; warm: boolean }>()
    t.true(['Paris', 'Rome'].includes(city) && typeof warm === 'boolean')
    t.is(answer.finishReason, 'stop')
  }
  const year = await model.complete({ prompt: 'In ', grammar: { regex: '[12][0-9]{3}' }, seed: 1 }).text()
  t.regex(year, /^[12]\d{3}$/)
  await rejected(model.chat({ messages, schema: { type: 'nothing' } }).text(), 'INVALID_GRAMMAR')
})

test('a vocabulary that could not be read is read again for the next grammar', async t => {
  const folder = tinyModel(await folderOf(t))
  await using model = await TextModel.load(folder, SMALL)
  const [path, away] = [join(folder, 'tokenizer.json'), join(folder, 'away.json')]
  const year = (): Promise<string> =>
    model.complete({ prompt: 'In ', grammar: { regex: '[12][0-9]{3}' }, seed: 1 }).text()
  renameSync(path, away)
  await rejected(year(), 'IO_ERROR')
  renameSync(away, path)
  t.regex(await year(), /^[12]\d{3}$/)
})

/** A toy that drafts. */
const toy = (vocabulary: number): OnnxModel =>
  toyModel(new ToyBackend(new Dice(1), { vocabulary }), { capacity: 8, vocabulary })

test('a draft model that cannot be used is refused at once, by each kind of answer', async t => {
  await using model = await load(t)
  await using other = toy(5000)
  const t5 = seq2seq.find(({ name }) => name === 't5')
  await using encoded = await OnnxModel.load(t5?.file as string, {
    threads: 1,
    backend: 'plain',
    cache: { capacity: 16 },
  })
  const ended = await load(t)
  await ended.dispose()
  const answers: readonly ((draft: TextOptions['draft']) => TextGeneration)[] = [
    draft => model.chat({ messages: [ask('Hi')], ...(draft && { draft }) }),
    draft => model.complete({ prompt: 'Hi', ...(draft && { draft }) }),
  ]
  for (const answer of answers) {
    for (const draft of [ended, ended.model]) {
      throwsCode(t, 'DISPOSED', () => answer(draft))
      throwsCode(t, 'DISPOSED', () => answer({ model: draft, tokens: 2 }))
    }
    for (const draft of [model, model.model, other, encoded]) {
      throwsCode(t, 'INVALID_ARGUMENT', () => answer(draft))
      throwsCode(t, 'INVALID_ARGUMENT', () => answer({ model: draft }))
    }
  }
})

test('an answer that cannot begin leaves no sequence behind', async t => {
  await using model = await load(t)
  const draft = toy(model.model.vocabularySize as number)
  const answer = model.chat({ messages: [ask('Hi')], draft })
  await draft.dispose()
  await rejected(answer.text(), 'DISPOSED')
  t.deepEqual(model.model.cache.sequenceIds(), [])
})

/** A template in the form of each family, with its tokens. */
const FORMS: Readonly<Record<string, readonly [template: string, tokens: readonly string[]]>> = {
  hermes: ['<tool_call>', []],
  'qwen3-coder': ['<tool_call><function=x><parameter=y>', []],
  llama3: ['{"name": "tool_calls", "parameters": ', []],
  mistral: ['[TOOL_CALLS]', ['[TOOL_CALLS]']],
  granite: ['<|tool_call|>', ['<|tool_call|>']],
  deepseek: [
    '<｜tool▁call▁begin｜>',
    [
      '<｜tool▁calls▁begin｜>',
      '<｜tool▁call▁begin｜>',
      '<｜tool▁sep｜>',
      '<｜tool▁call▁end｜>',
      '<｜tool▁calls▁end｜>',
    ],
  ],
  'gpt-oss': ['<|channel|><|message|>', ['<|channel|>', '<|message|>', '<|constrain|>', '<|end|>', '<|start|>']],
}

/** Loads the tiny model with a template in the form of a family, and with its tokens. */
async function formed(t: ExecutionContext, family: string): Promise<TextModel> {
  const [signs, tokens] = FORMS[family] as (typeof FORMS)[string]
  const json = byteLevelTokenizer([])
  const added = tokens.map((content, place) => ({ ...SPECIAL_TOKEN, id: 263 + place, content }))
  const template = `{% if tools %}{{ tools | length }}{{ '${signs}' }}{% endif %}${TEMPLATE.slice(TEMPLATE.indexOf('{%- for message'))}`
  const model = await load(t, {
    'tokenizer.json': { ...json, added_tokens: [...(json['added_tokens'] as object[]), ...added] },
    'chat_template.jinja': template.replaceAll(
      '<tool_call>',
      family === 'hermes' || family === 'qwen3-coder' ? '<tool_call>' : '#',
    ),
  })
  t.is(model.toolFamily, family as never)
  return model
}

test('a call that is forced is read as one, in the form of each family', async t => {
  const tools: Tool[] = ['place', 'other'].map(name => ({ type: 'function', function: { name, parameters: SCHEMA } }))
  for (const family of Object.keys(FORMS)) {
    await using model = await formed(t, family)
    // In place of the analysis, which noise would never end: `commentary`.
    const bias = family === 'gpt-oss' ? { [model.tokenizer.encode('c')[0] as number]: 100 } : {}
    for (const toolChoice of ['required', { name: 'other' }] as const) {
      const answer = model.chat({
        messages: [ask('Where?')],
        tools,
        toolChoice,
        maxTokens: 300,
        bias,
        seed: 3,
        temperature: 1,
      })
      const { content, tool_calls = [] } = await answer.message()
      t.true(tool_calls.length > 0, `${family}: ${content}`)
      if (answer.finishReason === 'length') continue
      t.is(answer.finishReason, 'tool_calls', family)
      for (const call of tool_calls) {
        if (typeof toolChoice === 'object') t.is(call.function.name, 'other')
        const { city, warm } = JSON.parse(call.function.arguments) as { city: string; warm: boolean }
        t.true(['Paris', 'Rome'].includes(city) && typeof warm === 'boolean', family)
      }
    }
  }
})

test('with a schema and tools, an answer is JSON or calls, in the form of each family', async t => {
  const tools: Tool[] = [{ type: 'function', function: { name: 'name', parameters: SCHEMA } }]
  const schema = { type: 'object', properties: { x: { enum: [1, 2] } }, required: ['x'], additionalProperties: false }
  for (const family of Object.keys(FORMS)) {
    await using model = await formed(t, family)
    const [, tokens] = FORMS[family] as (typeof FORMS)[string]
    // The tokens with which calls and JSON begin to differ.
    const opener = { llama3: 'n', 'gpt-oss': 'c' }[family] ?? tokens[0] ?? '<tool_call>'
    const other = { llama3: 'x', 'gpt-oss': 'f' }[family] ?? '{'
    for (const [first, grammar] of [
      [opener, { schema }],
      [other, { schema }],
      [opener, { grammar: { json: schema } }],
    ] as const) {
      const bias = { [model.tokenizer.encode(first)[0] as number]: 100 }
      const chat = { messages: [ask('Where?')], tools, ...grammar, bias, seed: 3, temperature: 1, maxTokens: 300 }
      const answer = model.chat(chat)
      const { content, tool_calls = [] } = await answer.message()
      const isCall = first === opener
      t.is(tool_calls.length > 0, isCall, `${family}, ${first}: ${content}`)
      if (answer.finishReason === 'length') continue
      t.is(answer.finishReason, isCall ? 'tool_calls' : 'stop', family)
      for (const call of tool_calls)
        t.true(['Paris', 'Rome'].includes((JSON.parse(call.function.arguments) as { city: string }).city), family)
      if (!isCall) t.true([1, 2].includes((JSON.parse(content ?? '') as { x: number }).x), family)
    }
  }
})

test('behind reasoning that the prompt has opened, a schema and forced calls begin with its end', async t => {
  const opened = TEMPLATE.replace(
    "'<|im_start|>assistant\\n' }}{% endif %}",
    "'<|im_start|>assistant\\n<think>\\n</think>'[:-8] }}{% endif %}",
  )
  t.not(opened, TEMPLATE)
  await using model = await load(t, { 'chat_template.jinja': opened })
  const end = model.tokenizer.encode('</think>')[0] as number
  const chat = { messages: [ask('Where?')], bias: { [end]: 100 }, seed: 1, temperature: 1, maxTokens: 200 }
  t.true(model.render({ messages: chat.messages }).endsWith('<think>\n'))
  const { warm } = await model.chat({ ...chat, schema: SCHEMA }).json<{ warm: boolean }>()
  t.is(typeof warm, 'boolean')
  const tools: Tool[] = [{ type: 'function', function: { name: 'place', parameters: SCHEMA } }]
  const { tool_calls = [] } = await model.chat({ ...chat, tools, toolChoice: { name: 'place' } }).message()
  t.is(tool_calls[0]?.function.name, 'place')
})

test('a prompt beyond the context is refused before anything is computed', async t => {
  await using model = await load(t)
  const long = model.chat({ messages: [ask('x'.repeat(600))] })
  const error = await rejected(long.text(), 'CONTEXT_OVERFLOW')
  t.is(error.details.contextLength, 512)
  t.is(long.usage.computedTokens, 0)
})

test('a signal ends an answer, and the model goes on', async t => {
  await using model = await load(t)
  const abort = new AbortController()
  const messages = [ask('Hi')]
  const reading = (async () => {
    for await (const piece of model.chat({ messages, ignoreEndOfSequence: true, signal: abort.signal }))
      if (piece !== '') abort.abort()
  })()
  await rejected(reading, 'ABORTED')
  t.true((await model.chat({ messages, maxTokens: 4, ignoreEndOfSequence: true }).text()).length > 0)
})

test('return() ends an answer while its reader waits', async t => {
  await using model = await load(t)
  const generation = model.chat({ messages: [ask('Hi')], ignoreEndOfSequence: true })
  const events = generation.events()
  const waiting = events.next()
  await generation.return()
  await waiting
  t.true((await events.next()).done)
})

test('a model that was disposed of refuses chats', async t => {
  const model = await load(t)
  const open = model.chat({ messages: [ask('Hi')] })
  await model.dispose()
  await model.dispose()
  throwsCode(t, 'DISPOSED', () => model.chat({ messages: [ask('Hi')] }))
  throwsCode(t, 'DISPOSED', () => model.render({ messages: [ask('Hi')] }))
  await rejected(open.text(), 'DISPOSED')
  throwsCode(t, 'INVALID_ARGUMENT', () => TextModel.prototype.chat.call({} as never, { messages: [] }))
  throwsCode(t, 'INVALID_ARGUMENT', () => new TextModel(undefined, undefined))
})
