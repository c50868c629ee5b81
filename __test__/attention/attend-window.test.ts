// Attention over what a cache with a window shows takes that window, however the result is held; copies have none.
import test from 'ava'

import {
  attend,
  attendAsync,
  type HostTensor,
  type Kv,
  type KvSource,
  PagedKvCache,
  RotatingKvCache,
  type Sequence,
  Tensor,
} from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

/** Tokens of one head and one element. */
const rows = (...data: number[]): HostTensor => ({ data: Float32Array.from(data), shape: [1, 1, data.length, 1] })
const zeros = (count: number): HostTensor => rows(...span(0, count).map(() => 0))

/** With keys that are zeros, what a query gets is the mean of the values that it sees: of their positions. */
const append = (cache: RotatingKvCache, from: number, to: number): Kv =>
  cache.append(zeros(to - from), rows(...span(from, to)))
const copy = (of: Tensor): Tensor => Tensor.from(of.toArray(), of.shape)
const means = (kv: KvSource, queries: number, options = {}): number[] =>
  Array.from(attend(zeros(queries), kv, options).out.toFloat32Array())

test('a prompt longer than the window sees no further back than the window', t => {
  using cache = new RotatingKvCache({ maxSeqLen: 4 })
  const shown = append(cache, 0, 16)
  t.deepEqual(means(shown, 16), [0, 0.5, 1, ...span(3, 16).map(query => query - 1.5)])
  t.deepEqual(means(shown, 1, { window: 2 }), [14.5])
  t.deepEqual(means(shown, 1, { window: 16 }), [7.5], 'everything is there')
  using withSinks = new RotatingKvCache({ maxSeqLen: 4, sinks: 1 })
  t.deepEqual(means(append(withSinks, 0, 16), 1), [Math.fround((0 + 12 + 13 + 14 + 15) / 5)])
})

test('a query that would see what is gone is refused, and told what is left', t => {
  using cache = new RotatingKvCache({ maxSeqLen: 4 })
  append(cache, 0, 16)
  const shown = cache.currentData() as Kv
  t.deepEqual(means(shown, 1), [13.5])
  const expected = 'at most 3 for the query at 14 of sequence 0: tokens before 12 have left the cache'
  throwsCode(t, 'INVALID_ARGUMENT', () => means(shown, 2), { argument: 'window', value: 4, expected })
  t.deepEqual(means(shown, 2, { window: 3 }), [13, 14])
  throwsCode(t, 'INVALID_ARGUMENT', () => means(shown, 1, { window: 5 }))
  throwsCode(t, 'INVALID_ARGUMENT', () => means(shown, 1, { window: 4, sinks: 1 }))
})

test('results that were looked at, parts of them and work in the background know it too; copies do not', async t => {
  using cache = new RotatingKvCache({ maxSeqLen: 4 })
  const { k, v } = append(cache, 0, 16)
  t.deepEqual([k.shape, v.keyPositions], [[1, 1, 16, 1], [0]])
  t.deepEqual(means({ k, v }, 1), [13.5])
  t.deepEqual(means({ k: k.narrow(2, 0, 10), v: v.narrow(2, 0, 10) }, 1), [7.5])
  t.deepEqual(Array.from((await attendAsync(zeros(1), { k, v })).out.toArray()), [13.5])
  t.deepEqual(means({ k: copy(k), v: copy(v) }, 1), [7.5])
  t.deepEqual(means({ k: k.reshape(k.shape), v }, 1), [7.5], 'other axes')
  const last = append(cache, 16, 17)
  t.deepEqual(means(last, 1), [14.5])
  t.deepEqual(means(cache.lastAppendResult() as Kv, 1), [14.5])
})

test('a draft tree sees by its positions, whether it is named or masked', t => {
  using cache = new RotatingKvCache({ maxSeqLen: 3, sinks: 1 })
  append(cache, 0, 6)
  const parents = [-1, -1, 0, 1, 2]
  const draft = cache.begin()
  const shown = draft.append(zeros(5), rows(10, 20, 30, 40, 50), { parents })
  const wanted = [
    (0 + 4 + 5 + 10) / 4,
    (0 + 4 + 5 + 20) / 4,
    (0 + 5 + 10 + 30) / 4,
    (0 + 5 + 20 + 40) / 4,
    (0 + 10 + 30 + 50) / 4,
  ]
  const near = (found: number[]): boolean =>
    t.deepEqual(
      found.map(value => Math.round(value * 1e4) / 1e4),
      wanted,
    )
  near(means(shown, 5, { tree: parents }))
  for (const causal of [true, false]) near(means(shown, 5, { mask: draft.treeMask(), causal }))
  draft.rollback()
  t.deepEqual(means(cache.currentData() as Kv, 1), [(0 + 3 + 4 + 5) / 4])
})

/** A step of one layer, its values the numbers of these tokens. */
function write(cache: PagedKvCache, sequence: Sequence, values: readonly number[], parents?: readonly number[]): void {
  const step = cache.beginStep({
    sequences: [sequence],
    offsets: [0, values.length],
    ...(parents === undefined ? {} : { parents }),
  })
  const shape = [1, values.length, 1]
  step.write(0, { data: new Float32Array(values.length), shape }, { data: Float32Array.from(values), shape })
  step.commit()
}

for (const blockSize of [4, 1]) {
  test(`blocks of ${blockSize}: what a sliding layer of a model shows has its window, and a column of its mask for each token`, t => {
    const model = { layers: [{ kind: 'sliding', window: 2, sinks: 0, numKvHeads: 1, headDim: 1 }] } as const
    using cache = new PagedKvCache({ model, capacity: [32], blockSize })
    const sequence = cache.openSequence()
    write(cache, sequence, span(0, 5))
    t.deepEqual(means(sequence.kv(0) as Kv, 1), [3.5])
    const draft = sequence.begin()
    write(cache, sequence, [10, 20, 30], [-1, -1, 0])
    const [kv, mask] = [sequence.kv(0) as Kv, draft.treeMask(0)]
    t.is(kv.k.shape[2], mask.shape[1])
    const seen = Array.from(mask.toFloat32Array(), value => value === 0)
    const columns = mask.shape[1] as number
    t.deepEqual(
      span(0, 3).map(row => seen.slice(row * columns, (row + 1) * columns).filter(Boolean).length),
      [2, 2, 2],
    )
    t.deepEqual(means(kv, 3, { mask, causal: false }), [7, 12, 20])
    t.deepEqual(means(kv, 3, { tree: [-1, -1, 0] }), [7, 12, 20])
    draft.rollback()
  })
}
