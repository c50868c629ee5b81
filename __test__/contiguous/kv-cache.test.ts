// KvCache: the table and the values of its specification, in every float type.
import test from 'ava'

import { KvCache, Tensor, type DType, type KvCacheOptions } from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { bytes, elements, FLOATS, numbers, span, tokens } from '../support/tokens.js'

const make = (options: Partial<KvCacheOptions> = {}): KvCache =>
  new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 1, ...options })

/** A tensor `[1, 2, n, 4]` of distinct small numbers. */
const wide = (n: number, dtype: DType, from = 0): Tensor =>
  Tensor.from(elements(dtype, span(from, from + 8 * n)), [1, 2, n, 4], { dtype })

for (const dtype of FLOATS) {
  test(`${dtype}: K and V come back as views of the tokens in it`, t => {
    using cache = make({ numKvHeads: 2, headDim: 4, initialCapacity: 64, maxSeqLen: 2048, dtype })
    const [k, v] = [wide(3, dtype), wide(3, dtype, 100)]
    const shown = cache.update(k, v)
    t.is(cache.seqLen, 3)
    t.deepEqual(
      [shown.k.shape, shown.v.shape],
      [
        [1, 2, 3, 4],
        [1, 2, 3, 4],
      ],
    )
    t.true(shown.k.equals(k) && shown.v.equals(v))
    t.deepEqual([cache.dtype, shown.k.dtype], [dtype, dtype])
    cache.updateFused(wide(2, dtype, 50), wide(2, dtype, 150))
    t.is(cache.seqLen, 5)
    t.deepEqual(bytes(cache.getKv().k.narrow(2, 0, 3)), bytes(k))
    t.deepEqual(bytes(cache.getKv().v.narrow(2, 3, 2)), bytes(wide(2, dtype, 150)))
  })

  test(`${dtype}: it grows by doubling, never over maxSeqLen`, t => {
    using cache = make({ dtype, initialCapacity: 2, maxSeqLen: 11 })
    const capacities = span(0, 11).map(token => {
      cache.update(tokens(token, token + 1, dtype), tokens(token, token + 1, dtype))
      return cache.capacity
    })
    t.deepEqual(capacities, [2, 2, 4, 4, 8, 8, 8, 8, 11, 11, 11])
    t.deepEqual(numbers(cache.getKv().k), span(0, 11))
    t.is(cache.stats().growths, 3)
  })
}

test('a new cache is empty, with its first buffer', t => {
  using cache = make({ numKvHeads: 4, headDim: 64, maxSeqLen: 2048, initialCapacity: 32 })
  t.deepEqual([cache.seqLen, cache.capacity, cache.isEmpty], [0, 32, true])
  using spec = new KvCache({ batchSize: 1, numKvHeads: 4, headDim: 64, maxSeqLen: 2048, initialCapacity: 64 })
  t.deepEqual([spec.seqLen, spec.capacity, spec.isEmpty], [0, 64, true])
  t.deepEqual(
    [spec.batchSize, spec.numKvHeads, spec.headDim, spec.maxSeqLen, spec.dtype, spec.device],
    [1, 4, 64, 2048, 'f32', 'cpu'],
  )
  t.is(make({ initialCapacity: 100 }).capacity, 8, 'the capacity is cut to maxSeqLen')
})

test('what it was made with can be read and not written', t => {
  using cache = make()
  for (const name of ['batchSize', 'numKvHeads', 'headDim', 'maxSeqLen', 'dtype', 'device'] as const) {
    t.throws(() => Object.assign(cache, { [name]: 5 }), { instanceOf: TypeError }, name)
    t.false(Object.getOwnPropertyDescriptor(cache, name)?.configurable, name)
  }
  t.is(cache.maxSeqLen, 8)
})

