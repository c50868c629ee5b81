// One key, several forms: entries in a tier serve only caches of their own form, and do not harm the others.
import { readdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import test from 'ava'

import { PagedKvCache } from '../../index.js'
import { OnnxModel } from '../../onnx.js'
import { inFolder } from '../support/folder.js'
import { promptOf, read } from '../support/onnx/chat.js'
import { graphFile, WINDOWED } from '../support/onnx/paged-graph.js'
import { Shelf } from '../support/shelf.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const LATE = 60_000
const prefixKey = new Uint8Array(32).fill(3)

/** Two groups of one layer each, with equal sizes. */
const LAYERS = [{ kind: 'sliding', window: 64, sinks: 0 }, { kind: 'full' }].map(layer => ({
  ...layer,
  numKvHeads: 1,
  headDim: 2,
}))

function compute(cache: PagedKvCache): void {
  const seq = cache.openSequence()
  const rows = { data: Float32Array.from(span(0, 42)), shape: [1, 21, 2] }
  const step = cache.beginStep({ sequences: [seq], tokens: span(0, 21), offsets: [0, 21] } as never)
  for (const layer of [0, 1]) step.write(layer, rows, rows)
  step.commit()
  cache.dropSequence(seq)
}

test('an entry of one group is none of another', async t => {
  const shelf = new Shelf()
  const cacheOf = (): PagedKvCache =>
    new PagedKvCache({
      model: { layers: LAYERS as never },
      capacity: 64,
      blockSize: 4,
      prefixKey,
      tiers: { store: { store: shelf }, deadline: LATE },
    })
  using cache = cacheOf()
  compute(cache)
  t.true(await cache.flush(LATE))
  t.is(shelf.values.size, 10)
  const values = shelf.values
  shelf.values = new Map(
    [...values].map(([key, value]) => [
      key.replace(/^([0-9a-f]{64})\.(\d)/, (_, name, group) => `${name}.${1 - Number(group)}`),
      value,
    ]),
  )
  using other = cacheOf()
  t.is((await other.match(span(0, 21), { tiers: 'all' })).length, 0)
  t.is(other.stats().tiers?.store?.damaged, 10)
  shelf.values = values
  using third = cacheOf()
  t.is((await third.match(span(0, 21), { tiers: 'all' })).length, 20)
})

test('graph and plain of a model with a window share a folder', async t =>
  inFolder(async folder => {
    const path = join(folder, 'kv')
    const entries = async (): Promise<string[]> =>
      (await readdir(path, { recursive: true })).filter(name => name.length > 60).sort()
    let before: string[] = []
    for (let round = 0; round < 3; round++) {
      for (const backend of ['graph', 'plain'] as const) {
        await using model = await OnnxModel.load(graphFile('onnx-gqa-f32'), {
          threads: 1,
          backend,
          // The graph itself has no window: plain keeps all tokens.
          ...(backend === 'graph' ? { config: WINDOWED as never } : {}),
          cache: { memoryBytes: 2 ** 23, prefixKey, tiers: { disk: { path }, deadline: LATE } },
        })
        using chat = model.open({ tokens: promptOf('p100') })
        await read(model, chat, 1)
        t.true(await model.cache.flush(LATE))
        const { disk } = model.cache.stats().tiers ?? {}
        t.is(disk?.damaged, 0)
        t.is((disk?.found ?? 0) > 0, round > 0, `${backend}, round ${round}`)
        const now = await entries()
        t.deepEqual(
          before.filter(name => !now.includes(name)),
          [],
          'none is removed',
        )
        t.is(now.length > before.length, round === 0, 'none is written again')
        before = now
      }
    }
  }))

test('an older entry is a miss, and stays', async t =>
  inFolder(async folder => {
    const options = {
      capacity: 64,
      blockSize: 4,
      numLayers: 1,
      numKvHeads: 1,
      headDim: 2,
      prefixKey,
      tiers: { disk: { path: folder }, deadline: LATE },
    }
    using cache = new PagedKvCache(options)
    const [name] = cache.keys(span(0, 5))
    const older = join(folder, (name as string).slice(0, 2), `${name as string}.0`)
    const rows = { data: new Float32Array(10), shape: [1, 1, 5, 2] }
    cache.openSequence().append({ tokens: span(0, 5), k: rows, v: rows })
    t.true(await cache.flush(LATE))
    await writeFile(older, 'kvtide01 as it was')
    using later = new PagedKvCache(options)
    t.is((await later.match(span(0, 5), { tiers: 'all' })).length, 4)
    t.is(later.stats().tiers?.disk?.damaged, 0)
    t.is(await readFile(older, 'utf8'), 'kvtide01 as it was')
  }))

test('a folder that is a link is refused, with a slash behind it or without', async t =>
  inFolder(async folder => {
    const link = join(folder, 'link')
    using first = new PagedKvCache({
      capacity: 4,
      numLayers: 1,
      numKvHeads: 1,
      headDim: 2,
      prefixKey,
      tiers: { disk: { path: join(folder, 'kv') } },
    })
    t.is(first.capacity, 4)
    await symlink(join(folder, 'kv'), link)
    for (const path of [link, `${link}/`, `${link}//.`]) {
      const { details } = throwsCode(
        t,
        'IO_ERROR',
        () =>
          new PagedKvCache({
            capacity: 4,
            numLayers: 1,
            numKvHeads: 1,
            headDim: 2,
            prefixKey,
            tiers: { disk: { path } },
          }),
      )
      t.deepEqual([details.path, details.reason], [link, 'it is a link, or no folder'])
    }
  }))
