// RotatingKvCache: the window of RotatingCache, over K and V in one operation.
import test from 'ava'

import { RotatingCache, RotatingKvCache, Tensor, type Kv, type RotatingKvCacheOptions } from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { FLOATS, numbers, rows, span, tokens } from '../support/tokens.js'

const make = (options: Partial<RotatingKvCacheOptions> = {}): RotatingKvCache =>
  new RotatingKvCache({ maxSeqLen: 4, capacitySeqLen: 4, ...options })

const both = (kv: Kv | null): (number[] | null)[] | null => kv && [numbers(kv.k), numbers(kv.v)]

/** The same tokens, 100 higher in V. */
const pair = (start: number, end: number): number[][] => [span(start, end), span(start + 100, end + 100)]

for (const dtype of FLOATS) {
  const append = (cache: RotatingKvCache, start: number, end: number): Kv =>
    cache.append(tokens(start, end, dtype), tokens(start + 100, end + 100, dtype))

  test(`${dtype}: K and V slide together`, t => {
    using cache = make()
    t.deepEqual(both(append(cache, 0, 3)), pair(0, 3))
    t.deepEqual(both(append(cache, 3, 6)), pair(0, 6))
    t.deepEqual(both(cache.currentData()), pair(2, 6))
    t.deepEqual(both(append(cache, 6, 7)), pair(3, 7))
    t.deepEqual(both(cache.lastAppendResult()), pair(3, 7))
    t.deepEqual([cache.currentSeqLen, cache.retainedLen, cache.dim, cache.dtype], [7, 4, 2, dtype])
  })

  test(`${dtype}: a snapshot survives the compactions after it, and goes on with accepted tokens`, t => {
    using cache = make({ sinks: 1, slack: 1 })
    append(cache, 0, 6)
    using snapshot = cache.snapshot()
    t.deepEqual(
      [snapshot.currentSeqLen, snapshot.maxSeqLen, snapshot.retainedLen, snapshot.sinks, snapshot.dim],
      [6, 4, 5, 1, 2],
    )
    append(cache, 6, 9)
    const accepted = cache.acceptedAppendFromBatchedAppend(snapshot, 8, 0, 1)
    t.deepEqual(both(accepted), pair(6, 8))
    for (const token of span(9, 30)) append(cache, token, token + 1)
    using again = RotatingKvCache.restoreFromSnapshot(snapshot, null, 6)
    t.deepEqual(both(again.currentData())?.[0], [0, ...span(2, 6)])
    using other = make({ sinks: 1 })
    other.restore(snapshot)
    const [k, v] = [tokens(6, 8, dtype), tokens(106, 108, dtype)]
    using restored = RotatingKvCache.restoreFromSnapshot(snapshot, { k, v }, 8)
    t.deepEqual(both(restored.currentData()), [
      [0, ...span(4, 8)],
      [100, ...span(104, 108)],
    ])
    t.deepEqual(both(append(other, 6, 8)), [
      [0, ...span(2, 8)],
      [100, ...span(102, 108)],
    ])
  })
}

test('K and V have to agree with each other and with what is there', t => {
  using cache = make()
  const token = tokens(0, 1)
  throwsCode(t, 'SHAPE_MISMATCH', () => cache.append(token, tokens(0, 2)))
  throwsCode(t, 'SHAPE_MISMATCH', () => cache.append(token, rows('f32', [0], [1])))
  throwsCode(t, 'SHAPE_MISMATCH', () => cache.append(Tensor.from(new Float32Array(3), [1, 3, 1]), token))
  throwsCode(t, 'DTYPE_MISMATCH', () => cache.append(token, tokens(0, 1, 'f16')))
  t.deepEqual([cache.currentSeqLen, cache.dtype], [0, null])
  cache.append(token, token)
  throwsCode(t, 'DTYPE_MISMATCH', () => cache.append(tokens(0, 1, 'f16'), tokens(0, 1, 'f16')))
  t.is(cache.currentSeqLen, 1)
})

test('setLen, reset and trySetLen cut both', t => {
  using cache = make()
  cache.append(tokens(0, 4), tokens(10, 14))
  cache.trySetLen(0)
  cache.setLen(3)
  t.deepEqual(both(cache.currentData()), [span(0, 3), span(10, 13)])
  t.is(cache.lastAppendResult(), null)
  cache.reset()
  t.is(cache.currentData(), null)
  cache.append(tokens(0, 5), tokens(0, 5))
  throwsCode(t, 'CANNOT_ROLL_BACK', () => cache.setLen(2))
})

test('allData is a live window of both buffers', t => {
  using cache = make({ slack: 1 })
  t.is(cache.allData(), null)
  cache.append(tokens(1, 3), tokens(11, 13))
  const all = cache.allData()
  t.deepEqual(both(all), [
    [1, 2, 0, 0, 0],
    [11, 12, 0, 0, 0],
  ])
  cache.reset()
  cache.append(tokens(5, 6), tokens(6, 7))
  t.deepEqual(both(all), [
    [5, 2, 0, 0, 0],
    [6, 12, 0, 0, 0],
  ])
})

test('a snapshot of the other kind of rotating cache is refused everywhere', t => {
  using pairs = make()
  using single = new RotatingCache({ dim: 2, maxSeqLen: 4, capacitySeqLen: 4 })
  pairs.append(tokens(0, 2), tokens(0, 2))
  single.append(tokens(0, 2))
  using ofPairs = pairs.snapshot()
  using ofSingle = single.snapshot()
  const token = tokens(2, 3)
  for (const call of [
    () => pairs.restore(ofSingle),
    () => single.restore(ofPairs),
    () => pairs.canAppendFromSnapshot(ofSingle, 1),
    () => single.canAppendFromSnapshot(ofPairs, 1),
    () => pairs.acceptedAppendFromBatchedAppend(ofSingle, 2, 0, 1),
    () => single.acceptedAppendFromBatchedAppend(ofPairs, 2, 0, 1),
    () => RotatingCache.restoreFromSnapshot(ofPairs, null, 2),
    () => RotatingCache.restoreFromSnapshot(ofPairs, token, 3),
    () => RotatingKvCache.restoreFromSnapshot(ofSingle, null, 2),
    () => RotatingKvCache.restoreFromSnapshot(ofSingle, { k: token, v: token }, 3),
  ]) {
    throwsCode(t, 'SNAPSHOT_INVALID', call, { reason: 'it belongs to the other kind of rotating cache' })
  }
})

test('accepted K and V come together', t => {
  using cache = make()
  cache.append(tokens(0, 2), tokens(0, 2))
  using snapshot = cache.snapshot()
  const token = tokens(2, 3)
  for (const accepted of [{ k: token }, { v: token }, {}, 5, 'x', token]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => RotatingKvCache.restoreFromSnapshot(snapshot, accepted as never, 3))
  }
  throwsCode(t, 'SHAPE_MISMATCH', () => RotatingKvCache.restoreFromSnapshot(snapshot, { k: token, v: tokens(2, 4) }, 3))
})
