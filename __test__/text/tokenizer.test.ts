// Text to ids and back: every kind of decoder token by token, long texts in slices, and the folder's files that are wrong.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test, { type ExecutionContext } from 'ava'

import { readTextFiles } from '../../lib/text/files.js'
import { TextTokenizer } from '../../lib/text/tokenizer.js'
import { Codec } from '../../lib/text/codec.js'
import { INTERNAL } from '../../lib/border/owner.js'
import { folderOf } from '../support/folder.js'
import { Random } from '../support/text/random.js'
import { byteLevelTokenizer, fallbackTokenizer, suffixTokenizer, tinyModel } from '../support/text/tiny-tokenizer.js'
import { rejected, throwsCode } from '../support/throws.js'

/** The package itself. Its types cannot be read by a compiler that checks packages. */
interface Reference {
  encode(text: string, options: object): { readonly ids: number[] }
  decode(ids: readonly number[], options: object): string
}
const NAME: string = '@huggingface/tokenizers'
const { Tokenizer } = (await import(NAME)) as { readonly Tokenizer: new (json: object, config: object) => Reference }

const codecOf = async (t: ExecutionContext, tokenizer: object): Promise<Codec> =>
  Codec.load(readTextFiles(tinyModel(await folderOf(t), { 'tokenizer.json': tokenizer })))

const load = async (t: ExecutionContext, tokenizer: object): Promise<TextTokenizer> =>
  new TextTokenizer(INTERNAL, await codecOf(t, tokenizer))

const KINDS = {
  'byte-level': byteLevelTokenizer(),
  'byte fallback': fallbackTokenizer(0),
  'byte fallback with a space in front': fallbackTokenizer(1),
  'end-of-word suffix': suffixTokenizer(),
}

for (const [kind, json] of Object.entries(KINDS)) {
  test(`${kind}: pieces are the text of all ids, in every order of ids`, async t => {
    const codec = await codecOf(t, json)
    const tokenizer = new TextTokenizer(INTERNAL, codec)
    const reference = new Tokenizer(json, {})
    const random = new Random(7)
    for (let round = 0; round < 400; round++) {
      const ids = Array.from({ length: 1 + random.below(24) }, () => random.below(tokenizer.size))
      for (const skipSpecialTokens of [true, false]) {
        const stream = tokenizer.stream({ skipSpecialTokens })
        const pieces = ids.map(id => stream.push(id))
        pieces.push(stream.end())
        for (const piece of pieces) t.false(/\p{Surrogate}/u.test(piece))
        const whole = tokenizer.decode(ids, { skipSpecialTokens })
        t.is(pieces.join(''), whole)
        const theirs = reference.decode(ids, {
          skip_special_tokens: skipSpecialTokens,
          clean_up_tokenization_spaces: false,
        })
        // Their end-of-word suffix is also trimmed in front, and their decoder drops a byte order mark.
        if (kind !== 'end-of-word suffix' && !theirs.includes('\uFFFD') && !whole.includes('\uFEFF'))
          t.is(whole, theirs)
      }
    }
  })
}

test('a character whose bytes come in several tokens is one piece', async t => {
  const tokenizer = await load(t, byteLevelTokenizer())
  const stream = tokenizer.stream()
  const ids = tokenizer.encode('a🙂é!')
  const pieces = [...ids].map(id => stream.push(id))
  t.deepEqual(pieces, ['a', '', '', '', '🙂', '', 'é', '!'])
  t.is(stream.end(), '')
})

test('bytes that are no whole character become U+FFFD once, at the end', async t => {
  const tokenizer = await load(t, byteLevelTokenizer())
  const stream = tokenizer.stream()
  const ids = tokenizer.encode('🙂')
  t.deepEqual(
    [...ids].slice(0, 3).map(id => stream.push(id)),
    ['', '', ''],
  )
  t.is(stream.end(), '\uFFFD')
  t.is(stream.end(), '')
})

test('texts have the ids of the package, whole and in slices, however long', async t => {
  const random = new Random(3)
  const words = [
    'Hello',
    ' world',
    ' the',
    '  ',
    '\n',
    '🙂',
    'é',
    "'s",
    '12',
    '½',
    '<|im_end|>',
    '<think>',
    '東',
    '.',
    '! ',
  ]
  for (const [kind, json] of Object.entries(KINDS)) {
    const codec = await codecOf(t, json)
    const tokenizer = new TextTokenizer(INTERNAL, codec)
    const reference = new Tokenizer(json, {})
    for (let round = 0; round < 40; round++) {
      const text = Array.from(
        { length: random.below(round === 0 ? 20_000 : 60) },
        () => words[random.below(words.length)],
      ).join('')
      const ids = [...tokenizer.encode(text, { addSpecialTokens: false })]
      t.deepEqual(ids, reference.encode(text, { add_special_tokens: false }).ids, kind)
      t.deepEqual([...(await codec.encodeFrom(text, 0, () => false)).ids], ids, kind)
    }
  }
})

test('behind each mark a text tokenises on its own', async t => {
  const codec = await codecOf(t, byteLevelTokenizer())
  const text = '<|im_start|>user\nHello the world<|im_end|>\n<|im_start|>assistant\n<think> x</think>y'
  const { ids, marks } = await codec.encodeFrom(text, 0, () => false)
  t.true(marks.length >= 8)
  for (const mark of marks) {
    const rest = await codec.encodeFrom(text, mark.text, () => false)
    t.deepEqual([...ids.slice(0, mark.ids), ...rest.ids], [...ids])
  }
  t.deepEqual(codec.encoder.places(text), [...new Set(marks.map(mark => mark.text))])
})

