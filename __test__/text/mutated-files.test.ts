// Tokenizers and chat templates that were changed at random: each works, or fails with a code.
import test from 'ava'

import { isKvTideError } from '../../index.js'
import { readTextFiles } from '../../lib/text/files.js'
import { ChatTemplate } from '../../lib/text/template.js'
import { INTERNAL } from '../../lib/border/owner.js'
import { Codec } from '../../lib/text/codec.js'
import { TextTokenizer } from '../../lib/text/tokenizer.js'
import { folderOf } from '../support/folder.js'
import { mutated, mutatedText } from '../support/mutated.js'
import { checkAsync } from '../support/seeded.js'
import { byteLevelTokenizer, fallbackTokenizer, suffixTokenizer, tinyModel } from '../support/text/tiny-tokenizer.js'

const TEMPLATES = [
  "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m.content | trim }}<|im_end|>{% endfor %}{% if add_generation_prompt %}x{% endif %}",
  "{%- set ns = namespace(n=0) -%}{% for m in messages if m.role != 'system' %}{% set ns.n = ns.n + loop.index0 %}{{ ns.n ~ m.content[:3] }}{% endfor %}",
  '{% macro f(x, y=2) %}{{ x | tojson(indent=y) }}{% endmacro %}{{ f(tools) }}{{ range(3) | join(",") }}{{ raise_exception("no") if not messages }}',
]
const TOKENS = [
  '{{',
  '}}',
  '{%',
  '%}',
  '-%}',
  '|',
  '(',
  ')',
  '[',
  "'",
  '.x',
  ' if ',
  ' else ',
  '*9',
  '%0',
  'none',
  '[0]',
  '[-9:]',
  '#}',
  '{#',
  '\\',
  'range(9)',
]
const messages = [
  { role: 'system', content: 'Answer.' },
  { role: 'user', content: 'Hello' },
]

test('templates', async t => {
  let [rendered, failed] = [0, 0]
  await checkAsync(t, mutatedText(TEMPLATES, TOKENS), async text => {
    try {
      const template = await ChatTemplate.of(new Map([['default', text]]), undefined, {})
      if (typeof template?.render({ messages, tools: [], add_generation_prompt: true }) === 'string') rendered += 1
    } catch (error) {
      if (!isKvTideError(error) || error.code !== 'TEMPLATE_FAILED') throw error
      failed += 1
    }
  })
  t.true(rendered > 0 && failed > 0, `${rendered} rendered, ${failed} failed`)
})

/** A tokenizer with a small vocabulary, so that most changes are elsewhere. */
const few = (tokenizer: Record<string, unknown>): object => {
  const model = {
    ...(tokenizer['model'] as object),
    vocab: { a: 0, b: 1, ab: 2, Ġ: 3, '▁': 4, '<0x41>': 5 },
    merges: [['a', 'b']],
  }
  return { ...tokenizer, model }
}

test('tokenizers', async t => {
  const files = readTextFiles(tinyModel(await folderOf(t), {}))
  let [loaded, refused] = [0, 0]
  const kinds = [byteLevelTokenizer(), fallbackTokenizer(1), suffixTokenizer()].map(few)
  await checkAsync(t, mutated(...kinds), async value => {
    const tokenizer = value as Record<string, unknown>
    try {
      const made = new TextTokenizer(INTERNAL, await Codec.load({ ...files, tokenizer }))
      made.decode(made.encode('ab a'))
      loaded += 1
    } catch (error) {
      if (!isKvTideError(error)) throw error
      refused += 1
    }
  })
  t.true(loaded > 0 && refused > 0, `${loaded} loaded, ${refused} refused`)
})
