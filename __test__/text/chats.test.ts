// Chats over a scripted model: events, stop texts, conversations that reuse ids, tools, and inputs that are wrong.
import test from 'ava'

import { TokenText } from '../../lib/text/detokenizer.js'
import type { ChatMessage, TextEvent, TextGeneration, Tool } from '../../text.js'
import { scripted } from '../support/text/scripted.js'
import { rejected, throwsCode } from '../support/throws.js'

const WEATHER: Tool = {
  type: 'function',
  function: { name: 'get_weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } },
}
const ask = (content: string): ChatMessage => ({ role: 'user', content })
const eventsOf = async (generation: TextGeneration): Promise<TextEvent[]> => {
  const events: TextEvent[] = []
  for await (const event of generation.events()) events.push(event)
  return events
}

test('pieces, events, text and message of an answer', async t => {
  const { model, tokenizer, prompts } = await scripted([
    { text: 'Hello 🙂!' },
    { text: 'Hello 🙂!' },
    { text: '{"a": 1}' },
    { text: 'no' },
  ])
  const messages = [ask('Hi')]
  const pieces: string[] = []
  for await (const piece of model.chat({ messages })) pieces.push(piece)
  t.deepEqual(pieces, ['Hello', ' ', '🙂', '!'])
  t.is(tokenizer.decode(prompts[0] as Uint32Array, { skipSpecialTokens: false }), model.render({ messages }))
  const events = await eventsOf(model.chat({ messages }))
  t.is(events.at(-1)?.type, 'finish')
  const tokens = events.flatMap(event => (event.type === 'text' ? event.tokens : []))
  t.deepEqual(tokens, [...tokenizer.encode('Hello 🙂!')])
  t.deepEqual(await model.chat({ messages }).json(), { a: 1 })
  t.regex((await rejected(model.chat({ messages }).json(), 'INVALID_ARGUMENT')).message, /expected JSON/)
})

test('an answer is read once', async t => {
  const { model } = await scripted([{ text: 'a' }])
  const generation = model.chat({ messages: [ask('Hi')] })
  t.is(await generation.text(), 'a')
  t.is(generation.finishReason, 'stop')
  // What was read is still there.
  t.is(await generation.text(), 'a')
  t.deepEqual(await generation.message(), { role: 'assistant', content: 'a' })
  throwsCode(t, 'INVALID_ARGUMENT', () => generation.events())
  throwsCode(t, 'INVALID_ARGUMENT', () => generation[Symbol.asyncIterator]())
})

test('leaving a loop, return() and disposing end an answer', async t => {
  const { model } = await scripted([{ text: 'abc' }, { text: 'abc' }, { text: 'abc' }])
  const messages = [ask('Hi')]
  const first = model.chat({ messages })
  for await (const piece of first) {
    t.is(piece, 'a')
    break
  }
  t.is(first.finishReason, undefined)
  const second = model.chat({ messages })
  const events = second.events()
  await events.next()
  await second.return()
  t.deepEqual(await events.next(), { done: true, value: undefined })
  const third = model.chat({ messages })
  await third[Symbol.asyncDispose]()
  await rejected(third.text(), 'INVALID_ARGUMENT')
})

test('stop texts end the answer, and a length is told', async t => {
  const { model } = await scripted([{ text: 'one\nUser: two' }, { text: 'one', end: 'length' }, { text: 'one\nUs' }])
  const messages = [ask('Hi')]
  const stopped = model.chat({ messages, stop: '\nUser:' })
  t.deepEqual(await stopped.message(), { role: 'assistant', content: 'one' })
  t.is(stopped.finishReason, 'stop')
  const long = model.chat({ messages, stop: ['\nUser:'] })
  t.is(await long.text(), 'one')
  t.is(long.finishReason, 'length')
  t.is(await model.chat({ messages, stop: '\nUser:' }).text(), 'one\nUs')
})

test('a chat that goes on has the ids that the model wrote, not those of its text', async t => {
  // "Hello" and " world" letter by letter: the tokenizer would write two tokens.
  const { tokenizer } = await scripted([])
  const ids = [...'Hello world'].flatMap(letter => [...tokenizer.encode(letter)])
  t.true(ids.length > tokenizer.encode('Hello world').length)
  const { model, prompts } = await scripted([{ ids }, { text: 'Yes' }, { text: 'More' }])
  const messages: ChatMessage[] = [ask('Hi')]
  for (let turn = 0; turn < 3; turn++) {
    messages.push(await model.chat({ messages }).message(), ask('And?'))
    const [before, now] = [prompts[turn - 1], prompts[turn] as Uint32Array]
    t.is(tokenizer.decode(now, { skipSpecialTokens: false }), model.render({ messages: messages.slice(0, -2) }))
    if (before === undefined) continue
    const known = turn === 1 ? [...before, ...ids] : [...before]
    t.deepEqual(Array.from(now.slice(0, known.length)), known)
  }
  // An edit of the answer: what stood in front of it stays.
  const edited = [messages[0], { role: 'assistant', content: 'Hello' }, ask('And?')] as ChatMessage[]
  await model.chat({ messages: edited }).text()
  t.deepEqual([...(prompts[3] as Uint32Array)], [...tokenizer.encode(model.render({ messages: edited }))])
  // Another tenant has its own texts.
  await model.chat({ messages: messages.slice(0, 3), salt: 'other' }).text()
  t.deepEqual([...(prompts[4] as Uint32Array)], [...tokenizer.encode(model.render({ messages: messages.slice(0, 3) }))])
})

const TRIMMING =
  "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content | trim) + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

test('a template that trims answers keeps the tokens that stayed whole', async t => {
  const { tokenizer } = await scripted([])
  const ids = [...'Hello world'].flatMap(letter => [...tokenizer.encode(letter)])
  // The bytes of the last one are three tokens.
  for (const space of ['\n\n', '\u3000']) {
    const tail = [...space].flatMap(letter => [...tokenizer.encode(letter)])
    const { model, prompts } = await scripted([{ ids: [...ids, ...tail] }, {}], { 'chat_template.jinja': TRIMMING })
    const messages: ChatMessage[] = [ask('Hi')]
    messages.push(await model.chat({ messages }).message(), ask('And?'))
    t.is(messages[1]?.content, `Hello world${space}`)
    await model.chat({ messages }).text()
    const [first, second] = prompts as [Uint32Array, Uint32Array]
    t.deepEqual(Array.from(second.slice(0, first.length + ids.length)), [...first, ...ids])
  }
})

test.serial('whitespace at the end of an answer costs a pass over its tokens', async t => {
  const { tokenizer } = await scripted([])
  const ids = [...'Hello world', ...'\n'.repeat(1000)].flatMap(letter => [...tokenizer.encode(letter)])
  const { model } = await scripted([{ ids }], { 'chat_template.jinja': TRIMMING })
  const { push } = TokenText.prototype
  let decoded = 0
  t.teardown(() => Object.assign(TokenText.prototype, { push }))
  TokenText.prototype.push = function (id) {
    decoded += 1
    return push.call(this, id)
  }
  await model.chat({ messages: [ask('Hi')] }).text()
  t.true(decoded <= 5 * ids.length, `${decoded} for ${ids.length} tokens`)
})

test('an answer that was left early, or ended at a stop text, comes back with its tokens', async t => {
  const { tokenizer } = await scripted([])
  const ids = [...'Hello world'].flatMap(letter => [...tokenizer.encode(letter)])
  const { model, prompts } = await scripted([{ ids }, {}, { ids }, {}])
  const next = (content: string): ChatMessage[] => [ask('Hi'), { role: 'assistant', content }, ask('And?')]
  let text = ''
  for await (const piece of model.chat({ messages: [ask('Hi')] })) {
    text += piece
    if (text.length === 5) break
  }
  await model.chat({ messages: next(text), salt: '' }).text()
  const first = prompts[0] as Uint32Array
  t.deepEqual(Array.from((prompts[1] as Uint32Array).slice(first.length, first.length + 5)), ids.slice(0, 5))
  t.is(await model.chat({ messages: [ask('Hi')], stop: 'wor', salt: 'b' }).text(), 'Hello ')
  await model.chat({ messages: next('Hello '), salt: 'b' }).text()
  t.deepEqual(Array.from((prompts[3] as Uint32Array).slice(first.length, first.length + 6)), ids.slice(0, 6))
})

test('calls come back as the model wrote them, matched by id, name and parsed arguments', async t => {
  const written = '<tool_call>{"name":"get_weather",  "arguments":{"city":"Paris"}}</tool_call>'
  const { model, prompts, tokenizer } = await scripted([{ text: written }, { text: 'Sunny' }, { text: 'Sunny' }])
  const messages: ChatMessage[] = [ask('Weather?')]
  const generation = model.chat({ messages, tools: [WEATHER] })
  const message = await generation.message()
  t.is(generation.finishReason, 'tool_calls')
  t.is(message.content, null)
  const [call] = message.tool_calls ?? []
  t.deepEqual(call?.function, { name: 'get_weather', arguments: '{"city":"Paris"}' })
  t.regex(call?.id ?? '', /^call_[A-Za-z\d]{24}$/)
  const again = {
    ...message,
    tool_calls: [{ ...call, function: { name: 'get_weather', arguments: '{ "city": "Paris" }' } }],
  }
  const next = [
    ...messages,
    again as ChatMessage,
    { role: 'tool', tool_call_id: call?.id, content: '20 °C' } as ChatMessage,
  ]
  await model.chat({ messages: next, tools: [WEATHER] }).text()
  const [first, second] = prompts as [Uint32Array, Uint32Array]
  t.deepEqual(second.slice(0, first.length), first)
  t.true(tokenizer.decode(second, { skipSpecialTokens: false }).includes(written))
  // Other arguments are another call.
  const other = {
    ...message,
    tool_calls: [{ ...call, function: { name: 'get_weather', arguments: '{"city":"Rome"}' } }],
  }
  await model.chat({ messages: [...messages, other as ChatMessage, ...next.slice(2)], tools: [WEATHER] }).text()
  t.false(tokenizer.decode(prompts[2] as Uint32Array).includes('Paris'))
})

test('reasoning in front of a call is known while the template keeps it, and leaves the prompt with it', async t => {
  // As of Qwen3: reasoning stays behind the last question, and is dropped in front of it.
  const template = `{% if tools %}{{ '<tool_call>{"name": …}</tool_call>' }}{% endif %}{% set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}{% set content = message.content %}{% set reasoning = '' %}
{%- if message.reasoning_content is string %}{% set reasoning = message.reasoning_content %}
{%- elif '</think>' in content %}{% set reasoning = content.split('</think>')[0].split('<think>')[-1] %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if loop.index0 > ns.last and reasoning %}{{ '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}{{ content.lstrip('\\n') }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' + ('<think>\\n' if opened else '') }}{% endif %}`
  const call = '<tool_call>{"name":"get_weather",  "arguments":{"city":"Paris </think>"}}</tool_call>'
  for (const opened of [false, true])
    for (const isSent of [true, false]) {
      const text = `${opened ? '' : '<think>\n'}Hm.\n</think>\n\n${call}`
      const { model, prompts, tokenizer } = await scripted([{ text }, {}, {}], { 'chat_template.jinja': template })
      const messages: ChatMessage[] = [ask('Weather?')]
      const more = { tools: [WEATHER], templateOptions: { opened } }
      const { reasoning_content, ...bare } = await model.chat({ messages, ...more }).message()
      t.is(reasoning_content, 'Hm.')
      messages.push(isSent ? { ...bare, reasoning_content: 'Hm.' } : bare)
      messages.push({ role: 'tool', tool_call_id: bare.tool_calls?.[0]?.id ?? '', content: '20 °C' })
      await model.chat({ messages, ...more }).text()
      messages.push({ role: 'assistant', content: 'Sunny' }, ask('And Rome?'))
      await model.chat({ messages, ...more }).text()
      const [first, second, third] = prompts.map(ids => tokenizer.decode(ids, { skipSpecialTokens: false })) as [
        string,
        string,
        string,
      ]
      t.false(third.includes('Hm.'), third)
      t.true(second.startsWith(`${first}${text}<|im_end|>`), second)
      t.is(second.split('Hm.').length, 2, second)
    }
})

test('calls in front of a stop text, or of an early end, stay in the prompt of the next turn', async t => {
  const call = '<tool_call>\n{"name":"get_weather",  "arguments":{"city":"Paris"}}\n</tool_call>'
  const { model, prompts, tokenizer } = await scripted([
    { text: `Look.${call}It will be sunny. END` },
    {},
    { text: `Look.${call}` },
    {},
  ])
  const messages = [ask('Weather?')]
  const isWhole = async (answer: ChatMessage): Promise<void> => {
    const result: ChatMessage = { role: 'tool', tool_call_id: answer.tool_calls?.[0]?.id ?? '', content: '20 °C' }
    const turn = { messages: [...messages, answer, result], tools: [WEATHER] }
    await model.chat(turn).text()
    t.is(tokenizer.decode(prompts.at(-1) as Uint32Array, { skipSpecialTokens: false }), model.render(turn))
  }
  const stopped = await model.chat({ messages, tools: [WEATHER], stop: 'END' }).message()
  t.deepEqual([stopped.content, stopped.tool_calls?.length], ['Look.It will be sunny. ', 1])
  await isWhole(stopped)
  let id = ''
  for await (const event of model.chat({ messages, tools: [WEATHER] }).events()) {
    if (event.type !== 'tool-call') continue
    id = event.id
    break
  }
  const torn = { id, type: 'function', function: { name: 'get_weather', arguments: '' } } as const
  await isWhole({ role: 'assistant', content: 'Look.', tool_calls: [torn] })
})

test('a call is streamed: its start, then its arguments', async t => {
  const { model } = await scripted([
    { text: 'Ok.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>' },
  ])
  const events = await eventsOf(model.chat({ messages: [ask('Weather?')], tools: [WEATHER] }))
  const kinds = events.map(event => event.type)
  t.is(kinds.indexOf('tool-call'), kinds.lastIndexOf('tool-call'))
  t.true(kinds.filter(kind => kind === 'tool-arguments').length > 3)
  t.deepEqual(events.at(-1)?.type, 'finish')
})

test('tools are left out of the prompt by none, and forced by a grammar', async t => {
  const { model, options } = await scripted([{ text: '<tool_call>' }, {}, {}])
  const messages = [ask('Weather?')]
  const chat = { messages, tools: [WEATHER] }
  t.is(await model.chat({ ...chat, toolChoice: 'none' }).text(), '<tool_call>')
  await model.chat({ ...chat, toolChoice: 'required' }).text()
  await model.chat({ ...chat, toolChoice: { name: 'get_weather' } }).text()
  t.is(options[0]?.['grammar'], undefined)
  for (const used of options.slice(1)) {
    const { lark } = used['grammar'] as { lark: string }
    t.regex(lark, /^start: /)
    t.true(lark.includes(String.raw`{\"name\": \"get_weather\", \"arguments\": `))
  }
})

test('sampling is the author’s if the config samples, and the caller’s where it is given', async t => {
  const generation = {
    do_sample: true,
    temperature: 0.6,
    top_k: 20,
    top_p: 0.95,
    repetition_penalty: 1.05,
    max_length: 99,
  }
  const { model, options } = await scripted([{}, {}, {}], { 'generation_config.json': generation })
  const messages = [ask('Hi')]
  await model.chat({ messages }).text()
  await model.chat({ messages, topK: 5, seed: 1 }).text()
  await model.chat({ messages, temperature: 0 }).text()
  const picked = options.map(({ temperature, topK, topP, repetitionPenalty, seed }) => ({
    temperature,
    topK,
    topP,
    repetitionPenalty,
    seed,
  }))
  t.deepEqual(picked, [
    { temperature: 0.6, topK: 20, topP: 0.95, repetitionPenalty: 1.05, seed: undefined },
    { temperature: 0.6, topK: 5, topP: 0.95, repetitionPenalty: 1.05, seed: 1 },
    { temperature: 0, topK: undefined, topP: undefined, repetitionPenalty: 1.05, seed: undefined },
  ])
  const greedy = await scripted([{}], { 'generation_config.json': { temperature: 0.6, top_k: 20 } })
  await greedy.model.chat({ messages }).text()
  t.is(greedy.options[0]?.['temperature'], undefined)
})

test('the token behind an answer in the template ends the answer', async t => {
  const template =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + ' ' + message.content + '</think>' }}{% endfor %}"
  const { model, options } = await scripted([{}, {}], { 'chat_template.jinja': template, 'tokenizer_config.json': {} })
  await model.chat({ messages: [ask('Hi')], stopTokens: [7] }).text()
  t.deepEqual(options[0]?.['stop'], [4, 7])
  await model.chat({ messages: [ask('Hi')], ignoreEndOfSequence: true }).text()
  t.deepEqual([options[1]?.['stop'], options[1]?.['ignoreEndOfSequence']], [[], true])
})

