// The AI SDK's own functions over the provider: text, streams, objects, loops of tools.
import test from 'ava'
import type { TextModel } from 'kvtide/text'

import { kvtide } from '../../packages/ai-sdk/index.js'
import { demo } from './demo.js'
import { sdkTest } from './sdk.js'

let text: TextModel
test.before(async () => {
  text = await demo()
})
test.after.always(() => text.dispose())

const model = (): ReturnType<typeof kvtide> => kvtide(text)
const settings = { temperature: 0, maxRetries: 0 }

sdkTest('generateText', async (t, { generateText }) => {
  const system = 'You are a small and friendly model. '.repeat(8)
  const ask = () =>
    generateText({ ...settings, model: model(), instructions: system, prompt: 'What is a prefix cache?' })
  await ask()
  const { text: answer, finishReason, usage, warnings } = await ask()
  t.regex(answer, /^A prefix cache finds the longest start of a prompt/)
  t.is(finishReason, 'stop')
  t.deepEqual(warnings ?? [], [])
  t.true((usage.inputTokenDetails.cacheReadTokens as number) > 32)
})

sdkTest('streamText', async (t, { streamText }) => {
  const { textStream, usage } = streamText({ ...settings, model: model(), prompt: 'Tell me a story about an owl.' })
  const pieces: string[] = []
  for await (const piece of textStream) pieces.push(piece)
  t.true(pieces.length > 10)
  t.regex(pieces.join(''), /owl/)
  t.is((await usage).outputTokenDetails.textTokens, (await usage).outputTokens)
})

sdkTest('an output of a schema', async (t, { generateText, jsonSchema, Output }) => {
  const schema = jsonSchema({
    type: 'object',
    properties: { animal: { enum: ['dog', 'spider'] }, legs: { enum: [4, 8] } },
    required: ['animal', 'legs'],
    additionalProperties: false,
  })
  const { output } = await generateText({
    ...settings,
    model: model(),
    prompt: 'How many legs does a dog have?',
    output: Output.object({ schema }),
  })
  const { animal, legs } = output as { animal: string; legs: number }
  t.true(['dog', 'spider'].includes(animal) && [4, 8].includes(legs))
})

sdkTest('generateObject', async (t, { generateObject, jsonSchema }) => {
  const schema = jsonSchema({
    type: 'object',
    properties: { isWhite: { type: 'boolean' } },
    required: ['isWhite'],
    additionalProperties: false,
  })
  const { object } = await generateObject({ ...settings, model: model(), prompt: 'What colour is snow?', schema })
  t.is(typeof (object as { isWhite: unknown }).isWhite, 'boolean')
})

sdkTest('a loop of tools', async (t, { generateText, isStepCount, jsonSchema, tool }) => {
  const asked: string[] = []
  const weather = tool({
    description: 'Returns the weather in a city.',
    inputSchema: jsonSchema({ type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }),
    execute: ({ city }) => {
      asked.push(city)
      return { sky: 'rainy', degrees: 12 }
    },
  })
  const { text: answer, steps } = await generateText({
    ...settings,
    model: model(),
    prompt: 'What is the weather in Oslo?',
    tools: { weather },
    stopWhen: isStepCount(3),
  })
  t.deepEqual(asked, ['Oslo'])
  t.is(steps.length, 2)
  t.is(answer, 'It is rainy in Oslo, with 12 degrees.')
  const [, second] = steps
  t.true((second?.usage.inputTokenDetails.cacheReadTokens as number) > 0, 'the second step reads the first one')
})

sdkTest('an output of a schema leaves tools to be called', async (t, { generateText, jsonSchema, Output, tool }) => {
  const animal = { enum: ['dog', 'spider'] }
  const schema = jsonSchema({
    type: 'object',
    properties: { animal },
    required: ['animal'],
    additionalProperties: false,
  })
  const weather = tool({
    description: 'Returns the weather in a city.',
    inputSchema: jsonSchema({ type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }),
    execute: () => ({ sky: 'rainy', degrees: 12 }),
  })
  const asked = { ...settings, model: model(), tools: { weather }, output: Output.object({ schema }) }
  const { toolCalls, warnings } = await generateText({ ...asked, prompt: 'What is the weather in Oslo?' })
  t.deepEqual([toolCalls.map(call => call.input), warnings ?? []], [[{ city: 'Oslo' }], []])
  const { output } = await generateText({ ...asked, toolChoice: 'none', prompt: 'Which animal says woof?' })
  t.true(['dog', 'spider'].includes((output as { animal: string }).animal))
})

sdkTest('an abort', async (t, { generateText }) => {
  const call = generateText({ ...settings, model: model(), prompt: 'Hello!', abortSignal: AbortSignal.abort() })
  const error: unknown = await call.catch((reason: unknown) => reason)
  t.is((error as Error).name, 'AbortError')
})
