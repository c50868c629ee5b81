// Text models end to end, with the tiny llama: what it says is noise, but its tokens, its cache and its ends are real.
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

import type { ExecutionContext } from 'ava'

import { type ChatMessage, TextModel, type TextModelOptions } from '../../text.js'
import { folderOf } from '../support/folder.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { tinyModel } from '../support/text/tiny-tokenizer.js'
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
  await rejected(TextModel.load('org/name', { isOffline: true, cacheFolder: folder }), 'HUB_UNAVAILABLE')
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
