// RollbackCache: tentative and committed tokens, marks, and draft trees.
import test from 'ava'

import { RollbackCache, type Kv } from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { FLOATS, numbers, rows, span, tokens } from '../support/tokens.js'

const keys = (cache: RollbackCache): number[] | null => numbers(cache.current()?.k ?? null)
const lengths = (cache: RollbackCache): number[] => [cache.totalLen, cache.committedLen]
const add = (cache: RollbackCache, start: number, end: number, parents?: number[]): Kv =>
  cache.append(tokens(start, end), tokens(start + 100, end + 100), parents === undefined ? {} : { parents })

/** A cache with the tokens 0 up to `committed` committed. */
function committed(end: number): RollbackCache {
  const cache = new RollbackCache()
  add(cache, 0, end)
  cache.commit()
  return cache
}

for (const dtype of FLOATS) {
  test(`${dtype}: tentative tokens are committed, and taken back`, t => {
    using cache = new RollbackCache()
    t.deepEqual([lengths(cache), cache.current(), cache.device], [[0, 0], null, 'cpu'])
    const shown = cache.append(tokens(0, 3, dtype), tokens(10, 13, dtype))
    t.deepEqual(
      [numbers(shown.k), numbers(shown.v)],
      [
        [0, 1, 2],
        [10, 11, 12],
      ],
    )
    t.deepEqual(lengths(cache), [3, 0])
    cache.commit()
    t.deepEqual(lengths(cache), [3, 3])
    const mark = cache.snapshot()
    t.is(mark.committedLen, 3)
    cache.append(tokens(3, 8, dtype), tokens(13, 18, dtype))
    t.is(cache.totalLen, 8)
    cache.rollback(mark)
    t.deepEqual(lengths(cache), [3, 3])
    t.deepEqual(keys(cache), [0, 1, 2])
    t.is(cache.current()?.v.dtype, dtype)
  })
}

test('K and V agree in every dimension, with each other and with what is there', t => {
  using cache = new RollbackCache()
  throwsCode(t, 'SHAPE_MISMATCH', () => cache.append(tokens(0, 1), tokens(0, 2)))
  throwsCode(t, 'DTYPE_MISMATCH', () => cache.append(tokens(0, 1), tokens(0, 1, 'bf16')))
  t.is(cache.current(), null)
  add(cache, 0, 1)
  throwsCode(t, 'SHAPE_MISMATCH', () => cache.append(rows('f32', [0], [1]), rows('f32', [0], [1])))
  throwsCode(t, 'DTYPE_MISMATCH', () => cache.append(tokens(0, 1, 'f16'), tokens(0, 1, 'f16')))
  t.deepEqual(lengths(cache), [1, 0])
})

test('a commit is an absolute length between committed and total; the rest stays tentative', t => {
  using cache = committed(2)
  add(cache, 2, 6)
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.commit(1))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.commit(7))
  cache.commit(4)
  t.deepEqual(lengths(cache), [6, 4])
  cache.commit(4)
  t.deepEqual([lengths(cache), keys(cache)], [[6, 4], span(0, 6)])
})

test('several marks may be outstanding, and an older one goes back behind the commit point', t => {
  using cache = committed(2)
  const early = cache.snapshot()
  add(cache, 2, 4)
  cache.commit()
  const late = cache.snapshot()
  add(cache, 4, 6)
  cache.rollback(late)
  t.deepEqual([lengths(cache), keys(cache)], [[4, 4], span(0, 4)])
  cache.rollback(early)
  t.deepEqual([lengths(cache), keys(cache)], [[2, 2], span(0, 2)])
  throwsCode(t, 'SNAPSHOT_INVALID', () => cache.rollback(late), { reason: 'it is ahead of the committed tokens' })
  cache.rollback(early)
})

test('a mark of a branch that was overwritten is refused, also when it is as long', t => {
  using cache = committed(2)
  const early = cache.snapshot()
  add(cache, 2, 4)
  cache.commit()
  const gone = cache.snapshot()
  cache.rollback(early)
  add(cache, 20, 23)
  cache.commit()
  throwsCode(t, 'SNAPSHOT_INVALID', () => cache.rollback(gone))
  t.deepEqual(
    [lengths(cache), keys(cache)],
    [
      [5, 5],
      [0, 1, 20, 21, 22],
    ],
  )
  cache.rollback(early)
  t.is(cache.totalLen, 2)
})

test('a mark of another cache is refused', t => {
  using cache = committed(3)
  using other = committed(3)
  throwsCode(t, 'SNAPSHOT_INVALID', () => cache.rollback(other.snapshot()), { reason: 'it belongs to another cache' })
})

test('an accepted path keeps its tokens in order, commits them and drops the rest', t => {
  using cache = committed(2)
  //  2 ─┬─ 4        tentative tokens 0 .. 5 are 2 .. 7
  //     └─ 5 ── 7
  //  3 ── 6
  add(cache, 2, 8, [-1, -1, 0, 0, 1, 3])
  cache.acceptPath([0, 3, 5])
  t.deepEqual(
    [lengths(cache), keys(cache)],
    [
      [5, 5],
      [0, 1, 2, 5, 7],
    ],
  )
  t.deepEqual(numbers(cache.current()?.v ?? null), [100, 101, 102, 105, 107])
  add(cache, 8, 10)
  cache.acceptPath([])
  t.deepEqual(
    [lengths(cache), keys(cache)],
    [
      [5, 5],
      [0, 1, 2, 5, 7],
    ],
  )
})

