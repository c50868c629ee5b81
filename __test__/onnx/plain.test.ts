// Graphs as they are, one sequence after the other, with keys and values in a cache.
import test from 'ava'

import { isKvTideError, PagedKvCache, type ModelDescription, type Sequence } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { pastLayers } from '../../lib/onnx/past-layers.js'
import { plainPorts } from '../../lib/onnx/plain.js'
import { SessionBackend } from '../../lib/onnx/session-backend.js'
import { argmax, graphFile, referenceOf } from '../support/onnx/graphs.js'

interface Plain {
  readonly cache: PagedKvCache
  readonly backend: SessionBackend
}

/** A graph with a cache of its layers. */
async function open(graph: string, declared: Parameters<typeof pastLayers>[1] = {}): Promise<Plain> {
  const native = await binding.NativeOnnxGraph.open(graphFile(graph))
  const model: ModelDescription = { layers: pastLayers(plainPorts(native), declared) }
  const dtype = graph.endsWith('f16') ? 'f16' : 'f32'
  const cache = new PagedKvCache({ model, dtype, blockSize: 4, capacity: 400 })
  return { cache, backend: await SessionBackend.plain(native, cache, { threads: 1 }) }
}

interface Chat {
  sequence: Sequence
  ids: number[]
}

/** One step as the scheduler makes it; gives the rows that are wanted, by default the last of each sequence. */
async function step(
  { cache, backend }: Plain,
  chats: readonly (readonly [Chat, readonly number[]])[],
  all = false,
): Promise<Float32Array[]> {
  const offsets = Int32Array.from([
    0,
    ...chats.map((_, place) => chats.slice(0, place + 1).reduce((sum, [, tokens]) => sum + tokens.length, 0)),
  ])
  const ids = Uint32Array.from(chats.flatMap(([, tokens]) => tokens))
  using begun = cache.beginStep({ sequences: chats.map(([{ sequence }]) => sequence), offsets, tokens: ids })
  const logits = await backend.run({
    step: begun,
    offsets,
    ids,
    sequences: chats.map(([{ sequence, ids: before }]) => ({ sequence, before: Uint32Array.from(before) })),
    positions: Int32Array.from(
      chats.flatMap(([{ ids: before }, tokens]) => tokens.map((_, place) => before.length + place)),
    ),
    rows: all ? Int32Array.from(ids.keys()) : offsets.slice(1).map(end => end - 1),
  })
  begun.commit()
  for (const [chat, tokens] of chats) chat.ids.push(...tokens)
  return Array.from({ length: logits.rows() }, (_, row) => logits.row(row))
}

const chatOf = (cache: PagedKvCache): Chat => ({ sequence: cache.openSequence(), ids: [] })

const away = (rows: readonly Float32Array[], wanted: Float32Array): number =>
  rows.reduce(
    (most, row, place) =>
      row.reduce(
        (worst, value, at) => Math.max(worst, Math.abs(value - (wanted[place * row.length + at] as number))),
        most,
      ),
    0,
  )

const windows = [null, 9]
const graphs: readonly (readonly [
  graph: string,
  model: string,
  declared: Parameters<typeof pastLayers>[1],
  limit: number,
])[] = [
  ['llama/onnx', 'llama', {}, 1e-4],
  ['llama/onnx-gqa-f32', 'llama', { headDim: 16 }, 1e-4],
  ['llama/onnx-gqa-f32-ext', 'llama', { headDim: 16 }, 1e-4],
  ['llama/onnx-gqa-pos-f32', 'llama', { headDim: 16 }, 1e-4],
  ['llama/onnx-gqa-f16', 'llama', { headDim: 16 }, 0.1],
  ['families/llama/dynamo', 'families/llama', {}, 1e-4],
  ['families/qwen2-window/optimum', 'families/qwen2-window', { windows }, 1e-4],
  ['families/qwen2-window/optimum', 'families/qwen2-window', {}, 1e-4],
  ['families/qwen2-window/builder', 'families/qwen2-window', { headDim: 16, windows }, 1e-4],
]

