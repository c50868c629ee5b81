// Chat templates: where they come from, and those that fail.
import test from 'ava'

import type { TextModel } from '../../text.js'
import { readTextFiles } from '../../lib/text/files.js'
import { ChatTemplate } from '../../lib/text/template.js'
import { folderOf } from '../support/folder.js'
import { scripted } from '../support/text/scripted.js'
import { tinyModel } from '../support/text/tiny-tokenizer.js'
import { rejected, throwsCode } from '../support/throws.js'

const messages = [{ role: 'user', content: 'Hi' }] as const
const of = async (template: string): Promise<TextModel> =>
  (await scripted([], { 'chat_template.jinja': template })).model
const tools = [{ type: 'function', function: { name: 'f' } }] as const
const call = (json: string) => ({ id: 'x', type: 'function', function: { name: 'f', arguments: json } }) as const

test('a template is read from each place, the file of its own first', async t => {
  const from = async (files: Record<string, unknown>): Promise<string> =>
    (await scripted([], { 'tokenizer_config.json': {}, ...files })).model.render({ messages })
  t.is(await from({ 'tokenizer_config.json': { chat_template: 'a{{ messages[0].content }}' } }), 'aHi')
  t.is(await from({ 'chat_template.json': { chat_template: 'b' } }), 'b')
  t.is(await from({ 'chat_template.jinja': 'c', 'chat_template.json': { chat_template: 'b' } }), 'c')
  const named = [
    { name: 'default', template: 'd' },
    { name: 'tool_use', template: 'e{{ tools | length }}' },
  ]
  const { model } = await scripted([], {
    'tokenizer_config.json': { chat_template: named },
    'additional_chat_templates/rag.jinja': 'f',
  })
  t.is(model.render({ messages }), 'd')
  t.is(model.render({ messages, tools }), 'e1')
})

test('the option template is a name or a text', async t => {
  const files = readTextFiles(tinyModel(await folderOf(t), { 'additional_chat_templates/rag.jinja': 'f' }))
  const render = async (given: string): Promise<string | undefined> =>
    (await ChatTemplate.of(files.templates, given, {}))?.render({ messages: [], tools: null })
  t.is(await render('rag'), 'f')
  t.is(await render('x{{ 1 }}'), 'x1')
  t.regex((await rejected(render('unknown'), 'INVALID_ARGUMENT')).message, /default, rag/)
})

test('a model without a template says what to do', async t => {
  const { model } = await scripted([{ text: 'x' }], { 'tokenizer_config.json': {} })
  t.false(model.hasTemplate)
  t.regex(
    (await rejected(model.chat({ messages }).text(), 'TEMPLATE_FAILED')).message,
    /has no chat template: .*complete/,
  )
  t.is(await model.complete({ prompt: 'a' }).text(), 'x')
})

test('a template that throws gives its own words', async t => {
  const model = await of("{{ raise_exception('Roles must alternate') }}")
  t.is(throwsCode(t, 'TEMPLATE_FAILED', () => model.render({ messages })).details.reason, 'Roles must alternate')
  await rejected(model.chat({ messages }).text(), 'TEMPLATE_FAILED')
})

test('a template that cannot be parsed is refused when the model is loaded', async t => {
  for (const template of ['{% if %}', '{% for x in y %}', '{{ a'])
    t.is((await rejected(of(template), 'TEMPLATE_FAILED')).code, 'TEMPLATE_FAILED')
})

test('a template that runs without end is stopped, and one that asks for too much is refused', async t => {
  const loops = await of(
    '{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{{ "" }}{% endfor %}{% endfor %}{% endfor %}',
  )
  t.regex(throwsCode(t, 'TEMPLATE_FAILED', () => loops.render({ messages })).details.reason, /more than 1000 ms/)
  const large = await of('{% for a in range(1000000000) %}x{% endfor %}')
  t.regex(throwsCode(t, 'TEMPLATE_FAILED', () => large.render({ messages })).details.reason, /range/)
  const doubled = await of(
    '{% set ns = namespace(a=[1]) %}{% for n in range(40) %}{% set ns.a = ns.a + ns.a %}{% endfor %}',
  )
  t.regex(throwsCode(t, 'TEMPLATE_FAILED', () => doubled.render({ messages })).details.reason, /list of 2097152/)
  const deep = await of('{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}')
  throwsCode(t, 'TEMPLATE_FAILED', () => deep.render({ messages }))
})

