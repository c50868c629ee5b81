// Whole models: every prompt of the references in every way to run every graph of the fixtures.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { isKvTideError, type ErrorCode } from '../../index.js'
import { type BackendName, OnnxModel, type OnnxModelOptions, type OnnxSequence } from '../../onnx.js'
import { distance, referenceLogits, references } from '../support/llama/references.js'
import { greedyOf, promptOf, read } from '../support/onnx/chat.js'
import { F16, F32, graphFile, INT4 } from '../support/onnx/paged-graph.js'

const prompts = Object.keys(references.prompts)
const SMALL = { memoryBytes: 2 ** 23 }
/** The references go on behind the end of the sequence, which p7 reaches. */
const PAST_END = { ignoreEndOfSequence: true }

const load = (name: string, options: OnnxModelOptions = {}): Promise<OnnxModel> =>
  OnnxModel.load(graphFile(name), { threads: 2, cache: SMALL, ...options })

async function codeOf(promise: Promise<unknown>): Promise<ErrorCode | undefined> {
  try {
    await promise
  } catch (error) {
    if (isKvTideError(error)) return error.code
    throw error
  }
  return undefined
}

/** The tokens of the runtime alone after each prompt, with the graph of int4 weights. */
const int4 = (
  JSON.parse(readFileSync(graphFile(INT4).replace('model.onnx', 'check.json'), 'utf8')) as {
    readonly 'python_ort_1.30.0': { readonly own_greedy: Record<string, number[]> }
  }
)['python_ort_1.30.0'].own_greedy

for (const backend of ['graph', 'parts', 'plain'] satisfies BackendName[]) {
  test(`${backend}, int4: the tokens are its own`, async t => {
    await using model = await load(INT4, { backend })
    let [same, of] = [0, 0]
    for (const [prompt, tokens] of Object.entries(int4)) {
      using sequence = model.open({ tokens: promptOf(prompt) })
      for (const [place, token] of tokens.entries()) {
        const [logits] = (await model.run([
          { sequence, tokens: place === 0 ? [] : [tokens[place - 1] as number] },
        ])) as [Float32Array]
        same += logits.indexOf(Math.max(...logits)) === token ? 1 : 0
        of += 1
      }
    }
    // Its products round activations to 8 bits: the last bit of an attention may turn a token that is nearly two.
    t.true(of === 320 && same >= 316, `${same} of ${of}`)
  })

  for (const name of [...F32, F16]) {
    const wanted = greedyOf
    const close = name === F16 ? 0.1 : 1e-4

    test(`${backend}, ${name}: logits of all prompts, alone and all at once`, async t => {
      await using model = await load(name, { backend })
      t.is(model.backend, backend)
      t.is(model.vocabularySize, 320)
      const alone: Float32Array[] = []
      for (const prompt of prompts) {
        using sequence = model.open()
        const [logits] = (await model.run([{ sequence, tokens: promptOf(prompt) }], { logits: 'all' })) as [
          Float32Array,
        ]
        alone.push(logits)
        t.true(distance(logits, referenceLogits(`logits.${prompt}`)) < close, prompt)
      }
      const sequences = prompts.map((_, place) => model.open({ salt: `${place}` }))
      const together = await model.run(
        sequences.map((sequence, place) => ({ sequence, tokens: promptOf(prompts[place] as string) })),
      )
      for (const [place, logits] of together.entries())
        t.true(distance(logits, (alone[place] as Float32Array).subarray(-320)) < close, prompts[place])
      sequences.forEach(sequence => sequence.dispose())
    })

    test(`${backend}, ${name}: 64 tokens after each prompt, alone, batched, found again, forked and cut`, async t => {
      await using model = await load(name, { backend })
      using first = model.open({ tokens: promptOf('p33') })
      t.deepEqual(await read(model, first, 64), wanted('p33'))
      const chats = prompts.map(prompt => model.open({ tokens: promptOf(prompt) }))
      t.is(chats[prompts.indexOf('p33')]?.length, 32, 'it is found again')
      t.deepEqual(await Promise.all(chats.map(chat => read(model, chat, 64, PAST_END))), prompts.map(wanted))
      using hundred = model.open({ tokens: promptOf('p100') })
      t.is(hundred.length, 96)
      using fork = hundred.fork()
      fork.truncate(60)
      const [found, branch] = await Promise.all([
        read(model, hundred, 64),
        read(model, fork, 64, { tokens: promptOf('branch60').slice(60) }),
      ])
      t.deepEqual(found, wanted('p100'))
      t.deepEqual(branch, wanted('branch60'))
      for (const chat of chats) {
        const prompt = prompts[chats.indexOf(chat)] as string
        chat.truncate(promptOf(prompt).length + 20)
        t.deepEqual(await read(model, chat, 44, PAST_END), wanted(prompt).slice(20), `${prompt}, cut and gone on with`)
        chat.dispose()
      }
    })

    test(`${backend}, ${name}: drafts from the text so far change nothing`, async t => {
      await using model = await load(name, { backend })
      const chats = prompts.map(prompt => model.open({ tokens: promptOf(prompt) }))
      const found = await Promise.all(chats.map(chat => read(model, chat, 64, { ...PAST_END, draft: 'lookup' })))
      t.deepEqual(found, prompts.map(wanted))
      chats.forEach(chat => chat.dispose())
    })
  }
}

