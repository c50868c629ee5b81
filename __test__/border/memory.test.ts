// The memory of the process, and the limits on it.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import {
  BlockPool,
  KvCache,
  memoryStats,
  PagedKvCache,
  RollbackCache,
  RotatingCache,
  RotatingKvCache,
  setMemoryLimit,
  Tensor,
} from '../../index.js'
import { folderOf } from '../support/folder.js'
import { collectAll } from '../support/garbage.js'
import { rejected, throwsCode } from '../support/throws.js'
import { numbers, span, tokens } from '../support/tokens.js'

const shape = { batchSize: 1, numKvHeads: 1, maxSeqLen: 64, headDim: 1 } as const

/** Runs `work` under a limit of `bytes` more than is in use. */
function within(bytes: number, work: () => void): void {
  const { limitBytes, usedBytes } = memoryStats()
  setMemoryLimit(usedBytes + bytes)
  try {
    work()
  } finally {
    setMemoryLimit(Number.isFinite(limitBytes) ? limitBytes : Number.MAX_SAFE_INTEGER)
  }
}

test.serial('there is a limit from the start, below what the machine has', t => {
  const { limitBytes, usedBytes, heldBytes } = memoryStats()
  t.true(limitBytes > 2 ** 20)
  t.true(usedBytes >= heldBytes && heldBytes >= 0)
})

test.serial('what is in use is counted, and given back at once', t => {
  const before = memoryStats().usedBytes
  const tensor = Tensor.from(new Float32Array(1000), [1000])
  t.is(memoryStats().usedBytes, before + 4000)
  tensor.dispose()
  t.is(memoryStats().usedBytes, before)
  const cache = new KvCache({ ...shape, initialCapacity: 10 })
  t.is(memoryStats().usedBytes, before + 80)
  cache.dispose()
  t.is(memoryStats().usedBytes, before)
})

test.serial('the limit of the process is checked before anything is taken', t => {
  within(100, () => {
    const { usedBytes, limitBytes } = memoryStats()
    const details = { requestedBytes: 104, usedBytes, limitBytes }
    throwsCode(t, 'OUT_OF_MEMORY', () => Tensor.from(new Float32Array(26), [26]), details)
    throwsCode(t, 'OUT_OF_MEMORY', () => new KvCache({ ...shape, initialCapacity: 13 }), details)
    throwsCode(
      t,
      'OUT_OF_MEMORY',
      () => new PagedKvCache({ capacity: 13, blockSize: 1, numLayers: 1, numKvHeads: 1, headDim: 1 }),
      details,
    )
    t.is(memoryStats().usedBytes, usedBytes)
    using fits = Tensor.from(new Float32Array(25), [25])
    t.is(memoryStats().usedBytes, usedBytes + 100)
    throwsCode(t, 'OUT_OF_MEMORY', () => fits.narrow(0, 0, 1).reshape([1]) && Tensor.from(new Uint8Array(1), [1]))
  })
})

test.serial('a cache whose tiers cannot be opened gives its memory back at once, also when it is loaded', async t => {
  const options = { capacity: 64, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 8 }
  const tiers = { disk: { path: join(await folderOf(t), 'file') } }
  writeFileSync(tiers.disk.path, '')
  using saved = new PagedKvCache(options)
  const bytes = await saved.saveBytes()
  // Other tests of this process may have left memory that would be freed meanwhile.
  await collectAll()
  const before = memoryStats().usedBytes
  throwsCode(t, 'IO_ERROR', () => new PagedKvCache({ ...options, tiers }))
  t.is(memoryStats().usedBytes, before)
  await rejected(PagedKvCache.load(bytes, { tiers }), 'IO_ERROR')
  t.is(memoryStats().usedBytes, before)
})

test.serial('the bookkeeping of a pool and the mask of a draft count too', t => {
  using rollback = new RollbackCache()
  within(1000, () => {
    throwsCode(t, 'OUT_OF_MEMORY', () => new BlockPool({ capacity: 100 }))
    const { details } = throwsCode(t, 'OUT_OF_MEMORY', () => rollback.treeMask(span(-1, 99)))
    t.is(details.requestedBytes, 100 * 100 * 4)
    using pool = new BlockPool({ capacity: 10 })
    using mask = rollback.treeMask(span(-1, 9))
    t.is(pool.freeCount + mask.length, 110)
  })
})

test.serial('a limit below what is in use refuses more, and breaks nothing', t => {
  using cache = new KvCache({ ...shape, initialCapacity: 4 })
  cache.update(tokens(0, 3), tokens(0, 3))
  using token = tokens(3, 4)
  using more = tokens(4, 6)
  within(-memoryStats().usedBytes, () => {
    t.is(memoryStats().limitBytes, 0)
    cache.update(token, token)
    throwsCode(t, 'OUT_OF_MEMORY', () => cache.update(more, more))
    t.deepEqual([cache.seqLen, cache.capacity, numbers(cache.getKv().k)], [4, 4, span(0, 4)])
  })
  cache.update(more, more)
  t.is(cache.seqLen, 6)
})

test.serial("growth that does not fit under a cache's own limit changes nothing", t => {
  using cache = new KvCache({ ...shape, initialCapacity: 4, memoryLimitBytes: 64 })
  cache.update(tokens(0, 4), tokens(0, 4))
  const view = cache.getKv().k
  throwsCode(t, 'OUT_OF_MEMORY', () => cache.update(tokens(4, 5), tokens(4, 5)), {
    requestedBytes: 64,
    usedBytes: 32,
    limitBytes: 64,
  })
  t.deepEqual([cache.seqLen, cache.capacity, view.isStale, numbers(view)], [4, 4, false, span(0, 4)])
  t.like(cache.stats(), { usedBytes: 32, limitBytes: 64, growths: 0 })
})