for (const [graph, model, declared, limit] of graphs) {
  test(`${graph}${declared.windows === undefined ? '' : ', windows declared'}: whole, in chunks, in batches and forked it gives the references`, async t => {
    const reference = referenceOf(model)
    const plain = await open(graph, declared)
    const { cache, backend } = plain
    const prompt = reference.prompts['p33'] as number[]
    const wanted = reference.greedy['p33']?.slice(0, 10) as number[]
    for (const piece of [33, 5, 1]) {
      const chat = chatOf(cache)
      const rows: Float32Array[] = []
      for (let at = 0; at < prompt.length; at += piece)
        rows.push(...(await step(plain, [[chat, prompt.slice(at, at + piece)]], true)))
      t.true(
        away(rows, reference.logits('logits.p33')) < limit,
        `pieces of ${piece}: ${away(rows, reference.logits('logits.p33'))}`,
      )
      let row = rows.at(-1) as Float32Array
      for (const token of wanted) {
        t.is(argmax(row), token)
        ;[row] = (await step(plain, [[chat, [token]]])) as [Float32Array]
      }
      chat.sequence.dispose()
    }
    // Prompts of unequal length, one in two chunks, then tokens of all together.
    const names = ['p7', 'p33', 'p1']
    const chats = names.map(name => ({ name, chat: chatOf(cache), rest: [...(reference.prompts[name] as number[])] }))
    let rows: Float32Array[] = []
    while (chats.some(({ rest }) => rest.length > 0)) {
      const due = chats.filter(({ rest }) => rest.length > 0)
      rows = await step(
        plain,
        due.map(({ chat, rest }) => [chat, rest.splice(0, 20)] as const),
      )
      for (const [place, of] of due.entries())
        if (of.rest.length === 0) t.is(argmax(rows[place] as Float32Array), reference.greedy[of.name]?.[0] as number)
    }
    for (let at = 0; at < 6; at++) {
      rows = await step(
        plain,
        chats.map(({ name, chat }) => [chat, [reference.greedy[name]?.[at] as number]] as const),
      )
      t.deepEqual(
        rows.map(argmax),
        names.map(name => reference.greedy[name]?.[at + 1] as number),
      )
    }
    // A fork has no presents: its rows are read back. After a cut the first one's are, too.
    const { chat } = chats[1] as { chat: Chat }
    const fork: Chat = { sequence: chat.sequence.fork(), ids: [...chat.ids] }
    const next = reference.greedy['p33']?.[6] as number
    rows = await step(plain, [
      [fork, [next]],
      [chat, [next]],
    ])
    t.deepEqual(rows.map(argmax), [reference.greedy['p33']?.[7], reference.greedy['p33']?.[7]])
    fork.sequence.truncate(37)
    fork.ids.length = 37
    const [row] = await step(plain, [[fork, (reference.greedy['p33'] as number[]).slice(4, 7)]])
    t.is(argmax(row as Float32Array), reference.greedy['p33']?.[7] as number)
    // A prompt that is found again starts with the cache's rows.
    const prefix = cache.match(prompt)
    const found: Chat = { ids: prompt.slice(0, prefix.length), sequence: cache.openSequence({ prefix }) }
    t.true(found.ids.length >= 28)
    const [again] = await step(plain, [[found, prompt.slice(found.ids.length)]])
    t.is(argmax(again as Float32Array), reference.greedy['p33']?.[0] as number)
    cache.checkInvariants()
    await backend.dispose()
    await backend.dispose()
    cache.dispose()
  })
}

async function kinds(graph: string): Promise<string[]> {
  const native = await binding.NativeOnnxGraph.open(graphFile(graph))
  return pastLayers(plainPorts(native), { headDim: 16, windows }).map(layer => layer.kind)
}

test('a window counts only where the graph slides a past by itself', async t => {
  t.deepEqual(await kinds('families/qwen2-window/optimum'), ['full', 'full'])
  t.deepEqual(await kinds('families/qwen2-window/builder'), ['full', 'sliding'])
})

