// Grammars: every answer is a text of its grammar, and the same tokens alone and in a batch, with drafts, forks and preemption, on every backend.
import ava from 'ava'

import { isKvTideError } from '../../index.js'
import { type BackendName, type GenerateOptions, type Generation, OnnxModel, Vocabulary } from '../../onnx.js'
import { END, isDocument, SCHEMA, SIZE, textOf, vocabulary } from '../support/grammar/vocabulary.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { references } from '../support/llama/references.js'
import { graphFile, INT4 } from '../support/onnx/paged-graph.js'
import { linearGraph } from '../support/onnx/linear-graph.js'
import { VOCABULARY as HYBRID } from '../support/onnx/hybrid-graph.js'
import { rejected, throwsCode } from '../support/throws.js'
import { Dice, ToyBackend, toyModel, VOCABULARY as TOYS } from '../support/onnx/toy-model.js'

const prompts = Object.values(references.prompts).map(prompt => [...prompt])
const load = (options: object = {}, name = 'onnx-gqa-f32'): Promise<OnnxModel> =>
  OnnxModel.load(graphFile(name), { threads: 2, cache: { memoryBytes: 2 ** 23 }, ...options })

const grammar = { json: SCHEMA }
const constrained = { grammar, vocabulary, maxTokens: 120 } as const

/** The id of a letter. */
const byte = (letter: string): number => 3 + (letter.codePointAt(0) as number)

async function read(generation: Generation): Promise<number[]> {
  const tokens: number[] = []
  for await (const token of generation) tokens.push(token)
  return tokens
}

async function answer(model: OnnxModel, prompt: readonly number[], options: GenerateOptions = {}): Promise<number[]> {
  using chat = model.open({ tokens: [...prompt] })
  const generation = model.generate(chat, { ...constrained, ...options })
  const tokens = await read(generation)
  if (generation.finishReason !== 'stop')
    throw new Error(`it ended with ${String(generation.finishReason)}: ${textOf(tokens)}`)
  return tokens
}

for (const backend of ['graph', 'parts', 'plain'] as BackendName[]) {
  test(`answers on ${backend} are documents of the schema, and the same tokens alone and in a batch`, async t => {
    await using model = await load({ backend })
    const seeds = prompts.flatMap(prompt => [1, 2, 3].map(seed => ({ prompt, seed })))
    const alone: number[][] = []
    for (const { prompt, seed } of seeds) alone.push(await answer(model, prompt, { temperature: 1.5, seed }))
    for (const tokens of alone) t.true(isDocument(textOf(tokens)), textOf(tokens))
    t.true(new Set(alone.map(tokens => tokens.join())).size > 5)
    const together = await Promise.all(
      seeds.map(({ prompt, seed }) => answer(model, prompt, { temperature: 1.5, seed })),
    )
    t.deepEqual(together, alone)
  })
}

test('drafts change no token: prompt lookup for every seed, a second model at temperature 0', async t => {
  await using model = await load()
  await using second = await load({}, INT4)
  for (const prompt of prompts) {
    for (const sampling of [{}, { temperature: 1.2, seed: 5 }]) {
      const wanted = await answer(model, prompt, sampling)
      // A text that was written before is drafted.
      const known = [...prompt, ...wanted, ...prompt]
      const plain = await answer(model, known, sampling)
      t.deepEqual(await answer(model, known, { ...sampling, draft: 'lookup' }), plain)
    }
    t.deepEqual(await answer(model, prompt, { draft: second }), await answer(model, prompt))
  }
  const drawn = await Promise.all(
    prompts.map((prompt, seed) =>
      answer(model, prompt, { draft: { model: second, tokens: 3 }, temperature: 1.3, seed }),
    ),
  )
  for (const tokens of drawn) t.true(isDocument(textOf(tokens)), textOf(tokens))
})

