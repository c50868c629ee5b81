// Decoders that take embeddings: prompts with images give the tokens of transformers, in all backends, however a sequence comes to be computed again; and a prefix
// with a picture is found by prompts with the same picture only.
import { readFileSync } from 'node:fs'

import { type BackendName, OnnxModel, type OnnxSequence } from '../../onnx.js'
import { distance } from '../support/llama/references.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { withHalfEmbeds } from '../support/onnx/changed.js'
import { read } from '../support/onnx/chat.js'
import {
  VISION,
  visionFile,
  visionModel,
  type VisionName,
  type VisionPrompt,
  visionPrompts,
} from '../support/onnx/vision.js'
import { rejected, throwsCode } from '../support/throws.js'

const BACKENDS: readonly BackendName[] = ['graph', 'parts', 'plain']
const MODELS = Object.keys(VISION) as VisionName[]

const open = (model: OnnxModel, { tokens, embeds }: VisionPrompt, salt?: string): OnnxSequence =>
  model.open({ tokens, embeds, ...(salt === undefined ? {} : { salt }) })

for (const name of MODELS) {
  const prompts = visionPrompts(name)
  const { a, b, again, two } = prompts as Record<'a' | 'b' | 'again' | 'two', VisionPrompt>
  const all = Object.values(prompts)
  const wanted = all.map(({ greedy }) => [...greedy])

  for (const backend of BACKENDS) {
    test(`${name}, ${backend}: its tokens are those of transformers, alone, together, drafted and over a cached prefix`, async t => {
      await using model = await visionModel(name, backend)
      t.is(model.backend, backend)
      for (const [place, prompt] of all.entries()) {
        using chat = open(model, prompt, 'alone')
        t.deepEqual(await read(model, chat, wanted[place]?.length as number), wanted[place], `prompt ${place}, alone`)
      }
      for (const draft of [undefined, 'lookup'] as const) {
        for (const round of ['first', 'cached']) {
          const chats = all.map(prompt => open(model, prompt, `${draft}`))
          if (round === 'cached')
            for (const [place, { length }] of chats.entries())
              t.true(length >= (all[place] as VisionPrompt).ids.length - 4)
          const options = draft === undefined ? {} : { draft }
          const found = await Promise.all(chats.map(chat => read(model, chat, 12, options)))
          t.deepEqual(found, wanted, `${draft}, ${round}`)
          for (const chat of chats) chat.dispose()
        }
      }
    })

    test(`${name}, ${backend}: a prefix with a picture is found with the same picture only`, async t => {
      await using model = await visionModel(name, backend)
      const found = async (
        prompt: VisionPrompt,
        given: Partial<VisionPrompt['embeds'][number]> = {},
      ): Promise<number> => {
        using chat = model.open({ tokens: prompt.tokens, embeds: prompt.embeds.map(span => ({ ...span, ...given })) })
        const { length } = chat
        t.deepEqual(await read(model, chat, 12), [...prompt.greedy])
        return length
      }
      t.is(await found(a), 0)
      t.is(await found(again), 12, 'a second question about the same picture')
      t.is(await found(b), 4, 'the blocks of another picture are not found, those before it are')
      t.is(await found(b), 16)
      t.is(await found(a, { key: new TextEncoder().encode('a') }), 16, 'a string stands for its bytes')
      t.is(await found(a, { key: 'other' }), 4)
      t.is(await found(two), 16, 'and the text behind the first picture')
      using without = model.open({ tokens: a.tokens })
      t.is(without.length, 4, 'the same ids without a picture')
      const extra = [{ start: 6, end: 12, key: new TextEncoder().encode('a') }]
      using named = model.open({ tokens: a.tokens, extra })
      t.is(named.length, 4, 'the same ids with the extra alone')
      if (name === 'llama') return
      const [span] = a.embeds as [VisionPrompt['embeds'][number]]
      using turned = model.open({ tokens: a.tokens, embeds: [{ ...span, grid: [1, 3, 2] }] })
      t.is(turned.length, 4, 'the same picture in another grid')
    })

    test(`${name}, ${backend}: forks, snapshots, cuts and files keep the pictures`, async t => {
      await using model = await visionModel(name, backend)
      const forget = (): void => void model.cache.forgetPrefixes()
      using chat = open(model, two)
      using early = chat.snapshot()
      const pending = await chat.saveBytes()
      t.deepEqual(await read(model, chat, 12), [...two.greedy])
      const computed = await chat.saveBytes()
      // Cut into the first picture, before it, between the two, and behind the prompt.
      for (const length of [8, 0, 20, two.tokens.length]) {
        using cut = open(model, two, `cut to ${length}`)
        t.deepEqual(await read(model, cut, 12), [...two.greedy])
        cut.truncate(length)
        t.is(cut.resume(two.tokens), Math.min(length, two.tokens.length - 1))
        forget()
        t.deepEqual(await read(model, cut, 12), [...two.greedy], `cut to ${length}`)
      }
      chat.truncate(9)
      t.is(chat.length, 9)
      using fork = chat.fork()
      fork.resume(two.tokens)
      forget()
      t.deepEqual(await read(model, fork, 12), [...two.greedy], 'a fork within a picture')
      // The rest of the prompt may also be given as tokens.
      t.deepEqual(await read(model, chat, 12, { tokens: two.tokens.slice(9) }), [...two.greedy])
      chat.restore(early)
      t.deepEqual([...chat.tokens], two.tokens)
      forget()
      t.deepEqual(await read(model, chat, 12), [...two.greedy], 'a snapshot')
      for (const [bytes, length] of [
        [pending, 0],
        [computed, two.tokens.length + 11],
      ] as const) {
        forget()
        using loaded = await model.loadSequence(bytes, { embeds: two.embeds })
        t.is(loaded.length, length)
        loaded.truncate(7)
        loaded.resume(two.tokens)
        forget()
        t.deepEqual(await read(model, loaded, 12), [...two.greedy], 'a file')
        await rejected(model.loadSequence(bytes), 'INCOMPATIBLE')
        const extra = two.embeds.map(({ start, data, key }) => ({
          start,
          end: start + data.length / 32,
          key: new TextEncoder().encode(key as string),
        }))
        await rejected(model.loadSequence(bytes, { extra }), 'INCOMPATIBLE')
      }
    })

    test(`${name}, ${backend}: chats that are preempted compute their pictures again`, async t => {
      const cache = { capacity: 14, blockSize: 4 }
      await using model = await visionModel(name, backend, { cache, maxStepTokens: 5 })
      const chats = [a, b, again, a, b].map(prompt => ({ prompt, chat: open(model, prompt, 'x') }))
      const found = await Promise.all(
        chats.map(async ({ chat }) => {
          const tokens = await read(model, chat, 12)
          chat.dispose()
          return tokens
        }),
      )
      t.deepEqual(
        found,
        chats.map(({ prompt }) => [...prompt.greedy]),
      )
    })
  }

  test(`${name}: all logits of a run are the same as those of its parts, and runs stop and go on within a picture`, async t => {
    await using model = await visionModel(name, 'graph')
    using whole = open(model, two, 'one')
    using parts = open(model, two, 'two')
    const [rows] = (await model.run([{ sequence: whole }], { logits: 'all' })) as [Float32Array]
    const vocabulary = model.vocabularySize as number
    for (const end of [3, 8, 10, 27, two.tokens.length]) {
      parts.resume(two.tokens.slice(0, end))
      const [last] = (await model.run([{ sequence: parts }])) as [Float32Array]
      const row = rows.subarray((end - 1) * vocabulary, end * vocabulary)
      t.true(
        last.every((logit, id) => Math.abs(logit - (row[id] as number)) < 1e-4),
        `${end}`,
      )
    }
  })
}