test('drafts that were taken back leave nothing behind', async t => {
  const reference = referenceOf('llama')
  const plain = await open('llama/onnx')
  const chat = chatOf(plain.cache)
  const greedy = reference.greedy['p33'] as number[]
  await step(plain, [[chat, reference.prompts['p33'] as number[]]])
  {
    using draft = chat.sequence.begin()
    await step(plain, [[chat, [greedy[0] as number, greedy[1] as number, 5, 6]]])
    draft.commit(2)
    chat.ids.length -= 2
  }
  const rows = await step(plain, [[chat, greedy.slice(2, 5)]], true)
  t.deepEqual(rows.map(argmax), greedy.slice(3, 6))
  {
    using draft = chat.sequence.begin()
    await step(plain, [[chat, [7, 8, 9]]])
    draft.rollback()
    chat.ids.length -= 3
  }
  // Other tokens at the same length: what was kept is not theirs.
  {
    using draft = chat.sequence.begin()
    await step(plain, [[chat, [7]]])
    draft.rollback()
    chat.ids.length -= 1
  }
  await step(plain, [[chat, [greedy[5] as number]]])
  const [row] = await step(plain, [[chat, [greedy[6] as number]]])
  t.is(argmax(row as Float32Array), greedy[7] as number)
  await plain.backend.dispose()
})

test('more sequences than presents are kept of give the same tokens', async t => {
  const reference = referenceOf('families/llama')
  const plain = await open('families/llama/dynamo')
  const chats = Array.from({ length: 20 }, () => chatOf(plain.cache))
  const prompt = reference.prompts['p7'] as number[]
  await step(
    plain,
    chats.map(chat => [chat, prompt] as const),
  )
  for (let at = 0; at < 3; at++) {
    const rows = await step(
      plain,
      chats.map(chat => [chat, [reference.greedy['p7']?.[at] as number]] as const),
    )
    t.deepEqual([...new Set(rows.map(argmax))], [reference.greedy['p7']?.[at + 1]])
  }
  await plain.backend.dispose()
})

test('a step that fails leaves the step to its owner, and what comes after is right', async t => {
  const reference = referenceOf('llama')
  const plain = await open('llama/onnx')
  const chat = chatOf(plain.cache)
  await step(plain, [[chat, reference.prompts['p33'] as number[]]])
  const error = await t.throwsAsync(step(plain, [[chat, [100_000]]]))
  t.true(isKvTideError(error) && error.code === 'RUNTIME_FAILED', String(error))
  t.is(chat.sequence.length, 33)
  const [row] = await step(plain, [[chat, [reference.greedy['p33']?.[0] as number]]])
  t.is(argmax(row as Float32Array), reference.greedy['p33']?.[1] as number)
  await plain.backend.dispose()
})

test('graphs that do not say enough are refused by name', async t => {
  const native = await binding.NativeOnnxGraph.open(graphFile('llama/onnx-gqa-f32'))
  const refused = (code: string, text: RegExp, run: () => unknown): void => {
    const error = t.throws(run)
    t.true(isKvTideError(error) && error.code === code && text.test(error.message), String(error))
  }
  refused(
    'UNSUPPORTED_GRAPH',
    /past_key_values\.0\.key \(input\): the graph does not declare how many elements per head it has/,
    () => pastLayers(plainPorts(native), {}),
  )
  refused('INVALID_ARGUMENT', /^config is 2, expected 3 layers/, () =>
    pastLayers(plainPorts(native), { headDim: 16, windows }),
  )
  const slid = await binding.NativeOnnxGraph.open(graphFile('families/qwen2-window/builder'))
  const layers = pastLayers(plainPorts(slid), { headDim: 16 })
  const cache = new PagedKvCache({ model: { layers }, capacity: 8 })
  const error = await t.throwsAsync(SessionBackend.plain(slid, cache, { threads: 1 }))
  t.true(
    isKvTideError(error) &&
      error.code === 'UNSUPPORTED_GRAPH' &&
      /declares no window for its layer/.test(error.message),
    String(error),
  )
})
