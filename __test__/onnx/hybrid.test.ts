// Models whose layers keep states beside keys and values: every sequence gets the tokens that it gets alone, token by token, however it came to where it is.
import { isKvTideError } from '../../index.js'
import { type OnnxModelOptions, OnnxModel } from '../../onnx.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { read } from '../support/onnx/chat.js'
import { argmax } from '../support/onnx/graphs.js'
import {
  BUILDER,
  following,
  greedy,
  hybridGraph,
  type HybridForm,
  POISON,
  STATES,
  VOCABULARY,
} from '../support/onnx/hybrid-graph.js'

const tokensOf = (seed: number, length: number): number[] =>
  Array.from({ length }, (_, at) => (at * at * (seed + 1) + at * 5 + seed) % (VOCABULARY - 1))
const prompt = tokensOf(1, 45)

const load = (form: HybridForm = {}, options: OnnxModelOptions = {}): Promise<OnnxModel> =>
  OnnxModel.load(hybridGraph(form), {
    threads: 1,
    maxStepTokens: 16,
    ...options,
    cache: { blockSize: 8, capacity: 200, ...options.cache },
  })

const forms: Readonly<Record<string, HybridForm>> = {
  'keys and values beside states': {},
  'states in half floats': { isHalf: true, names: STATES },
  'logits of the last token alone': { isPruned: true, names: BUILDER },
  'no attention': { hasAttention: false },
}

test('a graph with states runs on plain, and the others name the first state', async t => {
  await using model = await load()
  t.is(model.backend, 'plain')
  t.deepEqual(
    model.refusals.map(({ backend }) => backend),
    ['graph', 'parts'],
  )
  for (const { error } of model.refusals) {
    t.true(isKvTideError(error) && error.code === 'UNSUPPORTED_GRAPH')
    const { node, kind } = error.details as { node: string; kind: string }
    t.deepEqual([node, kind], ['past_conv.0', 'state'])
  }
  const states = model.layers.at(-1) as unknown as {
    kind: string
    bytes: number
    tensors: { layer: number; name: string }[]
  }
  t.is(states.kind, 'state')
  t.deepEqual(
    states.tensors.map(({ layer, name }) => `${layer} ${name}`),
    ['0 conv', '1 conv', '2 recurrent', '3 conv', '3 ssm'],
  )
  await t.throwsAsync(load({}, { backend: 'graph' }), {
    code: 'UNSUPPORTED_GRAPH',
    message: /past_conv\.0 .*it is a state of a layer/,
  })
})

for (const [title, form] of Object.entries(forms)) {
  const says = (ids: readonly number[], count: number): number[] => greedy(ids, count, form.hasAttention)

  test(`alone, beside others, forked, truncated, resumed and found: ${title}`, async t => {
    await using model = await load(form)
    const chat = model.open({ tokens: prompt })
    const [rows] = (await model.run([{ sequence: chat }], { logits: 'all' })) as [Float32Array]
    const each = Array.from({ length: prompt.length }, (_, at) =>
      argmax(rows.subarray(at * VOCABULARY, (at + 1) * VOCABULARY)),
    )
    t.deepEqual(each, following(prompt, form.hasAttention))
    t.deepEqual(await read(model, chat, 20), says(prompt, 20))
    const all = [...chat.tokens]

    // Beside others, of other lengths, in steps that are too short for all of them.
    const prompts = [3, 20, 31, 50, 1].map((length, seed) => tokensOf(seed + 2, length))
    const chats = prompts.map(tokens => model.open({ tokens }))
    const fork = chat.fork()
    const said = await Promise.all([...chats, fork].map(one => read(model, one, 15)))
    t.deepEqual(
      said,
      [...prompts, all].map(tokens => says(tokens, 15)),
    )
    t.deepEqual(await read(model, chat, 4), says(all, 4), 'the fork has changed nothing')

    // Between two steps there is no state: the sequence goes back further, and computes from there.
    const now = [...chat.tokens]
    for (const length of [now.length - 2, 50, 33, 32, 7, 0]) {
      const cut = chat.fork()
      cut.truncate(length)
      t.true(cut.length <= length)
      t.deepEqual([...cut.tokens], now.slice(0, length))
      const more = tokensOf(9, 3)
      t.deepEqual(
        await read(model, cut, 8, { tokens: more }),
        says([...now.slice(0, length), ...more], 8),
        `cut at ${length}`,
      )
      cut.dispose()
    }

    const edited = [...now.slice(0, 40), 5, 6, 7, 8]
    t.true(chat.resume(edited) <= 40)
    t.deepEqual(await read(model, chat, 8), says(edited, 8))

    // A second prompt finds the states of the last step that ended with a block.
    const { hitTokens } = model.cache.stats()
    const again = [...prompt.slice(0, 40), ...tokensOf(11, 9)]
    const second = model.open({ tokens: again })
    t.true(second.length >= 32, `${second.length} tokens are found`)
    t.true(model.cache.stats().hitTokens > hitTokens)
    t.deepEqual(await read(model, second, 12), says(again, 12))
    for (const one of [chat, fork, second, ...chats]) one.dispose()
    model.cache.checkInvariants()
    t.is(model.cache.sequenceIds().length, 0)
  })
}

