// A conversation that is saved in one process goes on in another, token for token.
import { join } from 'node:path'

import test from 'ava'

import { type ModelCacheOptions, PagedKvCache } from '../../index.js'
import { type BackendName, OnnxModel, type OnnxSequence } from '../../onnx.js'
import { folderOf } from '../support/folder.js'
import { decode, prefill } from '../support/llama/decoder.js'
import { Llama } from '../support/llama/llama.js'
import { stepping } from '../support/llama/stepping.js'
import { greedyOf, promptOf, read } from '../support/onnx/chat.js'
import { F16, F32, graphFile } from '../support/onnx/paged-graph.js'
import { runProcess } from '../support/packaging/child.js'
import { rejected } from '../support/throws.js'

const from = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href)

/** Saves the first 60 tokens of p100, from a sequence that has all of them, in a process of its own. */
const elsewhere = (file: string, keyFormat: string): string => `
  const { Llama } = await import(${from('../support/llama/llama.ts')})
  const { prefill } = await import(${from('../support/llama/decoder.ts')})
  const { stepping } = await import(${from('../support/llama/stepping.ts')})
  const model = new Llama()
  const tokens = ${JSON.stringify(promptOf('p100'))}
  const cache = new kvtide.PagedKvCache({ model: model.config, capacity: 32, keyFormat: '${keyFormat}', valueFormat: '${keyFormat}' })
  const chat = cache.openSequence()
  prefill(model, tokens, stepping(model, cache, chat, tokens), 30)
  chat.truncate(60)
  await chat.save(${JSON.stringify(file)})
  await cache.save(${JSON.stringify(`${file}.all`)})`

test('branch60 on kvtide alone', async t => {
  const folder = await folderOf(t)
  const file = join(folder, 'chat.kv')
  const { code, err } = await runProcess(elsewhere(file, 'f32'))
  t.is(code, 0, err)
  const model = new Llama()
  using cache = new PagedKvCache({ model: model.config as unknown as ModelCacheOptions['model'], capacity: 32 })
  const chat = await cache.loadSequence(file)
  t.is(chat.length, 60)
  const branch = promptOf('branch60')
  const attention = stepping(model, cache, chat, branch)
  const logits = prefill(model, branch.slice(60), attention, 20, 60)
  t.deepEqual(decode(model, logits, branch.length - 1, 64, attention).tokens, greedyOf('branch60'))
  // And the prefix cache: all full blocks of p100.
  using all = await PagedKvCache.load(`${file}.all`)
  const match = all.match(branch)
  t.is(match.length, 48)
  const second = all.openSequence({ prefix: match })
  const again = stepping(model, all, second, branch)
  t.deepEqual(
    decode(model, prefill(model, branch.slice(48), again, 20, 48), branch.length - 1, 64, again).tokens,
    greedyOf('branch60'),
  )
})

const onnx = (file: string, name: string, backend: BackendName): string => `
  const { OnnxModel } = await import(${from('../../onnx.ts')})
  const model = await OnnxModel.load(${JSON.stringify(graphFile(name))}, { threads: 1, cache: { memoryBytes: 2 ** 23 }, backend: '${backend}' })
  const chat = model.open({ tokens: ${JSON.stringify(promptOf('p100'))}, salt: 'tenant' })
  for await (const token of model.generate(chat, { maxTokens: 3 })) { if (token === -1) break }
  chat.truncate(60)
  await chat.save(${JSON.stringify(file)})
  await model.cache.save(${JSON.stringify(`${file}.all`)})
  await model[Symbol.asyncDispose]()`

for (const [name, backend, other] of [
  [F32[0], 'graph', 'plain'],
  [F16, 'parts', 'graph'],
] as [string, BackendName, BackendName][]) {
  test(`branch60 on ${name}: saved with ${backend}, gone on with ${other}`, async t => {
    const folder = await folderOf(t)
    const file = join(folder, 'chat.kv')
    const { code, err } = await runProcess(onnx(file, name, backend))
    t.is(code, 0, err)
    await using model = await OnnxModel.load(graphFile(name), {
      threads: 2,
      cache: { memoryBytes: 2 ** 23 },
      backend: other,
    })
    t.true((await model.cache.loadPrompts(`${file}.all`)) > 5)
    t.is(model.open({ tokens: promptOf('p100'), salt: 'tenant' }).length, 96)
    using chat = await model.loadSequence(file, { salt: 'tenant' })
    t.deepEqual([chat.length, [...chat.tokens]], [60, promptOf('branch60').slice(0, 60)])
    t.deepEqual(await read(model, chat, 64, { tokens: promptOf('branch60').slice(60) }), greedyOf('branch60'))
    await rejected(model.loadSequence(file), 'INCOMPATIBLE')
  })
}

