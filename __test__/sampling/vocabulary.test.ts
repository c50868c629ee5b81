// Vocabularies: by hand, from files, from content; the bytes of tokens, and wrong ones.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

import test from 'ava'

import { compile } from '../../lib/sampling/vocabulary.js'
import { Vocabulary } from '../../onnx.js'
import { rejected, throwsCode } from '../support/throws.js'

const folder = mkdtempSync(join(tmpdir(), 'kvtide-vocabulary-'))
test.after.always(() => rmSync(folder, { recursive: true }))

const TOKENIZER = {
  added_tokens: [{ id: 3, content: '<end>', special: true }],
  decoder: { type: 'ByteLevel' },
  model: { type: 'BPE', vocab: { Ġthe: 0, a: 1, Ċ: 2, '<end>': 3 }, merges: [] },
}
const file = join(folder, 'tokenizer.json')
writeFileSync(file, JSON.stringify(TOKENIZER))

const shown = (vocabulary: Vocabulary): string[] =>
  Array.from({ length: vocabulary.size }, (_, id) => Buffer.from(vocabulary.bytesOf(id)).toString())

test('a tokenizer is read from its path, its folder, a URL and its content', async t => {
  const given = [file, folder, pathToFileURL(file), pathToFileURL(folder), TOKENIZER, { _tokenizerJSON: TOKENIZER }]
  for (const tokenizer of given) {
    const vocabulary = await Vocabulary.load(tokenizer, { endOfSequence: [3] })
    t.deepEqual(shown(vocabulary), [' the', 'a', '\n', '<end>'])
    t.deepEqual([vocabulary.isSpecial(2), vocabulary.isSpecial(3)], [false, true])
    t.deepEqual(vocabulary.endOfSequence, [3])
  }
  t.is((await Vocabulary.load(file, { size: 10 })).size, 10)
  t.is((await Vocabulary.load(file, { size: 2 })).size, 4)
})

test('a tokenizer of transformers.js is one', async t => {
  const callable = Object.assign(() => undefined, { _tokenizerJSON: TOKENIZER })
  t.is((await Vocabulary.load(callable)).size, 4)
})

test('a vocabulary by hand has bytes, texts and ids without a token', t => {
  const vocabulary = Vocabulary.ofTokens([Uint8Array.of(0xc3), 'é', undefined, 'end'], { endOfSequence: [3] })
  t.deepEqual([...vocabulary.bytesOf(0)], [0xc3])
  t.deepEqual([...vocabulary.bytesOf(1)], [0xc3, 0xa9])
  t.deepEqual([...vocabulary.bytesOf(2)], [])
  t.deepEqual(
    [0, 1, 2, 3].map(id => vocabulary.isSpecial(id)),
    [false, false, false, true],
  )
})

test('wrong ones are refused', async t => {
  await rejected(Vocabulary.load(join(folder, 'none.json')), 'IO_ERROR')
  const other = join(folder, 'other.json')
  writeFileSync(other, '{"a": 1}')
  const { details } = await rejected(Vocabulary.load(other), 'INVALID_ARGUMENT')
  t.is(details.argument, 'tokenizer')
  for (const tokenizer of ['', 5, null, new URL('https://example.com/tokenizer.json'), {}, [], new Uint8Array(3)])
    await rejected(Vocabulary.load(tokenizer as never), 'INVALID_ARGUMENT')
  for (const tokens of [[], 5, [5], ['a', null]])
    throwsCode(t, 'INVALID_ARGUMENT', () => Vocabulary.ofTokens(tokens as never))
  const vocabulary = Vocabulary.ofTokens(['a'])
  for (const id of [1, -1, 0.5, '0']) throwsCode(t, 'INVALID_ARGUMENT', () => vocabulary.bytesOf(id as never))
  throwsCode(t, 'INVALID_ARGUMENT', () => new Vocabulary(undefined, undefined))
})

test('a grammar is compiled once, and a refused one again', async t => {
  const vocabulary = Vocabulary.ofTokens(['a', 'b'])
  const first = compile(vocabulary, { kind: 'regex', text: 'a' })
  t.is(compile(vocabulary, { kind: 'regex', text: 'a' }), first)
  for (let count = 0; count < 64; count++) void compile(vocabulary, { kind: 'regex', text: `a{${count}}` })
  t.not(compile(vocabulary, { kind: 'regex', text: 'a' }), first)
  const refused = compile(vocabulary, { kind: 'regex', text: '(' })
  await rejected(refused, 'INVALID_GRAMMAR')
  t.not(
    compile(vocabulary, { kind: 'regex', text: '(' }).catch(() => undefined),
    refused,
  )
})
