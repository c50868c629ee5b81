// Calls of tools in the forms of all families, in every split into pieces; texts that look like calls and are none.
import test, { type ExecutionContext } from 'ava'

import { CallParser } from '../../lib/text/tools/answer-parser.js'
import { HarmonyParser } from '../../lib/text/tools/harmony.js'
import type { AnswerParser } from '../../lib/text/tools/parts.js'
import { CallList } from '../../lib/text/tools/parts.js'
import { familyOf, OPENERS } from '../../lib/text/tools/syntax.js'
import { readerOf } from '../../lib/text/tools/readers.js'
import type { Tool, ToolFamily } from '../../text.js'
import { Random, split } from '../support/text/random.js'

const TOOLS: readonly Tool[] = ['get_weather', 'add', 'now'].map(name => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: { city: { type: 'string' }, a: { type: 'number' } } } },
}))

function parser(family: ToolFamily, isReasoning = false): AnswerParser {
  let id = 0
  const calls = new CallList(
    TOOLS.map(tool => tool.function.name),
    () => `id${id++}`,
  )
  if (family === 'gpt-oss') return new HarmonyParser(calls)
  return new CallParser({
    reasoning: { open: '<think>', close: '</think>' },
    isReasoning,
    calls,
    openers: OPENERS[family],
    ignored: family === 'deepseek' ? ['<｜tool▁calls▁end｜>'] : [],
    mayBeBare: family === 'llama3',
    reader: opener => readerOf(family, opener, calls, TOOLS),
  })
}

interface Read {
  text: string
  reasoning: string
  calls: (readonly [name: string, json: string, id: string])[]
}

function read(parsing: AnswerParser, pieces: readonly string[]): Read {
  const all: Read = { text: '', reasoning: '', calls: [] }
  const parts = [...pieces.flatMap(piece => parsing.push(piece)), ...parsing.end()]
  for (const part of parts) {
    if (part.type === 'text') all.text += part.text
    else if (part.type === 'reasoning') all.reasoning += part.text
    else if (part.type === 'tool-call') all.calls[part.index] = [part.name, '', part.id]
    else {
      const [name, json, id] = all.calls[part.index] as Read['calls'][number]
      all.calls[part.index] = [name, json + part.text, id]
    }
  }
  return all
}

const random = new Random(5)

function check(
  t: ExecutionContext,
  family: ToolFamily,
  answer: string,
  expected: Partial<Read>,
  isReasoning = false,
): void {
  const whole = read(parser(family, isReasoning), [answer])
  t.deepEqual(whole, { text: '', reasoning: '', calls: [], ...expected }, answer)
  for (const pieces of [[...answer], ...Array.from({ length: 12 }, () => split(random, answer, 9))])
    t.deepEqual(read(parser(family, isReasoning), pieces), whole, JSON.stringify(pieces))
}

const PARIS = '{"city": "Paris"}'

test('Hermes and Qwen: calls in tags', t => {
  const call = `<tool_call>\n{"name": "get_weather", "arguments": ${PARIS}}\n</tool_call>`
  check(t, 'hermes', call, { calls: [['get_weather', PARIS, 'id0']] })
  check(t, 'hermes', `I look.\n${call}\n${call}`, {
    text: 'I look.\n',
    calls: [
      ['get_weather', PARIS, 'id0'],
      ['get_weather', PARIS, 'id1'],
    ],
  })
  check(t, 'hermes', `<think>\nHm </thin\n</think>\n\n${call}`, {
    reasoning: 'Hm </thin',
    calls: [['get_weather', PARIS, 'id0']],
  })
  // Arguments first, as a string, missing, with nested objects and brackets in strings.
  const nested = String.raw`{"city": "a}]\"\\", "x": {"y": [1, -2.5e3, true, null, {}], "z": "\u00e9"}}`
  check(t, 'hermes', `<tool_call>{"arguments": ${nested}, "name": "add"}</tool_call>`, {
    calls: [['add', nested, 'id0']],
  })
  check(t, 'hermes', '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', {
    calls: [['add', '{"a": 1}', 'id0']],
  })
  check(t, 'hermes', '<tool_call>{"name": "now"}</tool_call>', { calls: [['now', '{}', 'id0']] })
  // The end of an answer may cut the tag off.
  check(t, 'hermes', `<tool_call>\n{"name": "get_weather", "arguments": ${PARIS}}`, {
    calls: [['get_weather', PARIS, 'id0']],
  })
})

