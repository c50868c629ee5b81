// Texts that match the grammar of an answer with calls, JSON, or both.
import test from 'ava'

import { readGrammar } from '../../lib/sampling/grammar.js'
import { compile, Vocabulary } from '../../lib/sampling/vocabulary.js'
import { callGrammar, type JsonGrammar } from '../../lib/text/tools/call-grammar.js'
import type { Tool, ToolFamily } from '../../text.js'

const PLACE = {
  type: 'object',
  properties: { city: { enum: ['Paris', 'Rome'] } },
  required: ['city'],
  additionalProperties: false,
}
const TOOLS: readonly Tool[] = [{ type: 'function', function: { name: 'find', parameters: PLACE } }]
/** A token for each printed ASCII character and the end of a line, behind the end of the answer. */
const CHARACTERS = [...Array.from({ length: 95 }, (_, place) => String.fromCharCode(32 + place)), '\n']

/** Returns those of these texts that are whole answers. */
async function matching(
  family: ToolFamily,
  answer: JsonGrammar | undefined,
  texts: readonly string[],
): Promise<string[]> {
  const vocabulary = Vocabulary.ofTokens(['<end>', ...CHARACTERS], { endOfSequence: [0] })
  const form = { family, tools: TOOLS, isSingle: false, reasoning: undefined, isReasoning: false }
  const grammar = callGrammar({ ...form, answer, specialOf: () => undefined })
  const compiled = await compile(vocabulary, readGrammar('grammar', grammar))
  return texts.filter(text => {
    const matcher = compiled.matcher(Uint32Array.of(0))
    try {
      return [...[...text].map(character => CHARACTERS.indexOf(character) + 1), 0].every((id, place, ids) => {
        const logits = new Float32Array(CHARACTERS.length + 1)
        matcher.apply(logits)
        if (place < ids.length - 1 && logits[id] === 0) matcher.push(Uint32Array.of(id))
        return logits[id] === 0
      })
    } finally {
      matcher.dispose()
    }
  })
}

const schema = (properties: object): JsonGrammar => ({
  json: { type: 'object', properties, required: Object.keys(properties), additionalProperties: false },
})

const CALL = '{"name": "find", "parameters": {"city": "Rome"}}'
const TAGGED = '<tool_call>\n{"name": "find", "arguments": {"city": "Rome"}}\n</tool_call>'

test('calls that are forced are the only answer', async t => {
  const texts = [CALL, `${CALL}; ${CALL}`, '{"name": "other"}', '{"x": 1}', TAGGED, '']
  t.deepEqual(await matching('llama3', undefined, texts), [CALL, `${CALL}; ${CALL}`])
  t.deepEqual(await matching('hermes', undefined, [...texts, `${TAGGED}\n${TAGGED}`]), [TAGGED, `${TAGGED}\n${TAGGED}`])
})

test('beside calls, JSON is written in all of its forms', async t => {
  for (const [family, call] of [
    ['llama3', CALL],
    ['hermes', TAGGED],
  ] as const) {
    const numbers = ['{"x": 1}', '{"x":1}', '{ "x" :\n1 }']
    t.deepEqual(await matching(family, schema({ x: { enum: [1] } }), [...numbers, call, '{"x": 2}', '']), [
      ...numbers,
      call,
    ])
    // These begin as calls of Llama 3 do.
    const names = ['{"name": "bob"}', '{"name":"bob"}', '{"name": "find"}', '{"name": "fin"}']
    t.deepEqual(await matching(family, schema({ name: { type: 'string' } }), [...names, '{"name": 1}']), names)
    t.deepEqual(await matching(family, { json: 'object' }, [...names, call, '{}', '[]']), [...names, call, '{}'])
  }
})