test('a second model drafts under the grammar: one that knows the same is never wrong, and drafts nothing behind the end', async t => {
  const letters = Vocabulary.ofTokens(
    Array.from({ length: TOYS }, (_, id) => String.fromCodePoint(97 + id)),
    { endOfSequence: [14] },
  )
  const options = { grammar: { regex: '(?:[a-e][f-k]){25}b?' }, vocabulary: letters, temperature: 0.7, seed: 3 }
  const steps: number[] = []
  const found: number[][] = []
  for (const isDrafting of [false, true]) {
    const own = new ToyBackend(new Dice(1), { poison: -1 })
    const model = toyModel(own, { capacity: 400 })
    const draft = toyModel(new ToyBackend(new Dice(2), { poison: -1, slip: Infinity }), { capacity: 400 })
    using chat = model.open({ tokens: [1, 2, 3] })
    const drafting = isDrafting ? { draft: { model: draft, tokens: 4 } } : {}
    found.push(await read(model.generate(chat, { ...options, ...drafting })))
    steps.push(own.steps)
    await model.dispose()
    await draft.dispose()
  }
  for (const tokens of found) t.regex(textOf(tokens, letters), /^(?:[a-e][f-k]){25}b?$/)
  const [alone = 0, drafted = Infinity] = steps
  t.true(alone >= 50 && drafted <= 12, `${alone} and ${drafted} steps`)
})

test('sequences that are preempted and computed again get the same tokens', async t => {
  const wanted: number[][] = []
  {
    await using model = await load()
    for (const prompt of prompts) wanted.push(await answer(model, prompt, { temperature: 1, seed: 8 }))
  }
  await using model = await load({ cache: { capacity: 256, blockSize: 8 }, maxStepTokens: 32 })
  t.deepEqual(await Promise.all(prompts.map(prompt => answer(model, prompt, { temperature: 1, seed: 8 }))), wanted)
})

test('a layer with states gives texts of the grammar, alone and in a batch', async t => {
  await using model = await OnnxModel.load(linearGraph({}), {
    threads: 1,
    maxStepTokens: 16,
    cache: { blockSize: 8, capacity: 400 },
  })
  const letters = Vocabulary.ofTokens(Array.from({ length: HYBRID }, (_, id) => String.fromCodePoint(97 + id)))
  const options = { grammar: { regex: '(?:ab|cde|f[g-k]){4}l' }, vocabulary: letters, temperature: 2 }
  const make = (seed: number): Promise<number[]> => answer(model, [1, 2, 3 + seed], { ...options, seed })
  const alone = [await make(1), await make(2), await make(3)]
  for (const tokens of alone) t.regex(textOf(tokens, letters), /^(?:ab|cde|f[g-k]){4}l$/)
  t.deepEqual(await Promise.all([make(1), make(2), make(3)]), alone)
  for (const [place, tokens] of alone.entries()) {
    using chat = model.open({ tokens: [1, 2, 4 + place] })
    t.deepEqual(
      await read(model.generate(chat, { ...options, maxTokens: 60, seed: place + 1, draft: 'lookup' })),
      tokens,
    )
  }
})

test('the end is allowed exactly where the text is complete', async t => {
  await using model = await load()
  const [prompt = []] = prompts
  const bias = { [END]: 1000 }
  const text = async (regex: string, options: GenerateOptions = {}): Promise<string> =>
    textOf(await answer(model, prompt, { grammar: { regex }, bias, ...options }))
  t.is(await text('a{3}b*'), 'aaa')
  t.is(await text('a{3}|a{5}', { bias: {} }).then(found => found.length >= 3), true)
  // An id of `stop` ends it in the same way, also one that is a token of the text.
  const letter = byte('a')
  t.is(await text('[ab]{2}', { bias: { [letter]: 1000 }, stop: [letter] }), 'bb')
  t.is(await text('b?a', { bias: { [letter + 1]: 1000 }, stop: [letter + 1] }), 'a')
  t.is(await text(''), '')
  using chat = model.open({ tokens: prompt })
  const empty = model.generate(chat, { ...constrained, grammar: { regex: '' } })
  t.deepEqual(await read(empty), [])
  t.is(empty.usage.computedTokens, 0)
})

