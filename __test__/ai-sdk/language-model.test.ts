// The provider over the demo's model, by its own interface: answers, streams, usage, schemas, tools, limits, aborts.
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setImmediate } from 'node:timers/promises'

import type { LanguageModelV4Content, LanguageModelV4Prompt } from '@ai-sdk/provider'
import { InvalidArgumentError, InvalidPromptError, NoSuchModelError } from '@ai-sdk/provider'
import test, { type ExecutionContext } from 'ava'
import type { TextModel, TextModelOptions } from 'kvtide/text'

import { createKvtide, kvtide } from '../../packages/ai-sdk/index.js'
import { folderOf } from '../support/folder.js'
import { until } from '../support/until.js'
import { DEMO, demo, partsOf, question, WEATHER } from './demo.js'

let text: TextModel
test.before(async () => {
  text = await demo()
})
test.after.always(() => text.dispose())

const words = (content: readonly LanguageModelV4Content[]): string =>
  content.map(part => (part.type === 'text' ? part.text : '')).join('')

test('an answer has text, a reason and its usage; asked again, its prompt is cached', async t => {
  const model = kvtide(text, { salt: 'usage' })
  t.is(model.modelId, text.name)
  const notes = `You are a small and friendly model. ${'Be friendly and brief. '.repeat(10)}`
  const asked = question('What is a KV cache?')
  const prompt: LanguageModelV4Prompt = [{ role: 'system', content: notes }, ...asked.prompt]
  const first = await model.doGenerate({ ...asked, prompt })
  t.regex(words(first.content), /^A KV cache keeps the keys and values .*\.$/)
  t.deepEqual(first.finishReason, { unified: 'stop', raw: 'stop' })
  t.is(first.usage.inputTokens.cacheRead, 0)
  const again = await model.doGenerate({ ...asked, prompt })
  t.is(words(again.content), words(first.content))
  const { total, noCache, cacheRead } = again.usage.inputTokens
  t.is(total, first.usage.inputTokens.total)
  t.is((noCache as number) + (cacheRead as number), total as number)
  t.true((noCache as number) <= 16, 'all but the last block is read from the cache')
  const other = await kvtide(text, { salt: 'another tenant' }).doGenerate({ ...asked, prompt })
  t.is(other.usage.inputTokens.cacheRead, 0, 'a salt keeps tenants apart')
})

test('a stream has the same text as an answer, in blocks', async t => {
  const model = kvtide(text)
  const whole = await model.doGenerate(question('Tell me a story about a fox.'))
  const { stream } = await model.doStream(question('Tell me a story about a fox.'))
  const parts = await partsOf(stream)
  const types = parts.map(part => part.type)
  t.deepEqual(types.slice(0, 3), ['stream-start', 'response-metadata', 'text-start'])
  t.deepEqual(types.slice(-2), ['text-end', 'finish'])
  const deltas = parts.flatMap(part => (part.type === 'text-delta' ? [part.delta] : []))
  t.is(deltas.join(''), words(whole.content))
  t.true(deltas.length > 10)
})

test('limits, stop texts and seeds', async t => {
  const model = kvtide(text)
  const story = 'Tell me a story about a robot and a lamp.'
  const short = await model.doGenerate(question(story, { maxOutputTokens: 5 }))
  t.is(short.finishReason.unified, 'length')
  t.is(short.usage.outputTokens.total, 5)
  const stopped = await model.doGenerate(question(story, { stopSequences: ['.'] }))
  t.is(stopped.finishReason.unified, 'stop')
  t.false(words(stopped.content).includes('.'))
  const drawn = async (seed: number): Promise<string> =>
    words((await model.doGenerate(question(story, { temperature: 1.5, seed }))).content)
  t.is(await drawn(1), await drawn(1))
  t.not(await drawn(1), await drawn(2))
})

test('a schema is a grammar: the answer is JSON of this form', async t => {
  const schema = {
    type: 'object',
    properties: { name: { enum: ['Anna', 'Ben'] }, age: { type: 'integer', minimum: 1, maximum: 99 } },
    required: ['name', 'age'],
    additionalProperties: false,
  } as const
  const { content, finishReason } = await kvtide(text).doGenerate(
    question('Describe Anna as JSON.', { responseFormat: { type: 'json', schema }, maxOutputTokens: 60 }),
  )
  const value = JSON.parse(words(content)) as { name: string; age: number }
  t.deepEqual(Object.keys(value).toSorted(), ['age', 'name'])
  t.true(['Anna', 'Ben'].includes(value.name) && value.age >= 1 && value.age <= 99)
  t.is(finishReason.unified, 'stop')
})

