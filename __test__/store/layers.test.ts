// save and load of the caches of one layer: what is loaded is what was saved, and goes on alike.
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test from 'ava'

import { KvCache, RollbackCache, RotatingCache, RotatingKvCache, type Kv, type TokenSource } from '../../index.js'
import { rejected } from '../support/throws.js'

/** Tokens `[1, 2, n, 1]` of numbers from one on. */
const rows = (from: number, n: number): TokenSource => ({ data: Float32Array.from({ length: 2 * n }, (_, at) => from + at), shape: [1, 2, n, 1] })
const numbers = (kv: Kv | null): number[][] | null => kv && [[...kv.k.toArray()], [...kv.v.toArray()]].map(list => list.map(Number))

test('a growing cache', async t => {
  const folder = await mkdtemp(join(tmpdir(), 'kvtide-'))
  using cache = new KvCache({ batchSize: 1, numKvHeads: 2, initialCapacity: 4, maxSeqLen: 32, headDim: 1 })
  using empty = await KvCache.load(await cache.saveBytes())
  t.deepEqual([empty.seqLen, empty.capacity, empty.maxSeqLen, empty.numKvHeads, empty.dtype, empty.device], [0, 4, 32, 2, 'f32', 'cpu'])
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
  await rm(folder, { recursive: true })
})

test('rotating caches', async t => {
  using one = new RotatingCache({ dim: 2, maxSeqLen: 4, sinks: 1 })
  using pair = new RotatingKvCache({ maxSeqLen: 4, sinks: 1 })
  for (let from = 0; from < 12; from++) {
    using oneAgain = await RotatingCache.load(await one.saveBytes())
    using pairAgain = await RotatingKvCache.load(await pair.saveBytes())
    t.deepEqual([oneAgain.dim, oneAgain.maxSeqLen, oneAgain.sinks, oneAgain.currentSeqLen, oneAgain.retainedLen], [2, 4, 1, one.currentSeqLen, one.retainedLen])
    t.deepEqual(numbers(pairAgain.currentData()), numbers(pair.currentData()))
    const n = 1 + (from % 3)
    t.deepEqual([...one.append(rows(from, n)).toArray()], [...oneAgain.append(rows(from, n)).toArray()])
    t.deepEqual(numbers(pair.append(rows(from, n), rows(from + 9, n))), numbers(pairAgain.append(rows(from, n), rows(from + 9, n))))
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
