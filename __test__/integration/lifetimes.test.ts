// Lifetimes: disposal, objects that outlive it, and garbage collection without it.
import { setImmediate } from 'node:timers/promises'

import test from 'ava'

import {
  BlockPool,
  BlockTable,
  KvCache,
  memoryStats,
  PagedKvCache,
  PrefixNamer,
  RollbackCache,
  RotatingCache,
  RotatingKvCache,
  Tensor,
} from '../../index.js'
import { collectAll, collected, used } from '../support/garbage.js'
import { throwsCode } from '../support/throws.js'
import { numbers, span, tokens } from '../support/tokens.js'

const kvOptions = { batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 64, headDim: 1 } as const
const pagedOptions = { capacity: 2, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1 } as const

/** A filled object of every disposable class, with a call that throws DISPOSED afterwards. */
function oneOfEach(): Map<object & Disposable & { dispose(): void }, () => unknown> {
  const kv = new KvCache(kvOptions)
  kv.update(tokens(0, 2), tokens(0, 2))
  const rotating = new RotatingCache({ dim: 2, maxSeqLen: 4 })
  rotating.append(tokens(0, 2))
  const pair = new RotatingKvCache({ maxSeqLen: 4 })
  pair.append(tokens(0, 2), tokens(0, 2))
  const rollback = new RollbackCache()
  rollback.append(tokens(0, 2), tokens(0, 2))
  const paged = new PagedKvCache(pagedOptions)
  const sequence = paged.openSequence()
  const [pagedSnapshot, match] = [sequence.snapshot(), paged.match([1])]
  const pool = new BlockPool({ capacity: 2 })
  const table = new BlockTable({ numLayers: 1, blockSize: 2 })
  const namer = new PrefixNamer(pagedOptions)
  const [kvSnapshot, snapshot, mark] = [kv.snapshot(), rotating.snapshot(), rollback.snapshot()]
  const tensor = tokens(0, 2)
  return new Map<object & Disposable & { dispose(): void }, () => unknown>([
    [kvSnapshot, () => kvSnapshot.length],
    [snapshot, () => snapshot.retainedLen],
    [mark, () => mark.committedLen],
    [kv, () => kv.seqLen],
    [rotating, () => rotating.currentSeqLen],
    [pair, () => pair.currentData()],
    [rollback, () => rollback.totalLen],
    [pagedSnapshot, () => pagedSnapshot.length],
    [match, () => paged.createSequence({ prefix: match })],
    [sequence, () => sequence.length],
    [paged, () => paged.createSequence()],
    [pool, () => pool.allocate()],
    [table, () => table.numBlocks(0)],
    [namer, () => namer.keys([1])],
    [tensor, () => tensor.toArray()],
  ])
}

test('a second dispose does nothing, and any other call is refused', t => {
  for (const [object, call] of oneOfEach()) {
    t.notThrows(call)
    object.dispose()
    object.dispose()
    object[Symbol.dispose]()
    throwsCode(t, 'DISPOSED', call, { object: object.constructor.name })
  }
})

test('using disposes of it at the end of its block', t => {
  for (const [object, call] of oneOfEach()) {
    {
      using it = object
      t.notThrows(call, it.constructor.name)
    }
    throwsCode(t, 'DISPOSED', call)
  }
})

test('a disposed object is refused as an argument', t => {
  const tensor = tokens(0, 1)
  tensor.dispose()
  using cache = new KvCache(kvOptions)
  throwsCode(t, 'DISPOSED', () => cache.update(tensor, tokens(0, 1)))
  throwsCode(t, 'DISPOSED', () => cache.update(tokens(0, 1), tensor))
  const snapshot = cache.snapshot()
  snapshot.dispose()
  throwsCode(t, 'DISPOSED', () => cache.restore(snapshot))
  t.true(cache.isEmpty)
})