test('more than maxSeqLen is refused before anything changes', t => {
  using cache = make()
  throwsCode(t, 'CACHE_OVERFLOW', () => cache.update(tokens(0, 10), tokens(0, 10)), {
    seqLen: 0,
    newTokens: 10,
    maxSeqLen: 8,
  })
  cache.update(tokens(0, 4), tokens(0, 4))
  const { k } = cache.getKv()
  const error = throwsCode(t, 'CACHE_OVERFLOW', () => cache.update(tokens(0, 10), tokens(0, 10)))
  t.is(error.message, 'cannot append 10 tokens: 4 of 8 used')
  t.deepEqual([cache.seqLen, cache.capacity, cache.stats().growths], [4, 4, 0])
  t.deepEqual(numbers(k), [0, 1, 2, 3])
})

test('K and V that do not fit are refused before anything changes', t => {
  using cache = make({ numKvHeads: 2, headDim: 4 })
  const good = wide(1, 'f32')
  for (const [code, k, v] of [
    ['DTYPE_MISMATCH', wide(1, 'f16'), good],
    ['DTYPE_MISMATCH', good, wide(1, 'bf16')],
    ['SHAPE_MISMATCH', wide(2, 'f32'), good],
    ['SHAPE_MISMATCH', good, wide(2, 'f32')],
    ['SHAPE_MISMATCH', good, good.reshape([1, 1, 2, 4])],
    ['SHAPE_MISMATCH', good.reshape([2, 1, 1, 4]), good],
    ['SHAPE_MISMATCH', good.reshape([2, 4]), good],
    ['SHAPE_MISMATCH', good.reshape([1, 2, 1, 4, 1]), good],
  ] as const) {
    throwsCode(t, code, () => cache.update(k, v))
    throwsCode(t, code, () => cache.updateFused(k, v))
    t.true(cache.isEmpty)
  }
})

test('an initial capacity of 0 works', t => {
  using cache = make({ initialCapacity: 0 })
  t.deepEqual([cache.capacity, cache.kCacheRaw.shape], [0, [1, 1, 0, 1]])
  cache.update(tokens(0, 5), tokens(5, 10))
  t.is(cache.seqLen, 5)
  t.true(cache.capacity >= 5)
  t.deepEqual(numbers(cache.getKv().v), span(5, 10))
})

test('an empty cache has no K and V to show', t => {
  using cache = make()
  throwsCode(t, 'CACHE_EMPTY', () => cache.getKv(), { operation: 'getKv' })
  cache.update(tokens(0, 2), tokens(0, 2))
  cache.reset()
  throwsCode(t, 'CACHE_EMPTY', () => cache.getKv())
  t.deepEqual([cache.seqLen, cache.isEmpty, cache.capacity], [0, true, 4])
})

test('an append of no tokens shows what is there', t => {
  using cache = make()
  t.deepEqual(cache.update(tokens(0, 0), tokens(0, 0)).k.shape, [1, 1, 0, 1])
  cache.update(tokens(0, 2), tokens(2, 4))
  t.deepEqual(numbers(cache.update(tokens(0, 0), tokens(0, 0)).v), [2, 3])
})

test('truncate drops the tail, and never adds one', t => {
  using cache = make()
  cache.update(tokens(0, 4), tokens(0, 4))
  throwsCode(t, 'CANNOT_ROLL_BACK', () => cache.truncate(5), {
    requested: 5,
    seqLen: 4,
    reason: 'the cache has fewer tokens',
  })
  cache.truncate(2)
  cache.update(tokens(9, 10), tokens(9, 10))
  t.deepEqual(numbers(cache.getKv().k), [0, 1, 9])
  cache.truncate(3)
  t.is(cache.seqLen, 3)
})

test('the raw buffers are live windows of the whole capacity', t => {
  using cache = make()
  cache.update(tokens(1, 3), tokens(11, 13))
  const [k, v] = [cache.kCacheRaw, cache.vCacheRaw]
  t.deepEqual(k.shape, [1, 1, 4, 1])
  t.deepEqual(
    [numbers(k), numbers(v)],
    [
      [1, 2, 0, 0],
      [11, 12, 0, 0],
    ],
  )
  cache.truncate(0)
  cache.update(tokens(7, 8), tokens(8, 9))
  t.false(k.isStale || v.isStale)
  t.deepEqual(
    [numbers(k), numbers(v)],
    [
      [7, 2, 0, 0],
      [8, 12, 0, 0],
    ],
  )
})

