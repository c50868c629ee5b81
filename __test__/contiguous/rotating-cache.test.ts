// RotatingCache: the table and the values of its specification, in every float type.
import test from 'ava'

import { RotatingCache, Tensor, type DType, type RotatingCacheOptions } from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { elements, FLOATS, numbers, rows, span, tokens } from '../support/tokens.js'

const make = (options: Partial<RotatingCacheOptions> = {}): RotatingCache =>
  new RotatingCache({ dim: 2, maxSeqLen: 4, capacitySeqLen: 4, ...options })

/** A cache to which the tokens 0 up to `end` were appended, each list in one call. */
function filled(dtype: DType, ...ends: readonly number[]): RotatingCache {
  const cache = make()
  let start = 0
  for (const end of ends) {
    cache.append(tokens(start, end, dtype))
    start = end
  }
  return cache
}

for (const dtype of FLOATS) {
  test(`${dtype}: a prefill over the window shows retained and new tokens, and retains the newest`, t => {
    using cache = make()
    t.deepEqual(numbers(cache.append(tokens(0, 3, dtype))), [0, 1, 2])
    t.is(cache.currentSeqLen, 3)
    t.deepEqual(numbers(cache.append(tokens(3, 6, dtype))), [0, 1, 2, 3, 4, 5])
    t.is(cache.currentSeqLen, 6)
    t.deepEqual(numbers(cache.currentData()), [2, 3, 4, 5])
    t.is(cache.dtype, dtype)
  })

  test(`${dtype}: nothing can be cut off once the window has moved on`, t => {
    using cache = filled(dtype, 5)
    const details = { requested: 4, seqLen: 5, reason: 'the window has dropped tokens that it needs' }
    throwsCode(t, 'CANNOT_ROLL_BACK', () => cache.trySetLen(4), details)
    throwsCode(t, 'CANNOT_ROLL_BACK', () => cache.setLen(4), details)
    t.is(cache.currentSeqLen, 5)
    t.deepEqual(numbers(cache.currentData()), [1, 2, 3, 4])
  })

  test(`${dtype}: accepted tokens restore from a snapshot`, t => {
    using cache = filled(dtype, 5)
    using snapshot = cache.snapshot()
    cache.append(tokens(5, 8, dtype))
    const accepted = cache.acceptedAppendFromBatchedAppend(snapshot, 7, 0, 1)
    t.deepEqual(numbers(accepted), [5, 6])
    using restored = RotatingCache.restoreFromSnapshot(snapshot, accepted, 7)
    t.is(restored.currentSeqLen, 7)
    t.deepEqual(numbers(restored.currentData()), [3, 4, 5, 6])
  })

  test(`${dtype}: accepted tokens of one row of a batch`, t => {
    using single = filled(dtype, 3)
    using snapshot = single.snapshot()
    using batched = make()
    batched.append(rows(dtype, [0, 1, 2], [10, 11, 12]))
    batched.append(rows(dtype, [3, 4, 5], [13, 14, 15]))
    t.deepEqual(numbers(batched.acceptedAppendFromBatchedAppend(snapshot, 5, 1, 2)), [13, 14])
    t.deepEqual(numbers(batched.acceptedAppendFromBatchedAppend(snapshot, 6, 0, 2)), [3, 4, 5])
  })

  test(`${dtype}: one token after a prefill over the window shows the window`, t => {
    using cache = make()
    t.deepEqual(numbers(cache.append(tokens(0, 7, dtype))), span(0, 7))
    t.is(cache.currentSeqLen, 7)
    t.deepEqual(numbers(cache.currentData()), [3, 4, 5, 6])
    t.deepEqual(numbers(cache.append(tokens(7, 8, dtype))), [4, 5, 6, 7])
  })

  test(`${dtype}: several tokens after the window has wrapped show retained and new ones`, t => {
    using cache = filled(dtype, 3, 6, 7, 8)
    t.deepEqual(numbers(cache.append(tokens(8, 11, dtype))), span(4, 11))
    t.deepEqual(numbers(cache.currentData()), span(7, 11))
  })

  test(`${dtype}: sinks stay in front of the window`, t => {
    using cache = make({ sinks: 2 })
    for (const token of span(0, 9)) cache.append(tokens(token, token + 1, dtype))
    t.is(cache.retainedLen, 6)
    const data = cache.currentData()
    t.deepEqual(numbers(data), [0, 1, 5, 6, 7, 8])
    t.deepEqual(data?.keyPositions, [0, 5])
    t.deepEqual(numbers(cache.append(tokens(9, 11, dtype))), [0, 1, ...span(5, 11)])
    t.deepEqual(cache.lastAppendResult()?.keyPositions, [0, 5])
  })
}