test('a text ends at the ids of the model, of its vocabulary and of `stop`', async t => {
  await using model = await load()
  t.deepEqual(model.endOfSequence, [END])
  const [prompt = []] = prompts
  const own = Vocabulary.ofTokens(
    Array.from({ length: SIZE }, (_, id) => vocabulary.bytesOf(id)),
    { endOfSequence: [1] },
  )
  const stop = [byte('c')]
  for (const end of [END, 1, ...stop]) {
    const options = { grammar: { regex: 'a{3}b*' }, vocabulary: own, bias: { [byte('b')]: 500, [end]: 1000 }, stop }
    t.is(textOf(await answer(model, prompt, options), own), 'aaa')
  }
})

test('allowed, bias, penalties and logprobs go together with a grammar', async t => {
  await using model = await load()
  const [prompt = []] = prompts
  using chat = model.open({ tokens: prompt })
  const generation = model.generate(chat, {
    ...constrained,
    grammar: { regex: '[abc]{4}' },
    allowed: tokens => (tokens.length === 1 ? [byte('b'), byte('x')] : [byte('a'), byte('c'), byte('z')]),
    bias: { [byte('c')]: 1000 },
    frequencyPenalty: 1500,
    logprobs: 3,
  })
  const tokens: number[] = []
  for await (const token of generation) {
    tokens.push(token)
    const { logprob = NaN, top = [] } = generation.logprobs ?? {}
    t.true(logprob <= 0)
    t.true(top.every(({ token: other }) => [byte('a'), byte('b'), byte('c')].includes(other)))
  }
  // The penalty exceeds the bias: each letter once, then the other one again.
  t.is(textOf(tokens), 'cbac')
  t.is(generation.finishReason, 'stop')
  // A combination that excludes everything is the error of this generation.
  await rejected(answer(model, prompt, { grammar: { regex: '[ab]' }, allowed: () => [byte('c')] }), 'INVALID_ARGUMENT')
})

test('a full context and maxTokens end a text before it is complete', async t => {
  await using model = await load()
  using chat = model.open({ tokens: prompts[0] ?? [] })
  const generation = model.generate(chat, { grammar: { regex: 'a{20}' }, vocabulary, maxTokens: 5 })
  t.is(textOf(await read(generation)), 'aaaaa')
  t.is(generation.finishReason, 'length')
})

test('a fork goes on in its own text, and a chat with one grammar after the other', async t => {
  await using model = await load()
  using chat = model.open({ tokens: prompts[1] ?? [] })
  const first = await read(model.generate(chat, { ...constrained, seed: 1 }))
  using fork = chat.fork()
  const [second, third] = await Promise.all([
    read(model.generate(chat, { ...constrained, seed: 2, temperature: 1.5 })),
    read(model.generate(fork, { vocabulary, grammar: { json: { enum: ['one', 2] } }, maxTokens: 30 })),
  ])
  t.true(isDocument(textOf(first)) && isDocument(textOf(second)))
  t.true(['"one"', '2'].includes(textOf(third).trim()))
})

