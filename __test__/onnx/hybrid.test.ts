// Models whose layers keep states beside keys and values: every sequence gets the tokens that it gets alone, token by token, however it came to where it is, on every
// backend.
import { isKvTideError } from '../../index.js'
import { type BackendName, type OnnxModelOptions, OnnxModel } from '../../onnx.js'
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
import { linearFollowing, linearGraph, linearGreedy } from '../support/onnx/linear-graph.js'

const tokensOf = (seed: number, length: number): number[] =>
  Array.from({ length }, (_, at) => (at * at * (seed + 1) + at * 5 + seed) % (VOCABULARY - 1))
const prompt = tokensOf(1, 45)

/** A graph, and its tokens in plain code. */
interface Toy {
  readonly graph: typeof hybridGraph
  readonly following: typeof following
  readonly greedy: typeof greedy
}

/** Its recurrences are hashes, which plain alone computes. */
const HASHES: Toy = { graph: hybridGraph, following, greedy }
/** Its recurrences are linear attentions. */
const LINEAR: Toy = { graph: linearGraph, following: linearFollowing, greedy: linearGreedy }

const ON: Readonly<Record<string, { readonly toy: Toy; readonly backend: BackendName }>> = {
  'hashes on plain': { toy: HASHES, backend: 'plain' },
  'linear attention on parts': { toy: LINEAR, backend: 'parts' },
  'linear attention on graph': { toy: LINEAR, backend: 'graph' },
}

const loadToy = (toy: Toy, form: HybridForm = {}, { cache, ...options }: OnnxModelOptions = {}): Promise<OnnxModel> =>
  OnnxModel.load(toy.graph(form), {
    threads: 1,
    maxStepTokens: 16,
    ...options,
    cache: { blockSize: 8, capacity: 200, ...cache },
  })

const forms: Readonly<Record<string, HybridForm>> = {
  'keys and values beside states': {},
  'states in half floats': { isHalf: true, names: STATES },
  'logits of the last token alone': { isPruned: true, names: BUILDER },
  'no attention': { hasAttention: false },
}

test('a graph with states of an unknown form runs on plain, and the others name the node', async t => {
  await using model = await loadToy(HASHES)
  t.is(model.backend, 'plain')
  t.deepEqual(
    model.refusals.map(({ backend }) => backend),
    ['graph', 'parts'],
  )
  for (const { error } of model.refusals) {
    t.true(isKvTideError(error) && error.code === 'UNSUPPORTED_GRAPH')
    t.is((error.details as { kind: string }).kind, 'state')
  }
  await t.throwsAsync(loadToy(HASHES, {}, { backend: 'graph' }), {
    code: 'UNSUPPORTED_GRAPH',
    message: /past_recurrent\.2/,
  })
})

test('all backends have the same layers, states and blocks', async t => {
  for (const form of Object.values(forms)) {
    const [first, ...others] = await Promise.all(
      ([undefined, 'graph', 'parts', 'plain'] as const).map(backend =>
        loadToy(LINEAR, form, backend === undefined ? {} : { backend }),
      ),
    )
    t.is(first?.backend, 'graph')
    const states = first?.layers.at(-1) as unknown as { kind: string; tensors: { layer: number; name: string }[] }
    t.is(states.kind, 'state')
    t.deepEqual(
      states.tensors.map(({ layer, name }) => `${layer} ${name}`),
      ['0 conv', '1 conv', '2 recurrent', '3 conv', '3 ssm'],
    )
    for (const other of others) {
      t.deepEqual(other.layers, first?.layers as never)
      t.deepEqual(other.cache.form, first?.cache.form as never)
      await other.dispose()
    }
    await first?.dispose()
  }
})