test('a template of many nodes, of a long text or of a long list is rendered as a short one is', async t => {
  const content = 'word '.repeat(100_000)
  const model = await of('{% for message in messages %}{{ message.content }}{% endfor %}')
  t.is(model.render({ messages: [{ role: 'user', content }] }), content)
  t.is(await of('{% for a in range(30000) %}x{% endfor %}').then(many => many.render({ messages })), 'x'.repeat(30_000))
  const listed = await of('{% set a = range(90000) %}{{ (a + a) | length }}')
  t.is(listed.render({ messages }), '180000')
})

test('templates have the constants and functions that authors use', async t => {
  const model = await of(
    "{{ none is none }}{{ True }}{{ range(2, 8, 3) | join(',') }}{{ strftime_now('%Y') | length }}{{ eos_token }}{% generation %}g{% endgeneration %}{{ enable_thinking }}{{ tools is none }}",
  )
  // Booleans are written as the package writes them, which is not Python's way.
  t.is(model.render({ messages, templateOptions: { enable_thinking: false } }), 'truetrue2,54<|im_end|>gfalsetrue')
})

test('developer means system, unless the template knows it', async t => {
  const developer = [{ role: 'developer', content: 'x' }] as const
  t.is((await of('{{ messages[0].role }}')).render({ messages: developer }), 'system')
  t.is((await of('{{ messages[0].role }}{# developer #}')).render({ messages: developer }), 'developer')
})

test('calls reach the template with arguments as objects', async t => {
  const model = await of('{{ messages[0].tool_calls[0].function.arguments.city }}{{ messages[0].content }}')
  t.is(
    model.render({ messages: [{ role: 'assistant', content: null, tool_calls: [call('{"city": "Paris"}')] }] }),
    'Paris',
  )
  t.is(model.render({ messages: [{ role: 'assistant', content: null, tool_calls: [call('{')] }] }), '')
})

const written = (json: string): string => `<｜tool▁call▁begin｜>f<｜tool▁sep｜>${json}<｜tool▁call▁end｜>`

test('a template that joins arguments with other text gets them as JSON, and calls without content as DeepSeek’s expect', async t => {
  const deepseek =
    "{% for message in messages %}{% if message['content'] is none %}{% for tool in message['tool_calls'] %}{{ '<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] + '<｜tool▁call▁end｜>' }}{% endfor %}{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
  const rendered = async (template: string, json: string, content: string | null): Promise<string> =>
    (await of(template)).render({ messages: [{ role: 'assistant', content, tool_calls: [call(json)] }] })
  for (const content of [null, ''])
    t.is(await rendered(deepseek, '{"city":  "Paris"}', content), written('{"city":  "Paris"}'))
  t.is(await rendered(deepseek, '', null), written('{}'))
  // Templates that turn them into JSON still get an object.
  t.is(
    await rendered(deepseek.replace("['arguments']", "['arguments'] | tojson"), '{"city":  "Paris"}', null),
    written('{"city": "Paris"}'),
  )
  t.is(await (await of(deepseek)).render({ messages: [{ role: 'assistant', content: null }] }), '')
})

test('text and reasoning in front of a call are one, where the template of gpt-oss refuses both', async t => {
  const model = await of(
    "{% for message in messages %}{% if message.content and message.thinking and message.tool_calls %}{{ raise_exception('both') }}{% endif %}[{{ message.thinking }}|{{ message.content }}]{% endfor %}",
  )
  const said = { role: 'assistant', content: 'I look.', reasoning_content: 'Hm.' } as const
  const tool_calls = [call('{}')]
  t.is(model.render({ messages: [{ ...said, tool_calls }] }), '[Hm.\n\nI look.|]')
  t.is(model.render({ messages: [said] }), '[Hm.|I look.]')
  t.is(model.render({ messages: [{ ...said, content: null, tool_calls }] }), '[Hm.|]')
  t.is(model.render({ messages: [{ role: 'assistant', content: 'I look.', tool_calls }] }), '[|I look.]')
})