test('a grammar that cannot be used fails its generation alone, with the place', async t => {
  await using model = await load()
  const others = prompts.map(prompt => answer(model, prompt))
  const wrong: readonly (readonly [GenerateOptions['grammar'], string | undefined])[] = [
    [{ json: { properties: { a: { not: {} } } } }, '#/properties/a'],
    [{ json: { $ref: 'https://example.com/a.json' } }, '#'],
    [{ json: false }, '#'],
    [{ regex: 'a(b' }, 'character 1'],
    [{ lark: 'start: "a" |\n  other' }, undefined],
  ]
  for (const [refused, place] of wrong) {
    using chat = model.open({ tokens: [5, 6] })
    const generation = model.generate(chat, { ...constrained, grammar: refused as NonNullable<typeof refused> })
    const { details } = await rejected(generation.next(), 'INVALID_GRAMMAR')
    if (place !== undefined) t.is(details.place, place)
    t.deepEqual(await generation.next(), { done: true, value: undefined })
    t.is(generation.finishReason, undefined)
  }
  // No token of this vocabulary continues the text behind the first one.
  const small = Vocabulary.ofTokens(['a', 'b'])
  using chat = model.open({ tokens: [5] })
  const generation = model.generate(chat, { grammar: { regex: 'a(?:c|d)' }, vocabulary: small })
  t.is((await generation.next()).value, 0)
  const { details } = await rejected(generation.next(), 'INVALID_GRAMMAR')
  t.is(details.place, 'token 1')
  for (const tokens of await Promise.all(others)) t.true(isDocument(textOf(tokens)))
})

test('a grammar is of one kind', async t => {
  await using model = await load()
  using chat = model.open({ tokens: [5] })
  for (const given of [{}, { json: true, regex: 'a' }, { regex: 'a', lark: 'start: "a"' }]) {
    const error = throwsCode(t, 'INVALID_ARGUMENT', () =>
      model.generate(chat, { ...constrained, grammar: given as GenerateOptions['grammar'] & {} }),
    )
    t.is(error.details.argument, 'grammar')
  }
})

test('without a tokenizer.json beside the model a vocabulary has to be given', async t => {
  await using model = await load()
  using chat = model.open({ tokens: [5] })
  const error = await rejected(model.generate(chat, { grammar }).next(), 'INVALID_ARGUMENT')
  t.is(error.details.argument, 'vocabulary')
  t.true(isKvTideError(error))
})

/** The vocabulary with another number of ids. */
const size = (count: number): Vocabulary =>
  Vocabulary.ofTokens(
    Array.from({ length: count }, (_, id) => (id < SIZE ? vocabulary.bytesOf(id) : 'a')),
    { endOfSequence: [END] },
  )

test('a vocabulary with fewer ids than the model has logits, and one with more', async t => {
  await using model = await load()
  for (const count of [200, SIZE, 330]) {
    const tokens = await answer(model, prompts[2] ?? [], { vocabulary: size(count), grammar: { regex: '[a-c]{9}' } })
    t.regex(textOf(tokens), /^[a-c]{9}$/)
  }
})

test('an abort while a grammar is compiled, and a generation that is left early', async t => {
  await using model = await load()
  const controller = new AbortController()
  using chat = model.open({ tokens: [5] })
  const waiting = model.generate(chat, { ...constrained, grammar: { regex: 'x{9}' }, signal: controller.signal }).next()
  controller.abort()
  await rejected(waiting, 'ABORTED')
  const generation = model.generate(chat, constrained)
  await generation.next()
  await generation.return()
  t.is(generation.finishReason, undefined)
  t.true(isDocument(textOf(await read(model.generate(chat, constrained)))))
})

const folder = process.env['KVTIDE_REAL_MODEL']

test(
  'JSON with the tokenizer beside a real model',
  async t => {
    await using model = await OnnxModel.load(folder as string)
    const tokens = Array.from({ length: 20 }, (_, place) => 100 + place)
    const chats = Array.from({ length: 4 }, () => model.open({ tokens }))
    const own = await Vocabulary.load(folder as string)
    const texts = await Promise.all(
      chats.map(async (chat, seed) => {
        const generation = model.generate(chat, { grammar, seed, maxTokens: 200 })
        return [textOf(await read(generation), own), generation.finishReason] as const
      }),
    )
    for (const [text, reason] of texts) {
      t.true(isDocument(text), text)
      t.is(reason, 'stop')
    }
  },
  folder === undefined
    ? (title, run) => void ava.skip(`SKIPPED without KVTIDE_REAL_MODEL, its folder: ${title}`, run)
    : ava,
)