test('the ends of messages are checkpoints', async t => {
  const { model, opened, tokenizer } = await scripted([{}])
  const messages = [ask('Hi'), { role: 'assistant', content: 'Ho' } as ChatMessage, ask('Ha')]
  await model.chat({ messages, checkpoints: [1] }).text()
  const ids = [...tokenizer.encode(model.render({ messages }))]
  const ends = ids.flatMap((id, place) => (id === 2 ? [place + 1] : []))
  t.deepEqual(opened[0]?.['checkpoints'], [1, ...ends])
})

test('reasoning is apart from the text', async t => {
  const template =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content.split('</think>')[-1] + '<|im_end|>' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}{% if opened %}{{ '<think>\\n' }}{% endif %}"
  const { model } = await scripted([{ text: '<think>\nHm.\n</think>\n\nYes' }, { text: 'Hm.</think>Yes' }], {
    'chat_template.jinja': template,
  })
  const messages = [ask('Hi')]
  const expected = { role: 'assistant', content: 'Yes', reasoning_content: 'Hm.' }
  t.deepEqual(await model.chat({ messages }).message(), expected as never)
  t.deepEqual(await model.chat({ messages, templateOptions: { opened: true } }).message(), expected as never)
})

test('wrong messages, tools and options are refused by their place', async t => {
  const { model } = await scripted([])
  const user = ask('Hi')
  const wrong: readonly (readonly [object, RegExp])[] = [
    [{}, /^messages is undefined/],
    [{ messages: 'Hi' }, /^messages is/],
    [{ messages: [] }, /messages\.length is 0/],
    [{ messages: [null] }, /messages\[0\] is null/],
    [{ messages: [{ role: 'function', content: '' }] }, /messages\[0\]\.role is "function"/],
    [{ messages: [{ role: 'user' }] }, /messages\[0\]\.content is undefined/],
    [{ messages: [{ role: 'user', content: null }] }, /messages\[0\]\.content is null/],
    [
      { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: {} }] }] },
      /content\[0\]\.type is "image_url".*text only/,
    ],
    [{ messages: [{ role: 'user', content: 'x', tool_calls: [{}] }] }, /tool_calls/],
    [
      { messages: [{ role: 'assistant', tool_calls: [{ type: 'function', function: { name: 'f', arguments: {} } }] }] },
      /arguments is/,
    ],
    [{ messages: [user], tools: {} }, /^tools is/],
    [{ messages: [user], tools: [{ type: 'retrieval' }] }, /tools\[0\]\.type/],
    [{ messages: [user], tools: [{ type: 'function', function: { name: 'a b' } }] }, /tools\[0\]\.function\.name/],
    [{ messages: [user], tools: [WEATHER, WEATHER] }, /tools\[1\]\.function\.name/],
    [{ messages: [user], toolChoice: 'required' }, /no tools were given/],
    [{ messages: [user], tools: [WEATHER], toolChoice: { name: 'x' } }, /toolChoice\.name is "x"/],
    [{ messages: [user], tools: [WEATHER], toolChoice: 'required', schema: {} }, /together with a schema/],
    [{ messages: [user], stop: '' }, /stop\[0\]\.length is 0/],
    [{ messages: [user], stop: [1] }, /stop\[0\]/],
    [{ messages: [user], maxTokens: 0 }, /maxTokens is 0/],
    [{ messages: [user], schema: {}, grammar: { regex: 'a' } }, /grammar/],
    [{ messages: [user], grammar: {} }, /grammar/],
    [{ messages: [user], temperature: -1 }, /temperature is -1/],
    [{ messages: [user], templateOptions: { messages: [] } }, /templateOptions\.messages/],
    [{ messages: [user], allowed: () => undefined }, /unknown option/],
    [{ messages: [user], maxToken: 5 }, /did you mean 'maxTokens'/],
    [{ messages: [user], signal: 1 }, /signal/],
  ]
  for (const [options, reason] of wrong)
    t.regex(throwsCode(t, 'INVALID_ARGUMENT', () => model.chat(options as never)).message, reason)
  for (const prompt of [undefined, 5, {}, [1.5]])
    throwsCode(t, 'INVALID_ARGUMENT', () => model.complete({ prompt } as never))
  await rejected(model.complete({ prompt: '' }).text(), 'INVALID_ARGUMENT')
  // Fields of other clients, and null where OpenAI's write it.
  const full = { role: 'assistant', content: null, refusal: null, tool_calls: null, audio: null }
  t.true(
    model
      .render({
        messages: [
          user,
          full as never,
          {
            role: 'user',
            content: [
              { type: 'text', text: 'a' },
              { type: 'text', text: 'b' },
            ],
          },
        ],
      })
      .includes('ab'),
  )
})

