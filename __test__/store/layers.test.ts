// save and load of the caches of one layer: a loaded cache equals the saved one, and goes on in the same way.
import { join } from 'node:path'

import test from 'ava'

import { KvCache, RollbackCache, RotatingCache, RotatingKvCache, type Kv, type TokenSource } from '../../index.js'
import { folderOf } from '../support/folder.js'
import { rejected, throwsCode } from '../support/throws.js'

/** Tokens `[1, 2, n, 1]` with numbers that count up. */
const rows = (from: number, n: number): TokenSource => ({
  data: Float32Array.from({ length: 2 * n }, (_, at) => from + at),
  shape: [1, 2, n, 1],
})
const numbers = (kv: Kv | null): number[][] | null =>
  kv && [[...kv.k.toArray()], [...kv.v.toArray()]].map(list => list.map(Number))

test('a growing cache', async t => {
  const folder = await folderOf(t)
  using cache = new KvCache({ batchSize: 1, numKvHeads: 2, initialCapacity: 4, maxSeqLen: 32, headDim: 1 })
  using empty = await KvCache.load(await cache.saveBytes())
  t.deepEqual(
    [empty.seqLen, empty.capacity, empty.maxSeqLen, empty.numKvHeads, empty.dtype, empty.device],
    [0, 4, 32, 2, 'f32', 'cpu'],
  )
  cache.update(rows(0, 5), rows(50, 5))
  const saving = cache.save(join(folder, 'kv'))
  cache.truncate(2)
  cache.update(rows(70, 1), rows(80, 1))
  await saving
  using again = await KvCache.load(join(folder, 'kv'), { memoryLimitBytes: 2 ** 20 })
  t.is(again.seqLen, 5)
  again.truncate(2)
  again.update(rows(70, 1), rows(80, 1))
  t.deepEqual(numbers(again.getKv()), numbers(cache.getKv()))
  t.is(again.stats().limitBytes, 2 ** 20)
  {
    using draft = cache.begin()
    await rejected(cache.saveBytes(), 'TRANSACTION_OPEN')
    draft.rollback()
  }
  await rejected(KvCache.load(join(folder, 'kv'), { memoryLimitBytes: 8 }), 'OUT_OF_MEMORY')
  await rejected(RollbackCache.load(join(folder, 'kv')), 'INCOMPATIBLE')
  await rejected(KvCache.load(join(folder, 'kv'), { device: 'tpu' }), 'INVALID_ARGUMENT')
})

test('rotating caches', async t => {
  using one = new RotatingCache({ dim: 2, maxSeqLen: 4, sinks: 1 })
  using pair = new RotatingKvCache({ maxSeqLen: 4, sinks: 1 })
  for (let from = 0; from < 12; from++) {
    using oneAgain = await RotatingCache.load(await one.saveBytes())
    using pairAgain = await RotatingKvCache.load(await pair.saveBytes())
    t.deepEqual(
      [oneAgain.dim, oneAgain.maxSeqLen, oneAgain.sinks, oneAgain.currentSeqLen, oneAgain.retainedLen],
      [2, 4, 1, one.currentSeqLen, one.retainedLen],
    )
    t.deepEqual(numbers(pairAgain.currentData()), numbers(pair.currentData()))
    const n = 1 + (from % 3)
    t.deepEqual([...one.append(rows(from, n)).toArray()], [...oneAgain.append(rows(from, n)).toArray()])
    t.deepEqual(
      numbers(pair.append(rows(from, n), rows(from + 9, n))),
      numbers(pairAgain.append(rows(from, n), rows(from + 9, n))),
    )
  }
})

test('tentative tokens', async t => {
  using cache = new RollbackCache()
  cache.append(rows(0, 3), rows(50, 3))
  cache.commit(2)
  cache.append(rows(10, 2), rows(60, 2), { parents: [0, 0] })
  using again = await RollbackCache.load(await cache.saveBytes())
  t.deepEqual([again.totalLen, again.committedLen], [5, 2])
  for (const of of [cache, again]) of.acceptPath([0, 2])
  t.deepEqual(numbers(again.current()), numbers(cache.current()))
  const mark = again.snapshot()
  again.append(rows(1, 1), rows(1, 1))
  again.rollback(mark)
  t.is(again.totalLen, 4)
})

test('tentative tokens that a commit into their tree left behind', async t => {
  using cache = new RollbackCache()
  cache.append(rows(0, 5), rows(50, 5), { parents: [-1, 0, 0, 2, 1] })
  cache.commit(2)
  using again = await RollbackCache.load(await cache.saveBytes())
  for (const of of [cache, again]) {
    t.deepEqual([of.totalLen, of.committedLen], [5, 2])
    // Token 2 follows token 0, which is not the last committed one: it is kept, but no path accepts it.
    throwsCode(t, 'INVALID_PATH', () => of.acceptPath([0]))
    // A draft after token 4 sees the committed tokens, token 4 and itself.
    using draft = of.begin()
    draft.append(rows(9, 1), rows(9, 1))
    t.deepEqual([...draft.treeMask().toArray()], [0, 0, -Infinity, -Infinity, 0, 0])
    t.deepEqual([...draft.treePositions()], [3])
    draft.rollback()
    using other = of.begin()
    other.append(rows(9, 3), rows(9, 3), { parents: [-1, 0, 0] })
    t.deepEqual([...other.treePositions()], [3, 4, 4])
    other.rollback()
    of.acceptPath([2])
    t.is(of.committedLen, 3)
  }
  t.deepEqual(numbers(again.current()), numbers(cache.current()))
})
