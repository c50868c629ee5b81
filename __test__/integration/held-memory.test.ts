// Memory outside the caches: freed at once when everything is disposed of, and counted while something is kept.
import test, { type ExecutionContext } from 'ava'

import {
  type HostTensor,
  type Kv,
  KvCache,
  PagedKvCache,
  RollbackCache,
  RotatingCache,
  RotatingKvCache,
} from '../../index.js'
import { used } from '../support/garbage.js'
import { throwsCode } from '../support/throws.js'

const MANY = 512
const rows = (count: number, heads = 1): HostTensor => ({
  data: new Float32Array(count * heads).fill(1),
  shape: [1, heads, count, 1],
})

const end = ({ k, v }: Kv): void => {
  k.dispose()
  v.dispose()
}

/** Repeats each call: after the first two calls, a call leaves no memory in use when it returns, even without garbage collection. */
function keepsNothing(t: ExecutionContext, calls: Readonly<Record<string, () => void>>): void {
  for (const [name, call] of Object.entries(calls)) {
    call()
    call()
    const before = used()
    for (let round = 0; round < 5; round++) call()
    t.is(used(), before, name)
  }
}

test.serial('results that are disposed of give their memory back at once', t => {
  using pair = new RotatingKvCache({ maxSeqLen: 8 })
  using one = new RotatingCache({ dim: 2, maxSeqLen: 8 })
  keepsNothing(t, {
    'a prefill': () => end(pair.append(rows(MANY), rows(MANY))),
    'a prefill that was looked at': () => {
      const kv = pair.append(rows(MANY), rows(MANY))
      t.is(kv.k.length + kv.v.length, 2 * (8 + MANY))
      end(kv)
    },
    'a prefill of one tensor': () => one.append(rows(MANY)).dispose(),
    'the last append, again': () => one.lastAppendResult()?.dispose(),
    'a draft': () => {
      using draft = pair.begin()
      end(draft.append(rows(MANY), rows(MANY)))
    },
    'all of a cache that grew': () => {
      const cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 4 * MANY, headDim: 1 })
      for (let count = 1; count <= MANY; count *= 2) end(cache.update(rows(count), rows(count)))
      t.is(cache.stats().usedBytes, cache.stats().bufferBytes, 'what it outgrew is gone')
      cache.dispose()
    },
    'a cache that tensors are left of': () => {
      const cache = new RollbackCache()
      cache.append(rows(4), rows(4))
      cache.dispose()
    },
  })
  const cache = new RotatingKvCache({ maxSeqLen: 8 })
  const outlives = cache.append(rows(MANY), rows(MANY))
  cache.dispose()
  t.is(outlives.v.length, MANY)
  const before = used()
  end(outlives)
  t.is(before - used(), 8 * MANY, 'it outlives its cache, and ends with the last of it')
})

test.serial('a result that one tensor still shows stays', t => {
  using cache = new RotatingKvCache({ maxSeqLen: 8 })
  const before = used()
  const { k, v } = cache.append(rows(MANY), rows(MANY))
  const part = k.narrow(2, 1, 2)
  k.dispose()
  v.dispose()
  throwsCode(t, 'DISPOSED', () => v.toArray())
  end(cache.append(rows(1), rows(1)))
  t.deepEqual(Array.from(part.toFloat32Array()), [1, 1])
  t.true(used() - before >= 8 * MANY)
  part.dispose()
  t.is(used() - before, cache.stats().bufferBytes)
})

