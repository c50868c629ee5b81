// LangChain.js by its OpenAI class, with another address: messages, streams, tools, structured output, usage.
import test from 'ava'
import { TextModel } from 'kvtide/text'

import { createServer, type TextServer } from '../../packages/serve/index.js'
import { DEMO } from '../ai-sdk/demo.js'

interface Message {
  readonly content: unknown
  readonly tool_calls?: readonly { readonly id?: string; readonly name: string; readonly args: unknown }[]
  readonly usage_metadata?: {
    readonly input_tokens: number
    readonly output_tokens: number
    readonly total_tokens: number
    readonly input_token_details: { readonly cache_read: number }
  }
}

interface Chat {
  invoke(messages: string | readonly Message[]): Promise<Message>
  stream(question: string): Promise<AsyncIterable<Message>>
  bindTools(tools: readonly object[]): Chat
  withStructuredOutput(schema: object, options: object): { invoke(question: string): Promise<unknown> }
}

/** LangChain's declarations don't compile with exactOptionalPropertyTypes: these are its classes with types of our own. */
async function classesOf<T>(name: string): Promise<T> {
  return (await import(name)) as T
}
const { ChatOpenAI } = await classesOf<{ ChatOpenAI: new (options: object) => Chat }>('@langchain/openai')
const { HumanMessage, SystemMessage, ToolMessage } = await classesOf<{
  HumanMessage: new (text: string) => Message
  SystemMessage: new (text: string) => Message
  ToolMessage: new (fields: object) => Message
}>('@langchain/core/messages')

let model: TextModel
let server: TextServer
let baseURL: string

test.before(async () => {
  model = await TextModel.load(DEMO, { threads: 1, cache: { memoryBytes: 2 ** 25 } })
  server = createServer({ name: 'demo', model })
  baseURL = `${await server.listen({ port: 0 })}/v1`
})

test.after.always(async () => {
  await server.close()
  await model.dispose()
})

const chat = (): Chat =>
  new ChatOpenAI({ model: 'demo', apiKey: 'none', temperature: 0, maxRetries: 0, configuration: { baseURL } })

test('an answer, and the cached tokens of its prompt', async t => {
  const messages = [new SystemMessage('Be friendly and brief. '.repeat(10)), new HumanMessage('What is a token?')]
  await chat().invoke(messages)
  const { content, usage_metadata: usage } = await chat().invoke(messages)
  t.regex(content as string, /^A token is a piece of text/)
  t.true((usage?.input_token_details.cache_read as number) > 16)
  t.is(usage?.total_tokens, (usage?.input_tokens as number) + (usage?.output_tokens as number))
})

test('a stream', async t => {
  const pieces: string[] = []
  for await (const chunk of await chat().stream('Tell me a story about a frog.')) pieces.push(chunk.content as string)
  t.true(pieces.length > 10)
  t.regex(pieces.join(''), /frog/)
})

test('a tool is called, and its result answered', async t => {
  const weather = {
    type: 'function',
    function: {
      name: 'weather',
      description: 'Returns the weather in a city.',
      parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    },
  } as const
  const bound = chat().bindTools([weather])
  const question = new HumanMessage('What is the weather in Paris?')
  const asked = await bound.invoke([question])
  t.deepEqual(
    asked.tool_calls?.map(({ name, args }) => ({ name, args })),
    [{ name: 'weather', args: { city: 'Paris' } }],
  )
  const result = new ToolMessage({
    tool_call_id: asked.tool_calls?.[0]?.id as string,
    content: JSON.stringify({ sky: 'windy', degrees: 9 }),
  })
  t.is((await bound.invoke([question, asked, result])).content, 'It is windy in Paris, with 9 degrees.')
})

test('structured output', async t => {
  const schema = {
    title: 'animal',
    type: 'object',
    properties: { legs: { type: 'integer', enum: [4, 8] } },
    required: ['legs'],
    additionalProperties: false,
  }
  for (const method of ['jsonSchema', 'functionCalling'] as const) {
    const { legs } = (await chat()
      .withStructuredOutput(schema, { method })
      .invoke('How many legs does a spider have?')) as { legs: number }
    t.true([4, 8].includes(legs), method)
  }
})