test('tokens that a kernel wrote itself are counted, within the capacity', t => {
  using cache = make()
  const [k, v] = [cache.kCacheRaw.data, cache.vCacheRaw.data]
  k.set([5, 6, 7])
  v.set([15, 16, 17])
  cache.incrementSeqLen()
  cache.incrementSeqLen(2)
  t.deepEqual(
    [numbers(cache.getKv().k), numbers(cache.getKv().v)],
    [
      [5, 6, 7],
      [15, 16, 17],
    ],
  )
  const error = throwsCode(t, 'CACHE_OVERFLOW', () => cache.incrementSeqLen(2), {
    seqLen: 3,
    newTokens: 2,
    maxSeqLen: 8,
    capacity: 4,
  })
  t.is(error.message, 'cannot count 2 more tokens: 3 of 4 slots are used')
  t.is(cache.seqLen, 3)
  cache.incrementSeqLen(0)
  t.is(cache.seqLen, 3)
})

test('stable addresses reserve everything at the start and never move', t => {
  using cache = make({ stableAddresses: true, initialCapacity: 1 })
  t.is(cache.capacity, 8)
  const raw = cache.kCacheRaw.data
  for (const token of span(0, 8)) cache.update(tokens(token, token + 1), tokens(token, token + 1))
  t.deepEqual(Array.from(raw), span(0, 8))
  t.is(cache.stats().growths, 0)
})

test('views of another length stay readable, and go stale when a slot of theirs is written', t => {
  using cache = make({ initialCapacity: 8 })
  const first = cache.update(tokens(0, 4), tokens(0, 4)).k
  cache.update(tokens(4, 6), tokens(4, 6))
  t.deepEqual(numbers(first), [0, 1, 2, 3])
  cache.truncate(2)
  t.deepEqual(numbers(first), [0, 1, 2, 3], 'nothing was written yet')
  const head = first.narrow(2, 0, 2)
  cache.update(tokens(7, 8), tokens(7, 8))
  throwsCode(t, 'STALE_VIEW', () => first.toArray())
  t.deepEqual(numbers(head), [0, 1])
  t.deepEqual(numbers(cache.getKv().k), [0, 1, 7])
})

test('growth leaves the views of the old buffer whole', t => {
  using cache = make()
  const old = cache.update(tokens(0, 4), tokens(10, 14))
  cache.update(tokens(4, 8), tokens(14, 18))
  cache.truncate(0)
  cache.update(tokens(20, 28), tokens(20, 28))
  t.deepEqual([numbers(old.k), numbers(old.v)], [span(0, 4), span(10, 14)])
})

test('a snapshot is what was seen, whatever came later', t => {
  using cache = make({ initialCapacity: 1 })
  cache.update(tokens(0, 3), tokens(10, 13))
  using snapshot = cache.snapshot()
  t.is(snapshot.length, 3)
  cache.truncate(1)
  cache.update(tokens(20, 27), tokens(30, 37))
  using later = cache.snapshot()
  cache.restore(snapshot)
  t.deepEqual(
    [numbers(cache.getKv().k), numbers(cache.getKv().v)],
    [
      [0, 1, 2],
      [10, 11, 12],
    ],
  )
  cache.restore(later)
  t.deepEqual(numbers(cache.getKv().k), [0, ...span(20, 27)])
  cache.restore(snapshot)
  t.is(cache.seqLen, 3)
})

test('a snapshot of another cache is copied, or refused with the reason', t => {
  using cache = make()
  cache.update(tokens(0, 4), tokens(4, 8))
  using snapshot = cache.snapshot()
  cache.dispose()
  using other = make({ initialCapacity: 0 })
  other.restore(snapshot)
  t.deepEqual([numbers(other.getKv().k), numbers(other.getKv().v)], [span(0, 4), span(4, 8)])
  for (const options of [{ headDim: 2 }, { dtype: 'f16' }, { batchSize: 2 }, { maxSeqLen: 3 }] as const) {
    using unlike = make(options)
    throwsCode(t, 'SNAPSHOT_INVALID', () => unlike.restore(snapshot))
    t.true(unlike.isEmpty)
  }
})