test('views of a disposed cache are refused, looked at before or not', t => {
  const cache = new RotatingKvCache({ maxSeqLen: 4, slack: 1 })
  cache.append(tokens(0, 3), tokens(0, 3))
  const whole = cache.append(tokens(3, 6), tokens(3, 6)).k
  const [before, after] = [cache.append(tokens(6, 7), tokens(6, 7)), cache.currentData()]
  const part = before.k.narrow(2, 0, 1)
  t.deepEqual([numbers(before.k), numbers(part), numbers(whole)], [span(3, 7), [3], span(0, 6)])
  cache.dispose()
  // A result that did not fit into the slack is a tensor with its own memory.
  t.deepEqual(numbers(whole), span(0, 6))
  for (const view of [before.k, before.v, part, after?.k as Tensor, after?.v as Tensor]) {
    for (const read of [
      () => view.toArray(),
      () => view.data,
      () => view.readInto(new Float32Array(view.length)),
      () => view.equals(view),
      () => view.strides,
    ]) {
      throwsCode(t, 'DISPOSED', read)
    }
  }
  const other = new KvCache(kvOptions)
  const { k } = other.update(tokens(0, 1), tokens(0, 1))
  other.dispose()
  throwsCode(t, 'DISPOSED', () => other.update(k, k))
  throwsCode(t, 'DISPOSED', () => k.toFloat32Array())
})

test('a call on what was disposed of says so, whatever its arguments are', t => {
  const cache = new KvCache(kvOptions)
  cache.dispose()
  throwsCode(t, 'DISPOSED', () => cache.truncate(-1), { object: 'KvCache' })
  throwsCode(t, 'DISPOSED', () => cache.update(undefined as never, undefined as never))
  throwsCode(t, 'DISPOSED', () => cache.restore({} as never))
  const rotating = new RotatingKvCache({ maxSeqLen: 4 })
  rotating.dispose()
  throwsCode(t, 'DISPOSED', () => rotating.setLen(-1), { object: 'RotatingKvCache' })
})

test('a growing cache is not refused for old buffers that views alone keep', t => {
  const row = tokens(0, 1)
  const final = 1024 * row.data.length * 4 * 2
  using cache = new KvCache({
    ...kvOptions,
    initialCapacity: 1,
    maxSeqLen: 1024,
    memoryLimitBytes: Math.ceil(final * 1.6),
  })
  const views = Array.from({ length: 1024 }, () => cache.update(row, row))
  t.is(cache.capacity, 1024)
  t.is(views.length, 1024)
  t.true(cache.stats().heldBytes > 0)
})

test('snapshots restore after their cache is gone', t => {
  const kv = new KvCache(kvOptions)
  kv.update(tokens(0, 3), tokens(10, 13))
  const snapshot = kv.snapshot()
  kv.dispose()
  using other = new KvCache(kvOptions)
  other.restore(snapshot)
  t.deepEqual(numbers(other.getKv().v), span(10, 13))
  const rotating = new RotatingCache({ dim: 2, maxSeqLen: 2 })
  rotating.append(tokens(0, 3))
  const window = rotating.snapshot()
  rotating.dispose()
  t.is(window.currentSeqLen, 3)
  using restored = RotatingCache.restoreFromSnapshot(window, tokens(3, 4), 4)
  t.deepEqual(numbers(restored.currentData()), [2, 3])
})

test('.data arrays stay readable after dispose, and after everything else is collected', async t => {
  const arrays = span(0, 20).map(token => {
    const cache = new KvCache(kvOptions)
    const { data } = cache.update(tokens(token, token + 3), tokens(0, 3)).k
    cache.dispose()
    return data
  })
  await collectAll()
  for (const [token, data] of arrays.entries()) t.deepEqual(Array.from(data), span(token, token + 3))
})

test('.data may be taken of the same memory any number of times', async t => {
  using cache = new KvCache(kvOptions)
  cache.update(tokens(0, 4), tokens(0, 4))
  for (let round = 0; round < 50; round++) {
    const [raw, view] = [cache.kCacheRaw.data, cache.getKv().k.narrow(2, 0, 2).data]
    t.deepEqual([raw[0], view[1]], [0, 1])
    if (round % 10 === 0) await collected(() => true)
  }
})