test('tools for a template without them, and calls in an unknown form', async t => {
  const plain = '{% for message in messages %}{{ message.content }}{% endfor %}'
  const without = await scripted([], { 'chat_template.jinja': plain })
  const chat = { messages: [ask('Hi')], tools: [WEATHER] }
  t.regex((await rejected(without.model.chat(chat).text(), 'INVALID_ARGUMENT')).message, /no place for them/)
  t.is(without.model.toolFamily, undefined)
  const strange = await scripted([{ text: 'x' }], { 'chat_template.jinja': `${plain}{{ tools }}` })
  t.is(await strange.model.chat(chat).text(), 'x')
  t.regex(
    (await rejected(strange.model.chat({ ...chat, toolChoice: 'required' }).text(), 'INVALID_ARGUMENT')).message,
    /not known/,
  )
})

test('a prompt that is longer than the context is refused before it is opened', async t => {
  const { model, prompts } = await scripted([])
  const error = await rejected(model.chat({ messages: [ask('x '.repeat(60_000))] }).text(), 'CONTEXT_OVERFLOW')
  t.is(error.details.contextLength, 100_000)
  t.true(error.details.tokens > 100_000)
  t.is(prompts.length, 0)
})

test('an aborted signal ends a chat before its prompt is made', async t => {
  const { model, prompts } = await scripted([])
  await rejected(model.chat({ messages: [ask('Hi')], signal: AbortSignal.abort() }).text(), 'ABORTED')
  t.is(prompts.length, 0)
})