test('a call of a tool, and its result', async t => {
  const model = kvtide(text)
  const asked = question('What is the weather in Rome?', { tools: [WEATHER] })
  const { content, finishReason } = await model.doGenerate(asked)
  t.is(finishReason.unified, 'tool-calls')
  const call = content.find(part => part.type === 'tool-call')
  t.is(call?.toolName, 'weather')
  t.deepEqual(JSON.parse(call?.input as string), { city: 'Rome' })
  const parts = await partsOf((await model.doStream(asked)).stream)
  const deltas = parts.flatMap(part => (part.type === 'tool-input-delta' ? [part.delta] : []))
  t.deepEqual(JSON.parse(deltas.join('')), { city: 'Rome' })

  const { toolCallId, toolName } = call as { toolCallId: string; toolName: string }
  const output = { type: 'json', value: { sky: 'sunny', degrees: 21 } } as const
  const prompt: LanguageModelV4Prompt = [
    ...asked.prompt,
    { role: 'assistant', content: [{ type: 'tool-call', toolCallId, toolName, input: { city: 'Rome' } }] },
    { role: 'tool', content: [{ type: 'tool-result', toolCallId, toolName, output }] },
  ]
  const answer = await model.doGenerate({ ...asked, prompt })
  t.is(words(answer.content), 'It is sunny in Rome, with 21 degrees.')
})

test('a call that is demanded is made, whatever the question', async t => {
  const city = { type: 'string', maxLength: 8 } as const
  const tool = {
    ...WEATHER,
    inputSchema: { ...WEATHER.inputSchema, properties: { city }, additionalProperties: false },
  }
  const { content, finishReason } = await kvtide(text).doGenerate(
    question('Hello!', { tools: [tool], toolChoice: { type: 'required' }, maxOutputTokens: 100 }),
  )
  t.is(finishReason.unified, 'tool-calls')
  const call = content.find(part => part.type === 'tool-call')
  t.is(typeof (JSON.parse(call?.input as string) as { city: unknown }).city, 'string')
})

test('an abort rejects with its reason, before and within an answer, and frees the sequence', async t => {
  const model = kvtide(text)
  const reason = new Error('enough')
  const before = { abortSignal: AbortSignal.abort(reason) }
  t.is(await t.throwsAsync(async () => model.doGenerate(question('Hello!', before))), reason)
  const controller = new AbortController()
  const { stream } = await model.doStream(question('Tell me a story.', { abortSignal: controller.signal }))
  const types: string[] = []
  for await (const part of stream) {
    types.push(part.type)
    if (part.type === 'text-delta') controller.abort(reason)
    if (part.type === 'error') t.is(part.error, reason)
  }
  t.is(types.at(-1), 'error')
})

test('a reader that leaves ends the generation', async t => {
  const { stream } = await kvtide(text).doStream(question('Tell me a story.'))
  const reader = stream.getReader()
  await reader.read()
  await reader.cancel()
  t.true((await reader.read()).done)
})

test('wrong options and prompts beyond the context reject', async t => {
  const model = kvtide(text)
  t.true(InvalidArgumentError.isInstance(await t.throwsAsync(async () => model.doGenerate(question('?', { topP: 7 })))))
  const long = await t.throwsAsync(async () => model.doStream(question('word '.repeat(3000))))
  t.true(InvalidPromptError.isInstance(long), String(long))
})

test('many calls at once give the answers that each gives alone', async t => {
  const model = kvtide(text)
  const questions = ['What is a token?', 'What is a prefix?', 'What do bees make?', 'Tell me a joke.']
  const alone: string[] = []
  for (const one of questions) alone.push(words((await model.doGenerate(question(one))).content))
  const together = await Promise.all(questions.map(async one => words((await model.doGenerate(question(one))).content)))
  t.deepEqual(together, alone)
})