test('text that looks like a call stays text', t => {
  for (const text of [
    'Write <tool_call> to call.',
    '<tool_call>\nnot json\n</tool_call>',
    `<tool_call>\n{"name": "unknown", "arguments": ${PARIS}}\n</tool_call>`,
    '<tool_call>\n{"name": 5}\n</tool_call>',
    '<tool_call>\n{"arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "add" "arguments": {}}\n</tool_call>',
    'a < b and <tool',
    '<tool_call>',
    '  \n',
    '',
  ])
    check(t, 'hermes', text, { text })
  for (const text of [
    '{"name": "Bob", "age": 3}',
    '{"name": "add"}',
    '{"a": 1}',
    '{',
    '{}',
    '[TOOL_CALLS]',
    '<|python_tag|>print(1)',
  ])
    check(t, 'llama3', text, { text })
  for (const text of ['[TOOL_CALLS]', '[TOOL_CALLS]unknown[ARGS]{}', '[TOOL_CALLS] [1]'])
    check(t, 'mistral', text, { text })
  check(t, 'qwen3-coder', '<function=unknown>', { text: '<function=unknown>' })
  check(t, 'deepseek', '<｜tool▁calls▁begin｜>x', { text: '<｜tool▁calls▁begin｜>x' })
})

test('a call that breaks off keeps what was given out', t => {
  check(t, 'hermes', '<tool_call>\n{"name": "add", "arguments": {"a": 1', { calls: [['add', '{"a": 1', 'id0']] })
  check(t, 'hermes', '<tool_call>{"name": "add", "arguments": {"a": !', {
    text: '!',
    calls: [['add', '{"a": ', 'id0']],
  })
})

test('Llama 3: bare objects, behind its token, several of them', t => {
  const call = `{"name": "get_weather", "parameters": ${PARIS}}`
  for (const answer of [call, `\n${call}`, `<|python_tag|>${call}`, `{"type": "function", ${call.slice(1)}`])
    check(t, 'llama3', answer, { calls: [['get_weather', PARIS, 'id0']] })
  check(t, 'llama3', `${call}; ${call}`, {
    calls: [
      ['get_weather', PARIS, 'id0'],
      ['get_weather', PARIS, 'id1'],
    ],
  })
  check(t, 'llama3', `Here: ${call}`, { text: `Here: ${call}` })
})

test('Mistral: lists, and names with arguments', t => {
  const list = `[TOOL_CALLS] [{"name": "get_weather", "arguments": ${PARIS}, "id": "abcdefghi"}, {"name": "now", "arguments": {}}]`
  check(t, 'mistral', list, {
    calls: [
      ['get_weather', PARIS, 'id0'],
      ['now', '{}', 'id1'],
    ],
  })
  check(t, 'mistral', `[TOOL_CALLS]get_weather[ARGS]${PARIS}[TOOL_CALLS]now{}`, {
    calls: [
      ['get_weather', PARIS, 'id0'],
      ['now', '{}', 'id1'],
    ],
  })
  check(t, 'mistral', `Ok.[TOOL_CALLS]add[CALL_ID]x12345678[ARGS]{"a": 1}`, {
    text: 'Ok.',
    calls: [['add', '{"a": 1}', 'x12345678']],
  })
})

test('Granite: lists behind its token, or tags', t => {
  check(
    t,
    'granite',
    `<|tool_call|>[{"name": "get_weather", "arguments": ${PARIS}}, {"name": "now", "arguments": {}}]`,
    {
      calls: [
        ['get_weather', PARIS, 'id0'],
        ['now', '{}', 'id1'],
      ],
    },
  )
  check(t, 'granite', `<tool_call>[{"arguments": ${PARIS}, "name": "get_weather"}]`, {
    calls: [['get_weather', PARIS, 'id0']],
  })
  check(t, 'granite', `<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>`, { calls: [['now', '{}', 'id0']] })
})