test.serial('a buffer that the cache has no longer is not held for having been shown', t => {
  using window = new RotatingCache({ dim: 2, maxSeqLen: 1, sinks: 1, slack: 0, capacitySeqLen: 0 })
  window.append(rows(1)).dispose()
  window.reset()
  using empty = window.snapshot()
  window.append(rows(2)).dispose()
  window.restore(empty)
  t.like(window.stats(), { bufferBytes: 4, heldBytes: 0, usedBytes: 4 }, 'restored')

  using grown = new RotatingKvCache({ maxSeqLen: 8, capacitySeqLen: 2 })
  end(grown.append(rows(1), rows(1)))
  end(grown.append(rows(MANY), rows(MANY)))
  t.is(grown.stats().heldBytes, 8 * (MANY + 1), 'a long append keeps its own result, and not the smaller buffer')

  using drafted = new RotatingKvCache({ maxSeqLen: 8 })
  for (const finish of ['rollback', 'dispose'] as const) {
    const draft = drafted.begin()
    end(draft.append(rows(2), rows(2)))
    draft[finish]()
    t.is(drafted.stats().usedBytes, 0, finish)
  }
})

const model = {
  layers: [
    { kind: 'full', numKvHeads: 1, headDim: 1 },
    { kind: 'sliding', window: 4, numKvHeads: 1, headDim: 1 },
  ],
} as const
const layers = (count: number): readonly Kv[] =>
  [0, 1].map(() => ({ k: rows(count), v: rows(count) })) as unknown as Kv[]

test.serial('copies of pages are held beside the cache, until they are disposed of', t => {
  using pages = new PagedKvCache({
    capacity: 64,
    blockSize: 16,
    numLayers: 1,
    numKvHeads: 1,
    headDim: 1,
    memoryLimitBytes: 64 * 16 * 8,
  })
  const sequence = pages.openSequence()
  sequence.append({ k: rows(MANY), v: rows(MANY) })
  using blocks = new PagedKvCache({ model, capacity: 64, blockSize: 16 })
  const ofModel = blocks.openSequence()
  ofModel.append({ layers: layers(MANY) })
  const subjects = [
    ['gather', () => pages.stats(), () => pages.gather(sequence.id, 0)],
    ['kv', () => blocks.stats(), () => ofModel.kv(0) as Kv],
  ] as const
  for (const [name, stats, copy] of subjects) {
    const { usedBytes } = stats()
    const copies = [copy(), copy(), copy()]
    t.is(stats().heldBytes, 3 * 8 * MANY, name)
    t.is(stats().usedBytes, usedBytes + 3 * 8 * MANY, name)
    copies.forEach(end)
    t.is(stats().heldBytes, 0, name)
    t.is(stats().usedBytes, usedBytes, name)
  }
})

test.serial('a snapshot that is restored again writes nothing, so that views stay', t => {
  const seven = { data: Float32Array.of(7), shape: [1, 1, 1, 1] }
  using growing = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 16, maxSeqLen: 16, headDim: 1 })
  using window = new RotatingKvCache({ maxSeqLen: 8, slack: 8 })
  const caches = [
    [
      () => growing.snapshot(),
      (held: unknown) => growing.restore(held as never),
      () => growing.update(seven, seven),
      () => growing.truncate(3),
      () => growing.getKv(),
    ],
    [
      () => window.snapshot(),
      (held: unknown) => window.restore(held as never),
      () => window.append(seven, seven),
      () => window.setLen(3),
      () => window.currentData() as Kv,
    ],
  ] as const
  growing.update(rows(6), rows(6))
  window.append(rows(6), rows(6))
  for (const [snapshot, restore, append, cut, read] of caches) {
    const held = snapshot()
    cut()
    append()
    restore(held)
    const whole = read()
    restore(held)
    t.false(whole.k.isStale, 'it was there already')
    t.deepEqual(Array.from(whole.k.toFloat32Array()), [1, 1, 1, 1, 1, 1])
    cut()
    const start = read()
    append()
    restore(held)
    t.true(whole.k.isStale, 'one token was written over, and back')
    t.deepEqual(Array.from(start.v.toFloat32Array()), [1, 1, 1], 'those before it were not')
    t.deepEqual(Array.from(read().v.toFloat32Array()), [1, 1, 1, 1, 1, 1])
  }
})