test('a provider loads a folder once, at the first call, and disposes of it', async t => {
  await using provider = createKvtide({ threads: 1, cache: { memoryBytes: 2 ** 24 } })
  const [one, other] = await Promise.all([
    provider(DEMO).doGenerate(question('Hello!')),
    provider.languageModel(DEMO).doGenerate(question('Hello!')),
  ])
  t.is(words(one.content), words(other.content))
  t.true(one.usage.inputTokens.cacheRead === 0 || other.usage.inputTokens.cacheRead === 0)
  for (const call of [() => provider.embeddingModel('x'), () => provider.imageModel('x')])
    t.throws(call, { instanceOf: NoSuchModelError })
  t.throws(() => provider('' as never), { instanceOf: InvalidArgumentError })
  t.throws(() => provider(7 as never), { instanceOf: InvalidArgumentError })
})

test('a folder that is not there rejects each call', async t => {
  await using provider = createKvtide()
  const model = provider('./no-such-folder')
  await t.throwsAsync(async () => model.doGenerate(question('Hello!')))
  await t.throwsAsync(async () => model.doStream(question('Hello!')))
})

/** A Hub that keeps its clients waiting until a test refuses them. */
class SilentHub {
  readonly options: TextModelOptions
  readonly #held: ServerResponse[] = []
  #isOver = false

  private constructor(endpoint: string, cacheFolder: string) {
    this.options = { endpoint, cacheFolder, isOffline: false }
  }

  static async start(t: ExecutionContext): Promise<SilentHub> {
    const server = createServer((_, response) => {
      hub.#held.push(response)
      if (hub.#isOver) hub.refuse(hub.loads - 1)
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    t.teardown(() => {
      server.closeAllConnections()
      server.close()
    })
    const hub = new SilentHub(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, await folderOf(t))
    return hub
  }

  /** The number of requests, of which each load makes one. */
  get loads(): number {
    return this.#held.length
  }

  /** Says that there is no model to the request of a load. */
  refuse(load: number): void {
    this.#held[load]?.writeHead(404).end()
  }

  /** Says so to the request of the last load, and to all later ones at once. */
  refuseRest(): void {
    this.#isOver = true
    this.refuse(this.loads - 1)
  }
}

test('an abort while a model loads rejects at once, and the load goes on for other calls', async t => {
  const hub = await SilentHub.start(t)
  await using provider = createKvtide(hub.options)
  const model = provider('org/name')
  const [reason, stop] = [new Error('enough'), new AbortController()]
  const aborted = [
    model.doGenerate(question('Hello!', { abortSignal: stop.signal })),
    model.doStream(question('Hello!', { abortSignal: stop.signal })),
  ]
  const other = model.doGenerate(question('Hello!'))
  t.true(await until(() => hub.loads === 1))
  const rejected: unknown[] = []
  for (const call of aborted) call.catch((error: unknown) => rejected.push(error))
  stop.abort(reason)
  await setImmediate()
  const atOnce = [...rejected]
  hub.refuse(0)
  t.deepEqual(atOnce, [reason, reason])
  await t.throwsAsync(other, { instanceOf: NoSuchModelError })
  t.is(hub.loads, 1)
  // A load that fails after its only call was aborted is no unhandled rejection.
  const alone = new AbortController()
  const last = model.doGenerate(question('Hello!', { abortSignal: alone.signal }))
  t.true(await until(() => hub.loads === 2))
  alone.abort(reason)
  hub.refuse(1)
  t.is(await t.throwsAsync(last), reason)
})

test('a load that fails late does not forget a newer one of the same name', async t => {
  const hub = await SilentHub.start(t)
  await using provider = createKvtide(hub.options)
  const model = provider('org/name')
  const older = model.doGenerate(question('Hello!'))
  t.true(await until(() => hub.loads === 1))
  const disposed = provider.dispose()
  const newer = model.doGenerate(question('Hello!'))
  t.true(await until(() => hub.loads === 2))
  hub.refuse(0)
  await t.throwsAsync(older, { instanceOf: NoSuchModelError })
  await disposed
  const joined = model.doGenerate(question('Hello!'))
  hub.refuseRest()
  await t.throwsAsync(newer, { instanceOf: NoSuchModelError })
  await t.throwsAsync(joined, { instanceOf: NoSuchModelError })
  t.is(hub.loads, 2)
})