test('a path may be given in any array of whole numbers', t => {
  for (const path of [[0, 1], new Int32Array([0, 1]), new Uint32Array([0, 1])]) {
    using cache = committed(1)
    add(cache, 1, 4)
    cache.acceptPath(path)
    t.deepEqual(keys(cache), [0, 1, 2])
  }
})

test('indices that are no path are refused, and nothing moves', t => {
  using cache = committed(1)
  add(cache, 1, 5, [-1, 0, 0, 1])
  for (const path of [[1], [0, 3], [0, 2, 3], [0, 0], [1, 0], [4], [0, 1, 3, 3]]) {
    throwsCode(t, 'INVALID_PATH', () => cache.acceptPath(path))
  }
  throwsCode(t, 'INVALID_PATH', () => cache.acceptPath([0, 3]), {
    place: 1,
    node: 3,
    reason: 'it is not a child of the node before it',
  })
  for (const path of [[-1], [0.5], new Int32Array([-1]), new Float32Array([0]), 'x', [2 ** 31]]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.acceptPath(path as never))
  }
  t.deepEqual([lengths(cache), keys(cache)], [[5, 1], span(0, 5)])
})

test('parents come before their children, one for each token', t => {
  using cache = committed(1)
  for (const parents of [[-1, 2], [0, 0], [-2, 0], [-1], [-1, 0, 0], [-1, 0.5], [-1, undefined]]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => add(cache, 1, 3, parents as number[]))
  }
  t.deepEqual(lengths(cache), [1, 1])
  add(cache, 1, 3, [-1, 0])
  add(cache, 3, 5, [1, -1])
  cache.acceptPath([0, 1, 2])
  t.deepEqual(keys(cache), [0, 1, 2, 3])
})

test('tokens that follow one that was committed, but is not the last, can no longer be accepted', t => {
  using cache = committed(1)
  add(cache, 1, 5, [-1, 0, 0, 1])
  cache.commit(3)
  throwsCode(t, 'INVALID_PATH', () => cache.acceptPath([0]))
  cache.acceptPath([1])
  t.deepEqual(
    [lengths(cache), keys(cache)],
    [
      [4, 4],
      [0, 1, 2, 4],
    ],
  )
})

test('the mask and the positions of a draft tree follow its parents', t => {
  using cache = committed(2)
  const [o, x] = [0, Number.NEGATIVE_INFINITY]
  const mask = cache.treeMask([-1, 0, 0, 1])
  t.deepEqual([mask.shape, mask.dtype], [[4, 6], 'f32'])
  const seen = [
    [o, o, o, x, x, x],
    [o, o, o, o, x, x],
    [o, o, o, x, o, x],
    [o, o, o, o, x, o],
  ]
  t.deepEqual(numbers(mask), seen.flat())
  t.deepEqual(cache.treePositions(new Int32Array([-1, 0, 0, 1])), new Int32Array([2, 3, 3, 4]))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.treeMask([0]))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.treePositions([-1, 1]))
  t.deepEqual([cache.treeMask([]).shape, cache.treePositions([]).length], [[0, 2], 0])
  t.deepEqual(lengths(cache), [2, 2], 'asking changes nothing')
})

test('the mask of no draft over no tokens is empty', t => {
  using cache = new RollbackCache()
  t.deepEqual(cache.treeMask([]).shape, [0, 0])
})

test('a view of what was taken back goes stale when it is overwritten', t => {
  using cache = committed(2)
  const mark = cache.snapshot()
  const draft = add(cache, 2, 4).k
  cache.rollback(mark)
  t.deepEqual(numbers(draft), span(0, 4))
  add(cache, 9, 10)
  throwsCode(t, 'STALE_VIEW', () => draft.toArray())
  const tree = add(cache, 10, 12, [-1, 0]).k
  cache.acceptPath([1])
  throwsCode(t, 'STALE_VIEW', () => tree.toArray())
  t.deepEqual(keys(cache), [0, 1, 10])
})

test("parents that lie in the cache's own memory are read before it is written", t => {
  using cache = new RollbackCache()
  const mark = cache.snapshot()
  const { data } = add(cache, 0, 4).k
  cache.rollback(mark)
  const parents = new Int32Array(data.buffer, data.byteOffset, 4)
  parents.set([-1, 0, 1, 2])
  cache.append(tokens(50, 54), tokens(50, 54), { parents })
  cache.acceptPath([0, 1, 2, 3])
  t.deepEqual(keys(cache), span(50, 54))
})

test('an object that snapshot() did not make is refused as a snapshot', t => {
  using cache = new RollbackCache()
  for (const forged of [{ committedLen: 0 }, Object.create(cache.snapshot()), new Map()]) {
    throwsCode(t, 'SNAPSHOT_INVALID', () => cache.rollback(forged as never))
  }
  for (const other of [null, undefined, 3, {}]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.rollback(other as never))
  }
})

test('the value of a refusal is what was given', t => {
  using cache = new RollbackCache()
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.commit(7), {
    argument: 'len',
    value: 7,
    expected: 'from 0 (committed) to 0 (total)',
  })
})