test.serial('every cache has a limit of its own', t => {
  const memoryLimitBytes = 16
  throwsCode(t, 'OUT_OF_MEMORY', () => new KvCache({ ...shape, initialCapacity: 3, memoryLimitBytes }), {
    requestedBytes: 24,
    usedBytes: 0,
    limitBytes: 16,
  })
  throwsCode(
    t,
    'OUT_OF_MEMORY',
    () => new PagedKvCache({ capacity: 3, blockSize: 1, numLayers: 1, numKvHeads: 1, headDim: 1, memoryLimitBytes }),
  )
  using rotating = new RotatingCache({ dim: 2, maxSeqLen: 8, capacitySeqLen: 8, slack: 0, memoryLimitBytes })
  throwsCode(t, 'OUT_OF_MEMORY', () => rotating.append(tokens(0, 1)), {
    requestedBytes: 32,
    usedBytes: 0,
    limitBytes: 16,
  })
  t.deepEqual([rotating.currentSeqLen, rotating.currentData(), rotating.dtype], [0, null, null])
  using pair = new RotatingKvCache({ maxSeqLen: 4, capacitySeqLen: 4, slack: 0, memoryLimitBytes })
  throwsCode(t, 'OUT_OF_MEMORY', () => pair.append(tokens(0, 1), tokens(0, 1)))
  using rollback = new RollbackCache({ memoryLimitBytes })
  throwsCode(t, 'OUT_OF_MEMORY', () => rollback.append(tokens(0, 9), tokens(0, 9)))
  t.deepEqual([rollback.totalLen, rollback.current()], [0, null])
  rollback.append(tokens(0, 1), tokens(0, 1))
  t.is(rollback.totalLen, 1)
})

test.serial('a prefill whose result does not fit is refused before anything changes', t => {
  using cache = new RotatingCache({ dim: 2, maxSeqLen: 4, capacitySeqLen: 4, slack: 0, memoryLimitBytes: 40 })
  cache.append(tokens(0, 4))
  throwsCode(t, 'OUT_OF_MEMORY', () => cache.append(tokens(4, 7)), {
    requestedBytes: 28,
    usedBytes: 16,
    limitBytes: 40,
  })
  t.deepEqual(
    [cache.currentSeqLen, numbers(cache.currentData()), numbers(cache.lastAppendResult())],
    [4, span(0, 4), span(0, 4)],
  )
})

test.serial('copies that a snapshot needs count as held, until it is gone', t => {
  using cache = new KvCache({ ...shape, initialCapacity: 8 })
  cache.update(tokens(0, 8), tokens(0, 8))
  const snapshot = cache.snapshot()
  t.like(cache.stats(), { bufferBytes: 64, heldBytes: 0, usedBytes: 64 })
  cache.truncate(6)
  cache.update(tokens(50, 51), tokens(50, 51))
  t.like(cache.stats(), { heldBytes: 8, copiesOnWrite: 1, copiedBytes: 8 })
  cache.update(tokens(51, 53), tokens(51, 53))
  const { heldBytes } = cache.stats()
  t.true(heldBytes >= 64, 'growth has left the old buffer to the snapshot')
  snapshot.dispose()
  cache.reset()
  t.is(cache.stats().usedBytes - cache.stats().bufferBytes, cache.stats().heldBytes)
})

test.serial('huge sizes are refused, at once and without a crash', t => {
  const huge = 2 ** 31 - 1
  const calls: (() => unknown)[] = [
    () => new KvCache({ batchSize: huge, numKvHeads: huge, initialCapacity: huge, maxSeqLen: huge, headDim: huge }),
    () => new KvCache({ ...shape, headDim: huge, maxSeqLen: huge, stableAddresses: true, initialCapacity: 0 }),
    () => new KvCache({ ...shape, headDim: huge, initialCapacity: 64, maxSeqLen: huge }),
    () => new PagedKvCache({ capacity: huge, blockSize: huge, numLayers: huge, numKvHeads: huge, headDim: huge }),
    () => new PagedKvCache({ capacity: huge, numLayers: 1, numKvHeads: 64, headDim: 128 }),
    () => new PagedKvCache({ capacity: 1, numLayers: 1, numKvHeads: huge, headDim: huge }),
    () =>
      new RotatingKvCache({ maxSeqLen: 2 ** 30, capacitySeqLen: 2 ** 30 }).append(
        Tensor.from(new Float32Array(4096), [1, 32, 1, 128]),
        Tensor.from(new Float32Array(4096), [1, 32, 1, 128]),
      ),
  ]
  for (const call of calls) {
    const { details } = throwsCode(t, 'OUT_OF_MEMORY', call)
    t.true(details.requestedBytes >= details.limitBytes - details.usedBytes)
    t.deepEqual(Object.keys(details), ['requestedBytes', 'usedBytes', 'limitBytes'])
  }
  using empty = new KvCache({ ...shape, headDim: huge, maxSeqLen: huge, initialCapacity: 0 })
  t.is(empty.capacity, 0)
})

test.serial('an array that is more than JavaScript can have is refused, and the rest can be read', t => {
  const rows = 2 ** 31 - 1
  within(2 ** 40, () => {
    try {
      // Nothing of it is touched, so that it needs no memory.
      using cache = new KvCache({ ...shape, initialCapacity: rows, maxSeqLen: rows, headDim: 4, dtype: 'u8' })
      t.is(cache.kCacheRaw.narrow(2, rows - 1, 1).data.length, 4)
      t.is(cache.kCacheRaw.data.length, rows * 4)
    } catch (error) {
      t.is((error as { code?: string }).code, 'OUT_OF_MEMORY')
    }
  })
})