test('embeddings in half floats are rounded rows, in all backends', async t => {
  const { two } = visionPrompts('qwen2-vl') as { two: VisionPrompt }
  const [decoder, embeddings] = [undefined, 'embed_tokens.onnx'].map(file =>
    withHalfEmbeds(readFileSync(visionFile('qwen2-vl', file))),
  ) as [Buffer, Buffer]
  await using whole = await visionModel('qwen2-vl', 'graph')
  const logits: Float32Array[] = []
  const small = { threads: 1, cache: { memoryBytes: 2 ** 22 } }
  const loaded = BACKENDS.map(backend => OnnxModel.load(decoder, { ...small, embeddings, backend }))
  for (const model of [whole, ...(await Promise.all(loaded))]) {
    using chat = model.open({ tokens: two.tokens, embeds: two.embeds })
    const [rows] = (await model.run([{ sequence: chat }], { logits: 'all' })) as [Float32Array]
    logits.push(rows)
    if (model !== whole) await model.dispose()
  }
  const [exact, rounded, ...others] = logits as [Float32Array, Float32Array, Float32Array]
  for (const other of others) t.true(distance(other, rounded) < 1e-4, `${distance(other, rounded)}`)
  const far = distance(rounded, exact)
  t.true(far > 1e-6 && far < 0.05, `${far}`)
})

test('the ids of a picture cannot become others', async t => {
  await using model = await visionModel('llama', 'graph')
  const { a } = visionPrompts('llama') as { a: VisionPrompt }
  using chat = open(model, a)
  await model.run([{ sequence: chat }])
  const look = (): unknown => [chat.length, [...chat.tokens]]
  const before = look()
  const edited = a.tokens.with(7, 60)
  const { details } = throwsCode(t, 'INVALID_ARGUMENT', () => chat.resume(edited))
  t.is(details.argument, 'tokens[7]')
  t.deepEqual(look(), before)
  chat.truncate(8)
  await rejected(read(model, chat, 1), 'INVALID_ARGUMENT')
  await rejected(read(model, chat, 1, { tokens: [60, 61] }), 'INVALID_ARGUMENT')
  await rejected(model.run([{ sequence: chat, tokens: [60] }]), 'INVALID_ARGUMENT')
  t.deepEqual(look(), [8, a.tokens.slice(0, 8)])
  await model.run([{ sequence: chat, tokens: [5] }])
  t.deepEqual(await read(model, chat, 12, { tokens: a.tokens.slice(9) }), [...a.greedy])
})