test('every option is checked before anything is made', t => {
  throwsCode(t, 'INVALID_ARGUMENT', () => make({ maxSeqLen: 0 }))
  throwsCode(t, 'INVALID_ARGUMENT', () => make({ dim: 8 }))
  throwsCode(t, 'INVALID_ARGUMENT', () => make({ device: 'gpu' }))
  throwsCode(t, 'DEVICE_UNAVAILABLE', () => make({ device: 'metal' }))
  t.is(
    make({ maxSeqLen: 2 ** 31 - 1, capacitySeqLen: 1 }).maxSeqLen,
    2 ** 31 - 1,
    "any window, without slack of one's own",
  )
  throwsCode(t, 'INVALID_ARGUMENT', () => make({ maxSeqLen: 2 ** 31 - 1, slack: 1 }))
  t.is(make({ capacitySeqLen: 100 }).capacitySeqLen, 4, 'the capacity is cut to the window')
  t.is(make({ capacitySeqLen: 0 }).capacitySeqLen, 0)
  t.is(make({ device: 'auto' }).device, 'cpu')
})

test('an append that does not fit is refused and changes nothing', t => {
  using cache = filled('f32', 3)
  const shown = cache.lastAppendResult()
  for (const [code, src] of [
    ['DTYPE_MISMATCH', tokens(0, 1, 'f16')],
    ['SHAPE_MISMATCH', Tensor.from(new Float32Array(2), [1, 2, 1, 1])],
    ['SHAPE_MISMATCH', Tensor.from(new Float32Array(2), [1, 2])],
    ['SHAPE_MISMATCH', rows('f32', [1], [2])],
  ] as const) {
    throwsCode(t, code, () => cache.append(src))
    t.is(cache.currentSeqLen, 3)
    t.false(shown?.isStale)
    t.deepEqual(numbers(cache.currentData()), [0, 1, 2])
  }
})

test('an empty append shows what is retained, and leaves an empty cache open', t => {
  using cache = make()
  t.is(cache.append(Tensor.from(new Float32Array(0), [2, 3, 0, 5])).length, 0)
  t.deepEqual([cache.currentSeqLen, cache.currentData(), cache.dtype], [0, null, null])
  cache.append(tokens(0, 2, 'f16'))
  t.deepEqual(numbers(cache.append(tokens(2, 2, 'f16'))), [0, 1])
  t.is(cache.currentSeqLen, 2)
})

test('setLen cuts within the window, and shows nothing longer than there is', t => {
  using cache = filled('f32', 4)
  cache.trySetLen(2)
  t.is(cache.currentSeqLen, 4, 'trySetLen only checks')
  cache.setLen(2)
  t.deepEqual(numbers(cache.currentData()), [0, 1])
  t.is(cache.lastAppendResult(), null)
  throwsCode(t, 'CANNOT_ROLL_BACK', () => cache.setLen(3), {
    requested: 3,
    seqLen: 2,
    reason: 'the cache has fewer tokens',
  })
  cache.append(tokens(7, 8))
  t.deepEqual(numbers(cache.currentData()), [0, 1, 7])
  cache.setLen(3)
  t.is(cache.lastAppendResult(), null, 'also when nothing was cut')
})

test('reset empties it and keeps window, capacity and memory', t => {
  using cache = filled('f32', 3, 6)
  const { bufferBytes } = cache.stats()
  cache.reset()
  t.deepEqual(
    [cache.currentSeqLen, cache.retainedLen, cache.currentData(), cache.lastAppendResult()],
    [0, 0, null, null],
  )
  t.is(cache.stats().bufferBytes, bufferBytes)
  t.deepEqual(numbers(cache.append(tokens(1, 3))), [1, 2])
})

test('canAppendFromSnapshot compares the number of tokens, window and room, and not the tokens', t => {
  using cache = filled('f32', 3)
  using snapshot = cache.snapshot()
  t.true(cache.canAppendFromSnapshot(snapshot, 4))
  t.false(cache.canAppendFromSnapshot(snapshot, 5))
  using other = new RotatingCache({ dim: 2, maxSeqLen: 5 })
  other.append(tokens(0, 3))
  t.false(other.canAppendFromSnapshot(snapshot, 1), 'another window')
  using same = make()
  same.append(tokens(10, 13))
  t.true(same.canAppendFromSnapshot(snapshot, 4), 'other tokens, as many')
  cache.append(tokens(3, 4))
  t.false(cache.canAppendFromSnapshot(snapshot, 1), 'another length')
})

test('accepted tokens are refused, in the order that is written down, or null', t => {
  using cache = make()
  using nothing = cache.snapshot()
  throwsCode(t, 'CACHE_EMPTY', () => cache.acceptedAppendFromBatchedAppend(nothing, 0, 0, 1))
  cache.append(tokens(0, 2))
  using snapshot = cache.snapshot()
  cache.append(rows('f32', [2, 3]))
  const accepted = (keepLen: number, rowIdx: number, batchLen: number): number[] | null =>
    numbers(cache.acceptedAppendFromBatchedAppend(snapshot, keepLen, rowIdx, batchLen))
  throwsCode(t, 'INVALID_ARGUMENT', () => accepted(1, 0, 1))
  throwsCode(t, 'INVALID_ARGUMENT', () => accepted(5, 0, 1))
  for (const [rowIdx, batchLen] of [
    [0, 0],
    [0, 2],
    [1, 1],
  ] as const) {
    throwsCode(t, 'INVALID_ARGUMENT', () => accepted(3, rowIdx, batchLen))
    throwsCode(t, 'INVALID_ARGUMENT', () => accepted(2, rowIdx, batchLen))
  }
  t.is(accepted(2, 0, 1), null)
  t.deepEqual(accepted(3, 0, 1), [2])
  t.deepEqual(accepted(4, 0, 1), [2, 3])
})