test('.data cannot be moved away from under the cache', t => {
  using cache = new KvCache(kvOptions)
  const { k } = cache.update(tokens(0, 4), tokens(0, 4))
  const { data } = k
  try {
    structuredClone(data, { transfer: [data.buffer as ArrayBuffer] })
  } catch (error) {
    t.is((error as Error).name, 'DataCloneError')
  }
  t.deepEqual(numbers(k), span(0, 4))
  cache.update(tokens(4, 8), tokens(4, 8))
  t.deepEqual(numbers(cache.getKv().k), span(0, 8))
})

/** Makes a lot of garbage, of every kind. */
function fill(): void {
  for (let round = 0; round < 40; round++) {
    const cache = new KvCache({ ...kvOptions, headDim: 1024, initialCapacity: 64 })
    const token = Tensor.from(new Float32Array(2048), [1, 1, 2, 1024])
    const { k } = cache.update(token, token)
    if (round % 2 === 0) k.data.fill(1)
    k.narrow(2, 0, 1).reshape([1024])
    cache.truncate(1)
    cache.snapshot()
    cache.update(token, token)
    const window = new RotatingCache({ dim: 2, maxSeqLen: 2, slack: 0 })
    for (let step = 0; step < 5; step++) window.append(token)
    window.snapshot()
  }
}

test.serial('what is not disposed of is collected: native bytes go back to the start', async t => {
  await collectAll()
  const start = used()
  fill()
  t.true(used() - start > 40 * 2 * 64 * 4096)
  t.true(await collected(() => used() <= start), `${used() - start} bytes are left`)
  t.is(memoryStats().heldBytes, 0)
})

test.serial('V8 is told of native memory, and collects before there is too much of it', async t => {
  const start = used()
  let peak = 0
  for (let round = 0; round < 2000; round++) {
    const cache = new KvCache({ ...kvOptions, initialCapacity: 128, maxSeqLen: 128, headDim: 1024 })
    peak = Math.max(peak, used() - start)
    if (round % 50 === 0) await setImmediate()
    t.true(cache.isEmpty)
  }
  t.true(peak < 1000 * 2 ** 20, `${Math.round(peak / 2 ** 20)} MiB of 2000`)
})

test.serial('disposal frees at once, without a collection', t => {
  const start = used()
  for (let round = 0; round < 200; round++) {
    using cache = new KvCache({ ...kvOptions, headDim: 256, initialCapacity: 1, maxSeqLen: 64 })
    using token = Tensor.from(new Float32Array(256), [1, 1, 1, 256])
    const views = span(0, 8).map(() => cache.update(token, token).k)
    t.is(views.at(-1)?.shape[2], 8)
    views[0]?.toArray()
  }
  t.true(used() - start <= 0, `${used() - start} bytes are left`)
})

test.serial('thousands of caches live at once', t => {
  const start = used()
  const caches = span(0, 5000).map(seed => {
    const cache = new KvCache(kvOptions)
    cache.update(tokens(seed % 200, (seed % 200) + 2), tokens(0, 2))
    return cache
  })
  t.true(caches.every((cache, seed) => cache.getKv().k.data[1] === (seed % 200) + 1))
  for (const cache of caches) cache.dispose()
  t.true(used() - start <= 5000 * (32 + 2 * 8), 'what was appended, and .data, wait for collection')
})

test('a snapshot that was collected costs nothing', async t => {
  using cache = new KvCache({ ...kvOptions, initialCapacity: 8 })
  cache.update(tokens(0, 8), tokens(0, 8))
  const take = (): void => void span(0, 10).map(() => cache.snapshot())
  take()
  await collectAll()
  cache.truncate(0)
  cache.update(tokens(0, 8), tokens(0, 8))
  t.like(cache.stats(), { copiesOnWrite: 0, heldBytes: 0 })
})