test('wrong spans are refused before anything is computed', async t => {
  await using model = await visionModel('qwen2-vl', 'graph')
  await using ids = await visionModel('llama', 'graph')
  const { a } = visionPrompts('qwen2-vl') as { a: VisionPrompt }
  const [span] = a.embeds as [VisionPrompt['embeds'][number]]
  const { data } = span
  const wrong = (embeds: unknown, argument: string, of = model): void => {
    const { details } = throwsCode(t, 'INVALID_ARGUMENT', () => of.open({ tokens: a.tokens, embeds: embeds as never }))
    t.is(details.argument, argument)
    const { details: admitted } = throwsCode(t, 'INVALID_ARGUMENT', () =>
      of.admit(a.tokens, { embeds: embeds as never }),
    )
    t.is(admitted.argument, argument)
  }
  wrong(span, 'embeds')
  wrong([{ ...span, start: 14 }], 'embeds')
  wrong([{ ...span, start: -1 }], 'embeds[0].start')
  wrong([span, { ...span, start: 11 }], 'embeds[1].start')
  wrong([{ ...span, start: 11 }, span], 'embeds[0].start')
  wrong([{ ...span, data: data.subarray(1) }], 'embeds[0].data.length')
  wrong([{ ...span, data: data.subarray(0, 0) }], 'embeds[0].data.length')
  wrong([{ ...span, data: [...data] }], 'embeds[0].data')
  wrong([{ start: 6, data }], 'embeds[0].key')
  wrong([{ ...span, key: '' }], 'embeds[0].key')
  wrong([{ ...span, key: 3 }], 'embeds[0].key')
  wrong([{ ...span, grid: [1, 2, 4] }], 'embeds[0].grid')
  wrong([{ ...span, grid: [6, 1] }], 'embeds[0].grid')
  wrong([{ ...span, grid: [1, 2, 2.5] }], 'embeds[0].grid[2]')
  wrong([{ ...span, rows: 6 }], 'embeds[0].rows')
  wrong([span], 'embeds[0].grid', ids)
  t.is(model.cache.freeCount, model.cache.totalCount)
  // A copy is kept: the caller's array may change.
  const own = data.slice()
  using chat = model.open({ tokens: a.tokens, embeds: [{ ...span, data: own }] })
  own.fill(7)
  t.deepEqual(await read(model, chat, 12), [...a.greedy])
  const { sequence } = model.admit(a.tokens, { embeds: a.embeds, answerTokens: 12 })
  using admitted = sequence as OnnxSequence
  t.is(admitted.length, 16)
  t.deepEqual(await read(model, admitted, 12), [...a.greedy])
})

test('rows of another width are refused: they have to end with the tokens of the picture', async t => {
  await using model = await visionModel('llama', 'graph')
  const { a, two } = visionPrompts('llama') as { a: VisionPrompt; two: VisionPrompt }
  const [span] = a.embeds as [VisionPrompt['embeds'][number]]
  const [width, rows, end] = [32, 6, 12]
  const refused = (embeds: readonly object[], argument: string, tokens = a.tokens): string => {
    const calls = [
      () => model.open({ tokens, embeds: embeds as never }),
      () => model.admit(tokens, { embeds: embeds as never }),
    ]
    const [opened, admitted] = calls.map(call => throwsCode(t, 'INVALID_ARGUMENT', call))
    t.is(opened?.message, admitted?.message)
    t.is(opened?.details.argument, argument)
    return opened?.message ?? ''
  }
  for (const other of [width / 2, 2 * width]) {
    const data = new Float32Array(rows * other)
    for (const more of [{}, { end }])
      t.is(
        refused([{ ...span, data, ...more }], 'embeds[0].data.length'),
        `embeds[0].data.length is ${rows * other}, expected ${rows * width}, ${rows} rows of ${width} numbers for the tokens 6 to 12${
          'end' in more ? '' : ', which have the id 5; pass end if the rows end elsewhere'
        }`,
      )
  }
  // The first of two pictures side by side ends where the second one starts.
  const tokens = [7, ...Array.from({ length: 6 }, () => 5), 8]
  const beside = [1, 4].map(start => ({ start, data: new Float32Array(3 * width), key: `${start}` }))
  model.open({ tokens, embeds: beside }).dispose()
  const [first, second] = beside as [(typeof beside)[0], (typeof beside)[0]]
  refused([second, { ...first, data: new Float32Array(width) }], 'embeds[1].data.length', tokens)
  // With an end, rows may replace any ids.
  using chat = model.open({ tokens: two.tokens, embeds: [{ ...span, start: 3, end: 9 }] })
  t.is(chat.length, 0)
  for (const wrong of [6, 5, -1, 1.5, '12']) refused([{ ...span, end: wrong }], 'embeds[0].end')
  t.is(model.cache.freeCount, model.cache.totalCount)
})