for (const [where, { toy, backend }] of Object.entries(ON)) {
  const load = (form: HybridForm = {}, options: OnnxModelOptions = {}): Promise<OnnxModel> =>
    loadToy(toy, form, { backend, ...options })
  const behind = (ids: readonly number[], count: number): number[] => toy.greedy(ids, count)

  for (const [title, form] of Object.entries(forms)) {
    const says = (ids: readonly number[], count: number): number[] => toy.greedy(ids, count, form.hasAttention)

    test(`${where}: alone, beside others, forked, truncated, resumed and found: ${title}`, async t => {
      await using model = await load(form)
      const chat = model.open({ tokens: prompt })
      const [rows] = (await model.run([{ sequence: chat }], { logits: 'all' })) as [Float32Array]
      const each = Array.from({ length: prompt.length }, (_, at) =>
        argmax(rows.subarray(at * VOCABULARY, (at + 1) * VOCABULARY)),
      )
      t.deepEqual(each, toy.following(prompt, form.hasAttention))
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

  test(`${where}: drafts: what is accepted of them counts, whichever part it is`, async t => {
    await using model = await load()
    for (const slip of [2, 3, 7, undefined]) {
      await using draft = await load(slip === undefined ? {} : { slip })
      const prompts = [9, 20, 33].map((length, seed) => tokensOf(seed + 4, length))
      const chats = prompts.map(tokens => model.open({ tokens, salt: `${slip}` }))
      const said = await Promise.all(chats.map(chat => read(model, chat, 24, { draft })))
      t.deepEqual(
        said,
        prompts.map(ids => behind(ids, 24)),
        `one in ${slip} of the drafts is wrong`,
      )
      const looked = await Promise.all(chats.map(chat => read(model, chat, 12, { draft: { lookup: 4 } })))
      t.deepEqual(
        looked,
        prompts.map((ids, at) => behind([...ids, ...(said[at] as number[])], 12)),
      )
      for (const chat of chats) chat.dispose()
    }
    model.cache.checkInvariants()
  })

  test(`${where}: accepted drafts are computed once where the states between them are kept`, async t => {
    await using model = await load()
    for (const slip of [2, 3]) {
      await using draft = await load({ slip })
      using chat = model.open({ tokens: prompt, salt: `${slip}` })
      const generation = model.generate(chat, { draft, maxTokens: 24, ignoreEndOfSequence: true })
      const said: number[] = []
      for await (const token of generation) said.push(token)
      t.deepEqual(said, behind(prompt, 24))
      const { computedTokens, draftedTokens, acceptedTokens } = generation.usage
      const once = prompt.length + 23 - acceptedTokens + draftedTokens
      t.true(acceptedTokens > 0 && acceptedTokens < draftedTokens)
      if (backend === 'plain') t.true(computedTokens > once, `${computedTokens} of ${once} tokens`)
      else t.is(computedTokens, once)
    }
    using chat = model.open({ tokens: prompt })
    await model.run([{ sequence: chat }])
    const draft = chat.begin()
    await model.run([{ sequence: chat, tokens: [1, 2, 3, 4] }])
    if (backend === 'plain') {
      const error = t.throws(() => draft.commit(2))
      t.true(isKvTideError(error) && error.code === 'CANNOT_ROLL_BACK', String(error))
      draft.rollback()
    } else {
      draft.commit(2)
      t.deepEqual([...chat.tokens], [...prompt, 1, 2])
      using same = model.open({ tokens: [...prompt, 1, 2], salt: 'the same tokens' })
      await model.run([{ sequence: same }])
      t.deepEqual(chat.states(), same.states())
      t.deepEqual(await read(model, chat, 9), behind([...prompt, 1, 2], 9))
    }
    model.cache.checkInvariants()
  })

  test(`${where}: a reader that stops early leaves the tokens that it has read`, async t => {
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
    t.deepEqual(await read(model, chat, 9), behind([...prompt, ...got], 9))
  })

  test(`${where}: transactions and snapshots bring back tokens with their states`, async t => {
    await using model = await load()
    using chat = model.open({ tokens: prompt })
    const first = await read(model, chat, 5)
    const before = [...prompt, ...first]
    const snapshot = chat.snapshot()
    const draft = chat.begin()
    await model.run([{ sequence: chat, tokens: [1, 2, 3] }])
    draft.rollback()
    t.deepEqual([...chat.tokens], before)
    t.deepEqual(await read(model, chat, 6), behind(before, 6))
    chat.restore(snapshot)
    t.deepEqual([...chat.tokens], before)
    using kept = chat.begin()
    await model.run([{ sequence: chat, tokens: [4, 5] }])
    kept.commit()
    t.deepEqual(await read(model, chat, 6), behind([...before, 4, 5], 6))
  })

  test(`${where}: a state that is not a number refuses its sequence alone`, async t => {
    await using model = await load()
    const [good, bad] = [model.open({ tokens: prompt }), model.open({ tokens: [...prompt.slice(0, 30), POISON] })]
    const [said, error] = await Promise.all([
      read(model, good, 20),
      read(model, bad, 20).then(
        () => undefined,
        (refusal: unknown) => refusal,
      ),
    ])
    t.deepEqual(said, behind(prompt, 20))
    t.true(isKvTideError(error) && error.code === 'RUNTIME_FAILED', String(error))
    t.regex((error as Error).message, /conv.*0 has a value that is not a number/)
    bad.truncate(30)
    t.deepEqual(await read(model, bad, 9), behind(prompt.slice(0, 30), 9), 'it goes on without the token')
  })

  test(`${where}: too few blocks: sequences wait for each other, and lose nothing`, async t => {
    await using model = await load({}, { cache: { blockSize: 4, capacity: 40 } })
    const prompts = Array.from({ length: 8 }, (_, seed) => tokensOf(seed, 10 + 5 * seed))
    const chats = prompts.map(tokens => model.open({ tokens }))
    const said = await Promise.all(
      chats.map(async (chat, at) => {
        const got = await read(model, chat, 25)
        t.deepEqual(got, behind(prompts[at] as number[], 25))
        chat.dispose()
        return got.length
      }),
    )
    t.deepEqual(new Set(said), new Set([25]))
    model.cache.checkInvariants()
  })

  test(`${where}: a sequence with states is saved and loaded`, async t => {
    await using model = await load()
    using chat = model.open({ tokens: prompt })
    const said = await read(model, chat, 10)
    const bytes = await chat.saveBytes()
    await using other = await load()
    using loaded = await other.loadSequence(bytes)
    t.deepEqual([...loaded.tokens], [...prompt, ...said])
    t.true(loaded.length >= 40)
    t.deepEqual(await read(other, loaded, 9), behind([...prompt, ...said], 9))
  })

  test(`${where}: another question about a long text continues right before the first one, and short turns find what came before`, async t => {
    await using model = await load({}, { maxStepTokens: 1024 })
    const text = tokensOf(1, 600)
    const [one, two] = [tokensOf(2, 12), tokensOf(3, 12)].map(question => [...text, 0, ...question]) as [
      number[],
      number[],
    ]
    using first = model.open({ tokens: one })
    t.deepEqual(await read(model, first, 1), behind(one, 1))
    using second = model.open({ tokens: two })
    t.is(second.length, 592)
    t.deepEqual(await read(model, second, 3), behind(two, 3))

    // Tokens of runs leave no checkpoints of answers.
    using notes = model.open({ salt: 'notes' })
    const all: number[] = []
    for (let turn = 0; turn < 8; turn++) {
      const tokens = tokensOf(turn, 45)
      all.push(...tokens)
      await model.run([{ sequence: notes, tokens }])
      using again = model.open({ tokens: all, salt: 'notes' })
      t.true(again.length >= all.length - 128 - 8, `${again.length} of ${all.length} tokens are found`)
    }
    t.deepEqual(await read(model, notes, 3, { tokens: [1] }), behind([...all, 1], 3))
  })
}

test('what one backend has saved goes on with the others', async t => {
  const models = await Promise.all(
    (['graph', 'parts', 'plain'] as const).map(backend => loadToy(LINEAR, {}, { backend })),
  )
  for (const from of models) {
    using chat = from.open({ tokens: prompt, salt: from.backend })
    const said = await read(from, chat, 10)
    const bytes = await chat.saveBytes()
    for (const to of models) {
      using loaded = await to.loadSequence(bytes, { salt: from.backend })
      t.deepEqual([...loaded.tokens], [...prompt, ...said])
      t.true(loaded.length >= 40)
      const more = LINEAR.greedy([...prompt, ...said], 9)
      t.deepEqual(await read(to, loaded, 9), more, `${from.backend} to ${to.backend}`)
    }
  }
  for (const model of models) await model.dispose()
})