test('the first way that works is taken', async t => {
  await using model = await load('onnx')
  t.is(model.backend, 'graph')
  t.deepEqual(model.refusals, [])
})

test('bytes are a model too', async t => {
  await using model = await OnnxModel.load(readFileSync(graphFile('onnx-gqa-f32')), { cache: SMALL })
  using chat = model.open({ tokens: promptOf('p7') })
  t.deepEqual(await read(model, chat, 16), greedyOf('p7').slice(0, 16))
})

test('low-bit pages under a graph of floats', async t => {
  for (const format of ['q8'] as const) {
    await using model = await load('onnx', { cache: { ...SMALL, keyFormat: format, valueFormat: format } })
    using sequence = model.open()
    const [logits] = (await model.run([{ sequence, tokens: promptOf('p100') }], { logits: 'all' })) as [Float32Array]
    const off = distance(logits, referenceLogits('logits.p100'))
    t.true(off > 0 && off < 1, `${format} is off by ${off}`)
  }
})

test('a stop token ends it, and is not part of the sequence; the chat goes on', async t => {
  await using model = await load('onnx')
  using chat = model.open({ tokens: promptOf('p33') })
  const stop = greedyOf('p33')[10] as number
  const end = greedyOf('p33').indexOf(stop)
  const generation = model.generate(chat, { stop: [stop] })
  const tokens: number[] = []
  for await (const token of generation) tokens.push(token)
  t.deepEqual(tokens, greedyOf('p33').slice(0, end))
  t.is(generation.finishReason, 'stop')
  t.deepEqual([...chat.tokens], [...promptOf('p33'), ...tokens])
  t.deepEqual(await read(model, chat, 64 - end), greedyOf('p33').slice(end))
})

test('a loop that is left has what it was given', async t => {
  await using model = await load('onnx')
  using chat = model.open({ tokens: promptOf('p33') })
  for await (const token of model.generate(chat)) if (token === greedyOf('p33')[4]) break
  const given = [...chat.tokens].slice(33)
  t.deepEqual(given, greedyOf('p33').slice(0, given.length))
  t.deepEqual(await read(model, chat, 64 - given.length), greedyOf('p33').slice(given.length))
})

test('a slow reader rests after sixteen tokens', async t => {
  await using model = await load('onnx')
  using chat = model.open({ tokens: promptOf('p7') })
  const generation = model.generate(chat)
  await generation.next()
  let length = 0
  while (chat.length > length) {
    length = chat.length
    for (let turn = 0; turn < 20; turn++) await model.between(() => undefined)
  }
  t.true(length <= 7 + 1 + 16, `${length} tokens`)
  await generation.return()
  t.is(chat.tokens.length, 8)
})

test('a sequence is generated by one at a time; others may fork it meanwhile', async t => {
  await using model = await load('onnx')
  using chat = model.open({ tokens: promptOf('p33') })
  const generation = model.generate(chat, { maxTokens: 20 })
  const first = await generation.next()
  t.is(await codeOf(model.generate(chat).next()), 'BUSY')
  t.is(await codeOf(model.run([{ sequence: chat, tokens: [3] }])), 'BUSY')
  t.throws(() => chat.truncate(3), { code: 'BUSY' })
  using fork = await model.between(() => chat.fork())
  t.deepEqual([...fork.tokens], [...promptOf('p33'), first.value])
  const rest: number[] = []
  for await (const token of generation) rest.push(token)
  t.deepEqual([first.value, ...rest], greedyOf('p33').slice(0, 20))
  t.deepEqual(await read(model, fork, 19), greedyOf('p33').slice(1, 20))
})

test('snapshots and transactions bring ids back', async t => {
  await using model = await load('onnx')
  using chat = model.open({ tokens: promptOf('p33') })
  using kept = chat.snapshot()
  await read(model, chat, 8)
  chat.restore(kept)
  t.deepEqual([...chat.tokens], promptOf('p33'))
  {
    using draft = chat.begin()
    t.deepEqual(await read(model, chat, 8), greedyOf('p33').slice(0, 8))
    draft.rollback()
  }
  t.deepEqual([...chat.tokens], promptOf('p33'))
  t.deepEqual(await read(model, chat, 8), greedyOf('p33').slice(0, 8))
})