test('Qwen3-Coder: tags for functions and parameters, typed by the schema', t => {
  check(
    t,
    'qwen3-coder',
    'Look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n12 "é"\n</parameter>\n<parameter=a>\n12\n</parameter>\n</function>\n</tool_call>',
    { text: 'Look.\n', calls: [['get_weather', '{"city": "12 \\"é\\"", "a": 12}', 'id0']] },
  )
  check(t, 'qwen3-coder', '<tool_call>\n<function=now>\n</function>\n</tool_call>', { calls: [['now', '{}', 'id0']] })
  check(t, 'qwen3-coder', '<function=now>\n</function>', { calls: [['now', '{}', 'id0']] })
})

test('DeepSeek: its tokens, with and without a block of code', t => {
  const [begin, call, sep, end] = [
    '<｜tool▁calls▁begin｜>',
    '<｜tool▁call▁begin｜>',
    '<｜tool▁sep｜>',
    '<｜tool▁call▁end｜>',
  ]
  check(
    t,
    'deepseek',
    `Ok.${begin}${call}function${sep}get_weather\n\`\`\`json\n${PARIS}\n\`\`\`${end}<｜tool▁calls▁end｜>`,
    { text: 'Ok.', calls: [['get_weather', PARIS, 'id0']] },
  )
  check(t, 'deepseek', `${begin}${call}get_weather${sep}${PARIS}${end}\n${call}now${sep}{}${end}<｜tool▁calls▁end｜>`, {
    calls: [
      ['get_weather', PARIS, 'id0'],
      ['now', '{}', 'id1'],
    ],
  })
})

test('gpt-oss: channels of reasoning, text and calls', t => {
  check(
    t,
    'gpt-oss',
    '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>',
    { reasoning: 'Hm.', text: 'Hello' },
  )
  check(
    t,
    'gpt-oss',
    `<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>${PARIS}<|call|>`,
    { reasoning: 'Need it.', calls: [['get_weather', PARIS, 'id0']] },
  )
  check(t, 'gpt-oss', ` to=functions.now<|channel|>commentary json<|message|>{}`, { calls: [['now', '{}', 'id0']] })
  check(t, 'gpt-oss', 'plain text', { text: 'plain text' })
})

test('reasoning that the prompt has opened, and reasoning without an end', t => {
  check(t, 'hermes', 'First\n</think>\n\nThen.', { reasoning: 'First', text: 'Then.' }, true)
  check(t, 'hermes', 'Only this', { reasoning: 'Only this' }, true)
  check(t, 'hermes', '<think>\n\n</think>\n\nThen.', { text: 'Then.' })
  check(t, 'hermes', 'About <think> tags.', { text: 'About <think> tags.' })
})

test('the family follows from the text of the template', t => {
  const families: readonly (readonly [ToolFamily | undefined, string])[] = [
    ['hermes', '{% if tools %}<tool_call>{"name": …}</tool_call>{% endif %}'],
    ['qwen3-coder', '{% if tools %}<tool_call><function=x><parameter=y>{% endif %}'],
    ['llama3', `{% if tools %}{{ '{"name": "' + tool_calls[0].name + '", "parameters": ' }}{% endif %}`],
    ['mistral', "{{ '[AVAILABLE_TOOLS]' + tools }}[TOOL_CALLS]"],
    ['granite', "{{ '<|available_tools|>' + tools }}<|tool_call|>"],
    ['gpt-oss', '{{ tools }}<|start|><|channel|>x<|message|>'],
    ['deepseek', "{{ message['tool_calls'] }}<｜tool▁call▁begin｜>"],
    [undefined, "{{ message['content'] }}"],
    [undefined, '{{ tools }}'],
    [undefined, '{{ tools }}<tool_call>{{ name }}<arg_key>'],
  ]
  for (const [family, template] of families) t.is(familyOf(template), family, template)
})