const inTiers = (folder: string): string =>
  `{ memoryBytes: 2 ** 23, prefixKey: new Uint8Array(32), tiers: { disk: { path: ${JSON.stringify(folder)} } } }`

test('a model finds in a folder what another process has computed', async t => {
  const folder = await folderOf(t)
  const file = graphFile(F32[0] as string)
  const { code, err } = await runProcess(`
    const { OnnxModel } = await import(${from('../../onnx.ts')})
    const model = await OnnxModel.load(${JSON.stringify(file)}, { threads: 1, cache: ${inTiers(folder)} })
    const chat = model.open({ tokens: ${JSON.stringify(promptOf('p100'))} })
    for await (const token of model.generate(chat, { maxTokens: 1 })) { if (token === -1) break }
    if (!(await model.cache.flush(60_000))) throw new Error('it was not written')
    await model[Symbol.asyncDispose]()`)
  t.is(code, 0, err)
  const cache = {
    memoryBytes: 2 ** 23,
    prefixKey: new Uint8Array(32),
    tiers: { disk: { path: folder }, deadline: 60_000 },
  }
  await using model = await OnnxModel.load(file, { threads: 1, cache })
  using chat = model.open({ tokens: promptOf('p100') })
  t.is(chat.length, 0, 'opening a sequence does not wait for a disk')
  t.deepEqual(await read(model, chat, 64), greedyOf('p100'))
  t.is(model.cache.stats().tiers?.disk?.found, 6)
  t.is(model.cache.stats().hitTokens, 96)
  // And a branch of it, whose prefix is cached.
  using branch = model.open({ tokens: promptOf('branch60') })
  t.deepEqual(await read(model, branch, 64), greedyOf('branch60'))
})

test('what is pending comes along, and what a generation has not given out does not', async t => {
  await using model = await OnnxModel.load(graphFile(F32[0] as string), { threads: 1, cache: { memoryBytes: 2 ** 23 } })
  using pending = model.open({ tokens: promptOf('p33') })
  using loaded = await model.loadSequence(await pending.saveBytes())
  t.deepEqual([loaded.length, [...loaded.tokens]], [0, promptOf('p33')])
  t.deepEqual(await read(model, loaded, 64), greedyOf('p33'))
  const generation = model.generate(pending, { maxTokens: 64 })
  const given: number[] = []
  for await (const token of generation) {
    given.push(token)
    if (given.length === 10) break
  }
  using again = await model.loadSequence(await pending.saveBytes())
  t.deepEqual([...again.tokens], [...promptOf('p33'), ...given])
  t.deepEqual(await read(model, again, 54), greedyOf('p33').slice(10))
})

for (const backend of ['graph', 'parts'] satisfies BackendName[]) {
  test(`${backend}: a chat of low-bit pages is saved and loaded while others are generated`, async t => {
    await using model = await OnnxModel.load(graphFile(F32[0] as string), {
      threads: 1,
      backend,
      cache: { memoryBytes: 2 ** 23, keyFormat: 'q8', valueFormat: 'q8' },
    })
    using chat = model.open({ tokens: promptOf('p33') })
    const first = await read(model, chat, 20)
    using other = model.open({ tokens: promptOf('p100') })
    const generating = read(model, other, 64)
    const loaded: OnnxSequence[] = []
    for (let round = 0; round < 3; round++) loaded.push(await model.loadSequence(await chat.saveBytes()))
    await generating
    const rest = await read(model, chat, 20)
    for (const again of loaded) {
      t.deepEqual([...again.tokens], [...promptOf('p33'), ...first])
      t.deepEqual(await read(model, again, 20), rest)
    }
    model.cache.checkInvariants()
  })
}