test('resume takes an edited history, and computes only what differs', async t => {
  await using model = await load('onnx')
  using chat = model.open({ tokens: promptOf('p100'), salt: 'own' })
  await read(model, chat, 8)
  t.is(chat.resume(promptOf('branch60')), 60)
  t.deepEqual([[...chat.tokens], chat.length], [promptOf('branch60'), 60])
  t.deepEqual(await read(model, chat, 64), greedyOf('branch60'))
  t.is(chat.resume(promptOf('branch60')), promptOf('branch60').length - 1)
  t.deepEqual(await read(model, chat, 64), greedyOf('branch60'))
  t.deepEqual([chat.resume([]), chat.length, chat.tokens.length], [0, 0, 0])
  t.is(chat.resume(promptOf('p33')), 0)
  const running = model.generate(chat, { maxTokens: 8 })
  await running.next()
  t.throws(() => chat.resume([1, 2]), { code: 'BUSY' })
  await running.return()
  t.throws(() => chat.resume([1, 320]), { code: 'INVALID_ARGUMENT', message: /tokens\[1\]/ })
  t.deepEqual([...chat.tokens].slice(0, 33), promptOf('p33'))
})

test('who is admitted has room to the end of the answer', async t => {
  await using model = await load('onnx', { cache: { capacity: 12, blockSize: 16 } })
  const { sequence, lacking } = model.admit(promptOf('p100'), { salt: 'one', answerTokens: 64 })
  t.is(lacking, undefined)
  using chat = sequence as OnnxSequence
  t.deepEqual([chat.length, chat.tokens.length, model.cache.freeCount], [0, 100, 1])
  t.deepEqual(model.admit(promptOf('p33'), { answerTokens: 64 }).lacking, { group: 0, needed: 7, free: 1, total: 12 })
  t.deepEqual(await read(model, chat, 64), greedyOf('p100'))
  chat.dispose()
  using again = model.admit(promptOf('branch60'), { salt: 'one', answerTokens: 64 }).sequence as OnnxSequence
  t.is(again.length, 48)
  t.deepEqual(await read(model, again, 64), greedyOf('branch60'))
  t.throws(() => model.admit([1, 320]), { code: 'INVALID_ARGUMENT' })
})

test('log-probabilities of each token', async t => {
  await using model = await load('onnx')
  using chat = model.open({ tokens: promptOf('p7') })
  const generation = model.generate(chat, { maxTokens: 3, logprobs: 2 })
  for await (const token of generation) {
    t.is(generation.logprobs?.token, token)
    t.is(generation.logprobs?.top.length, 2)
    t.is(generation.logprobs?.top[0]?.token, token)
  }
})

test('what is disposed of is refused', async t => {
  const model = await load('onnx')
  const [chat, other] = [model.open({ tokens: promptOf('p33') }), model.open({ tokens: promptOf('p7') })]
  const running = read(model, chat, 64)
  const first = model.generate(other, { maxTokens: 64 })
  await first.next()
  other.dispose()
  t.is(
    await codeOf(
      (async () => {
        for await (const _ of first) continue
      })(),
    ),
    'DISPOSED',
  )
  const ended = model.dispose()
  t.is(await codeOf(running), 'DISPOSED')
  await ended
  t.throws(() => model.open(), { code: 'DISPOSED' })
})

test('wrong arguments are refused before anything happens', async t => {
  t.is(await codeOf(OnnxModel.load('/nowhere/model.onnx')), 'INVALID_ARGUMENT')
  t.is(await codeOf(OnnxModel.load(graphFile('onnx'), { backend: 'magic' as never })), 'INVALID_ARGUMENT')
  t.is(await codeOf(OnnxModel.load(graphFile('onnx'), { config: '/nowhere/config.json' })), 'INVALID_ARGUMENT')
  t.is(await codeOf(OnnxModel.load(new Uint8Array([1, 2, 3]))), 'INVALID_GRAPH')
  await using model = await load('onnx')
  t.throws(() => model.open({ tokens: [320] }), {
    code: 'INVALID_ARGUMENT',
    message: /tokens\[0\] is 320, expected a token from 0 to below 320/,
  })
  using chat = model.open()
  t.throws(() => model.generate(chat, { maxTokens: 0 }), { code: 'INVALID_ARGUMENT' })
  t.throws(() => model.generate({} as never), { code: 'INVALID_ARGUMENT' })
  t.is(await codeOf(model.generate(chat).next()), 'INVALID_ARGUMENT')
  t.is(await codeOf(model.run([{ sequence: chat }])), 'INVALID_ARGUMENT')
  t.is(
    await codeOf(
      model.run([
        { sequence: chat, tokens: [1] },
        { sequence: chat, tokens: [1] },
      ]),
    ),
    'INVALID_ARGUMENT',
  )
  t.is(chat.tokens.length, 0)
})