test('a long text gives the event loop its turns', async t => {
  const codec = await codecOf(t, byteLevelTokenizer())
  let turns = 0
  let isOn = true
  const turn = (): void => {
    turns += 1
    if (isOn) setImmediate(turn)
  }
  setImmediate(turn)
  await codec.encodeFrom('Hello the world, of 12 words. '.repeat(10_000), 0, () => false)
  isOn = false
  t.true(turns > 5, `${turns}`)
})

test('ids of a long text are made between turns of the event loop, until a signal ends it', async t => {
  const tokenizer = await load(t, byteLevelTokenizer())
  const text = '<|im_start|>Hello the world, of 12 words. '.repeat(10_000)
  let turns = 0
  const timer = setInterval(() => (turns += 1), 1)
  t.teardown(() => clearInterval(timer))
  const ids = await tokenizer.encodeAsync(text)
  t.true(turns > 5, `${turns}`)
  t.deepEqual(ids, tokenizer.encode(text))
  const addSpecialTokens = false
  t.deepEqual(
    await tokenizer.encodeAsync('Hello', { addSpecialTokens }),
    tokenizer.encode('Hello', { addSpecialTokens }),
  )
  const ended = new AbortController()
  const begun = tokenizer.encodeAsync(text.repeat(100), { signal: ended.signal })
  turns = 0
  ended.abort(new Error('left'))
  const error = await rejected(begun, 'ABORTED')
  t.is((error.cause as Error).message, 'left')
  t.true(turns < 200, 'it ends soon')
  await rejected(tokenizer.encodeAsync('Hello', { signal: ended.signal }), 'ABORTED')
})

test('numbers and spaces split as in the tokenizers in Rust', async t => {
  const json = byteLevelTokenizer()
  const digits = { type: 'Digits', individual_digits: true }
  const split = { type: 'Sequence', pretokenizers: [digits, json['pre_tokenizer']] }
  const model = json['model'] as { vocab: Record<string, number>; merges: [string, string][] }
  // A token of a space and ½ must not be made, because digits stand alone.
  const merges: [string, string][] = [...model.merges, ['Â', '½'], ['Ġ', 'Â½']]
  const vocab: Record<string, number> = { ...model.vocab, 'Â½': 400, 'ĠÂ½': 401 }
  const tokenizer = await load(t, { ...json, pre_tokenizer: split, model: { ...model, merges, vocab } })
  t.deepEqual([...tokenizer.encode(' ½')], [vocab['Ġ'] as number, 400])
})

test('a folder without a tokenizer, or with a wrong one, says which file and what to do', async t => {
  const without = await folderOf(t)
  const missing = throwsCode(t, 'INVALID_TOKENIZER', () => readTextFiles(join(without, 'model')))
  t.regex(missing.message, /tokenizer\.json cannot be used: it is missing: copy/)
  for (const [content, reason] of [
    ['{', /not JSON/],
    ['[]', /not a tokenizer/],
    [{ model: 1 }, /not a tokenizer/],
  ] as const) {
    const folder = tinyModel(await folderOf(t), { 'tokenizer.json': content })
    t.regex(throwsCode(t, 'INVALID_TOKENIZER', () => readTextFiles(folder)).message, reason)
  }
  for (const json of [{ model: {} }, { ...byteLevelTokenizer(), model: { type: 'Strange' } }])
    t.regex((await rejected(load(t, json), 'INVALID_TOKENIZER')).message, /refused it/)
  const strange = { ...byteLevelTokenizer(), decoder: { type: 'CTC' } }
  t.regex((await rejected(load(t, strange), 'INVALID_TOKENIZER')).message, /decoder|refused/)
})

test('files of a folder are found one folder up as well, and a broken config is named', async t => {
  const folder = tinyModel(await folderOf(t))
  t.is(readTextFiles(join(folder, 'onnx')).tokenizerPath, join(folder, 'tokenizer.json'))
  writeFileSync(join(folder, 'generation_config.json'), '{ "top_p": ')
  t.regex(throwsCode(t, 'INVALID_TOKENIZER', () => readTextFiles(folder)).message, /generation_config\.json.*not JSON/)
})

test('wrong arguments are refused', async t => {
  const tokenizer = await load(t, byteLevelTokenizer())
  throwsCode(t, 'INVALID_ARGUMENT', () => tokenizer.encode(1 as never))
  await rejected(tokenizer.encodeAsync(1 as never), 'INVALID_ARGUMENT')
  await rejected(tokenizer.encodeAsync('a', { signal: {} as never }), 'INVALID_ARGUMENT')
  throwsCode(t, 'INVALID_ARGUMENT', () => tokenizer.decode('a' as never))
  throwsCode(t, 'INVALID_ARGUMENT', () => tokenizer.decode([1.5]))
  throwsCode(t, 'INVALID_ARGUMENT', () => tokenizer.stream({ skipSpecial: true } as never))
  throwsCode(t, 'INVALID_ARGUMENT', () => new TextTokenizer(undefined, undefined))
  t.is(tokenizer.decode([]), '')
  t.is(tokenizer.decode([100_000]), '')
})