test('a fork that was cut and went on otherwise has the states of its own tokens when it is cut again', async t => {
  await using model = await load()
  using chat = model.open({ tokens: prompt, checkpoints: [16, 24] })
  await model.run([{ sequence: chat }])
  using fork = chat.fork()
  fork.truncate(20)
  t.is(fork.length, 16, 'the last state before')
  const more = tokensOf(9, 30)
  await model.run([{ sequence: fork, tokens: more }])
  const own = [...prompt.slice(0, 20), ...more.slice(0, 8)]
  fork.truncate(own.length)
  t.deepEqual(await read(model, fork, 8), greedy(own, 8))
  t.deepEqual(await read(model, chat, 8), greedy(prompt, 8))
})

test('drafts: what is accepted of them counts, whichever part it is', async t => {
  await using model = await load()
  for (const slip of [2, 3, 7, undefined]) {
    await using draft = await load(slip === undefined ? {} : { slip })
    const prompts = [9, 20, 33].map((length, seed) => tokensOf(seed + 4, length))
    const chats = prompts.map(tokens => model.open({ tokens, salt: `${slip}` }))
    const said = await Promise.all(chats.map(chat => read(model, chat, 24, { draft })))
    t.deepEqual(
      said,
      prompts.map(tokens => greedy(tokens, 24)),
      `one in ${slip} of the drafts is wrong`,
    )
    const looked = await Promise.all(chats.map(chat => read(model, chat, 12, { draft: { lookup: 4 } })))
    t.deepEqual(
      looked,
      prompts.map((tokens, at) => greedy([...tokens, ...(said[at] as number[])], 12)),
    )
    for (const chat of chats) chat.dispose()
  }
  model.cache.checkInvariants()
})

test('a reader that stops early leaves the tokens that it has read', async t => {
  await using model = await load()
  using chat = model.open({ tokens: prompt })
  const got: number[] = []
  for await (const token of model.generate(chat, { maxTokens: 30, draft: { lookup: 3 } })) {
    got.push(token)
    if (got.length === 7) break
  }
  t.deepEqual([...chat.tokens], [...prompt, ...got])
  using same = model.open({ tokens: chat.tokens.slice(0, chat.length), salt: 'the same tokens' })
  await model.run([{ sequence: same }])
  t.deepEqual(chat.states(), same.states(), 'its states are those after its length')
  t.deepEqual(await read(model, chat, 9), greedy([...prompt, ...got], 9))
})

test('transactions and snapshots bring back tokens with their states', async t => {
  await using model = await load()
  using chat = model.open({ tokens: prompt })
  const first = await read(model, chat, 5)
  const before = [...prompt, ...first]
  const snapshot = chat.snapshot()
  const draft = chat.begin()
  await model.run([{ sequence: chat, tokens: [1, 2, 3] }])
  draft.rollback()
  t.deepEqual([...chat.tokens], before)
  t.deepEqual(await read(model, chat, 6), greedy(before, 6))
  chat.restore(snapshot)
  t.deepEqual([...chat.tokens], before)
  using kept = chat.begin()
  await model.run([{ sequence: chat, tokens: [4, 5] }])
  kept.commit()
  t.deepEqual(await read(model, chat, 6), greedy([...before, 4, 5], 6))
})

test('a state that is not a number refuses its sequence alone', async t => {
  await using model = await load()
  const [good, bad] = [model.open({ tokens: prompt }), model.open({ tokens: [...prompt.slice(0, 30), POISON] })]
  const [said, error] = await Promise.all([
    read(model, good, 20),
    read(model, bad, 20).then(
      () => undefined,
      (refusal: unknown) => refusal,
    ),
  ])
  t.deepEqual(said, greedy(prompt, 20))
  t.true(isKvTideError(error) && error.code === 'RUNTIME_FAILED', String(error))
  t.regex((error as Error).message, /present_conv\.0 has a value that is not a number/)
  bad.truncate(30)
  t.deepEqual(await read(model, bad, 9), greedy(prompt.slice(0, 30), 9), 'it goes on without the token')
})

test('too few blocks: sequences wait for each other, and lose nothing', async t => {
  await using model = await load({}, { cache: { blockSize: 4, capacity: 40 } })
  const prompts = Array.from({ length: 8 }, (_, seed) => tokensOf(seed, 10 + 5 * seed))
  const chats = prompts.map(tokens => model.open({ tokens }))
  const said = await Promise.all(
    chats.map(async (chat, at) => {
      const tokens = await read(model, chat, 25)
      t.deepEqual(tokens, greedy(prompts[at] as number[], 25))
      chat.dispose()
      return tokens.length
    }),
  )
  t.deepEqual(new Set(said), new Set([25]))
  model.cache.checkInvariants()
})

test('a sequence with states is saved and loaded', async t => {
  await using model = await load()
  using chat = model.open({ tokens: prompt })
  const said = await read(model, chat, 10)
  const bytes = await chat.saveBytes()
  await using other = await load()
  using loaded = await other.loadSequence(bytes)
  t.deepEqual([...loaded.tokens], [...prompt, ...said])
  t.true(loaded.length >= 40)
  t.deepEqual(await read(other, loaded, 9), greedy([...prompt, ...said], 9))
})