test('accepted tokens of a prefill past the window begin where its new tokens begin', t => {
  using cache = filled('f32', 3, 6, 7)
  using snapshot = cache.snapshot()
  cache.append(tokens(7, 10))
  t.deepEqual(numbers(cache.acceptedAppendFromBatchedAppend(snapshot, 9, 0, 1)), [7, 8])
})

test('restoreFromSnapshot wants exactly the tokens between', t => {
  using cache = filled('f32', 3)
  using snapshot = cache.snapshot()
  throwsCode(t, 'INVALID_ARGUMENT', () => RotatingCache.restoreFromSnapshot(snapshot, null, 4))
  throwsCode(t, 'INVALID_ARGUMENT', () => RotatingCache.restoreFromSnapshot(snapshot, tokens(3, 5), 4))
  throwsCode(t, 'INVALID_ARGUMENT', () => RotatingCache.restoreFromSnapshot(snapshot, null, 2))
  throwsCode(t, 'DTYPE_MISMATCH', () => RotatingCache.restoreFromSnapshot(snapshot, tokens(3, 4, 'f16'), 4))
  using same = RotatingCache.restoreFromSnapshot(snapshot, null, 3)
  t.deepEqual(numbers(same.currentData()), [0, 1, 2])
  using empty = make()
  using fresh = RotatingCache.restoreFromSnapshot(empty.snapshot(), undefined, 0)
  t.is(fresh.currentData(), null)
  using first = RotatingCache.restoreFromSnapshot(empty.snapshot(), tokens(0, 6), 6)
  t.deepEqual(numbers(first.currentData()), [2, 3, 4, 5])
})

test('a snapshot survives every compaction, growth and cut after it', t => {
  const options = { maxSeqLen: 4, capacitySeqLen: 1, slack: 2, sinks: 1 }
  using cache = make(options)
  const snapshots = [cache.snapshot()]
  const expected: (number[] | null)[] = [null]
  for (const token of span(0, 40)) {
    cache.append(tokens(token, token + 1))
    snapshots.push(cache.snapshot())
    expected.push(numbers(cache.currentData()))
  }
  cache.reset()
  cache.append(tokens(100, 110))
  cache.dispose()
  for (const [place, snapshot] of snapshots.entries()) {
    using restored = RotatingCache.restoreFromSnapshot(snapshot, null, place)
    t.deepEqual(numbers(restored.currentData()), expected[place] as number[] | null)
  }
})

test('restore takes back what a snapshot saw, of its own cache or of another', t => {
  using cache = filled('f32', 3, 6)
  using snapshot = cache.snapshot()
  cache.append(tokens(6, 9))
  cache.restore(snapshot)
  t.deepEqual([cache.currentSeqLen, numbers(cache.currentData()), cache.lastAppendResult()], [6, [2, 3, 4, 5], null])
  using other = make()
  other.restore(snapshot)
  t.deepEqual(numbers(other.append(tokens(6, 7))), [3, 4, 5, 6])
  t.deepEqual(numbers(cache.currentData()), [2, 3, 4, 5])
  using narrow = new RotatingCache({ dim: 2, maxSeqLen: 3 })
  throwsCode(t, 'SNAPSHOT_INVALID', () => narrow.restore(snapshot))
  using half = filled('f16', 1)
  throwsCode(t, 'SNAPSHOT_INVALID', () => half.restore(snapshot))
})

test('the sequence may lie along any dimension', t => {
  for (const [dim, shape] of [
    [0, [2, 3]],
    [1, [3, 2]],
    [4, [1, 1, 1, 3, 2]],
  ] as const) {
    using cache = new RotatingCache({ dim, maxSeqLen: 2 })
    const src = (first: number): Tensor => Tensor.from(elements('f32', span(first, first + 6)), shape)
    cache.append(src(0))
    const shown = cache.append(src(6))
    t.deepEqual(
      shown.shape,
      shape.map((size, axis) => (axis === dim ? 4 : size)),
    )
    const last = cache.currentData()
    t.deepEqual(numbers(last), numbers(src(6).narrow(dim, 0, 2)))
  }
})

test('a one-token append writes one token: copies come with compactions alone', t => {
  using cache = new RotatingCache({ dim: 2, maxSeqLen: 64, capacitySeqLen: 64, slack: 64 })
  for (const token of span(0, 64 * 5)) cache.append(tokens(token % 200, (token % 200) + 1))
  const { compactions, copiedBytes, growths } = cache.stats()
  t.is(growths, 0)
  t.true(compactions <= 4, `${compactions} compactions`)
  t.is(copiedBytes, compactions * 63 * 4)
})
