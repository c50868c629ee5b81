// Windows of a PagedKvCache: what attention sees unless it says otherwise, and what reads and tables show of what is left.
import test from 'ava'

import {
  attend,
  attendAsync,
  type HostTensor,
  type Kv,
  PagedKvCache,
  type UniformCacheOptions,
  type Sequence,
} from '../../index.js'
import { throwsCode } from '../support/throws.js'

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 16, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, window: 2, ...options })

const zeros = (n: number): HostTensor => ({ data: new Float32Array(n), shape: [1, 1, n, 1] })
const rows = (...values: number[]): HostTensor => ({ data: Float32Array.from(values), shape: [1, 1, values.length, 1] })
const queries = (n: number): HostTensor => ({ data: new Float32Array(n), shape: [n, 1, 1] })

function feed(seq: Sequence, ...values: number[]): void {
  seq.append({ k: zeros(values.length), v: rows(...values) })
}

for (const blockSize of [1, 2, 16]) {
  test(`the last token of a sequence sees the window of its cache, in blocks of ${blockSize}`, async t => {
    using cache = cacheOf({ blockSize })
    const seq = cache.openSequence()
    feed(seq, 1, 2, 4, 8, 16)
    const kv = { cache, layer: 0, sequences: [seq] }
    t.deepEqual(attend(queries(1), kv).out.toArray(), Float32Array.of(12))
    t.deepEqual((await attendAsync(queries(1), kv)).out.toArray(), Float32Array.of(12))
    t.deepEqual(attend(queries(1), kv, { window: 1 }).out.toArray(), Float32Array.of(16))
    feed(seq, 32)
    t.deepEqual(attend(queries(1), kv).out.toArray(), Float32Array.of(24))
  })

  test(`a step and its tables see the window of the cache and its sinks, in blocks of ${blockSize}`, t => {
    using cache = cacheOf({ blockSize, sinks: 1, capacity: 64 })
    // Another tenant takes what the first one gives back.
    const [seq, other] = [cache.openSequence({ salt: 'one' }), cache.openSequence({ salt: 'another' })]
    feed(seq, 3, 100, 100, 100, 100, 6)
    feed(other, ...Array.from({ length: 12 }, () => 1000))
    using batch = cache.stepBatch({ maxSequences: 1, maxBlocks: 16, maxTokens: 2 })
    using step = cache.prepareStep(batch, { sequences: [seq], offsets: [0, 2] })
    step.write(0, { data: new Float32Array(2), shape: [1, 2, 1] }, { data: Float32Array.of(9, 12), shape: [1, 2, 1] })
    t.deepEqual(step.attend(0, queries(2)).out.toArray(), Float32Array.of(6, 8))
    const { blockTables, lengths, queryOffsets: qOffsets } = batch
    t.deepEqual(
      attend(queries(2), { cache, layer: 0, blockTables, lengths }, { qOffsets }).out.toArray(),
      Float32Array.of(6, 8),
    )
    const gone = Array.from(blockTables).filter(block => block === -1).length
    t.is(gone, { 1: 3, 2: 1, 16: 0 }[blockSize] as number)
  })
}

test('a query whose window is gone is refused, not answered from what is left', t => {
  using cache = cacheOf({ blockSize: 1 })
  const seq = cache.openSequence()
  feed(seq, 1, 2, 4, 8, 16)
  const kv = { cache, layer: 0, sequences: [seq] }
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(queries(2), kv, { qOffsets: [0, 2] }), {
    argument: 'window',
    value: 2,
    expected: 'at most 1 for the query at 3 of sequence 0: tokens before 3 have left the cache',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(queries(1), kv, { window: 5 }))
  t.deepEqual(attend(queries(2), kv, { qOffsets: [0, 2], window: 1 }).out.toArray(), Float32Array.of(8, 16))
  for (const blockTables of [
    [-1, -1, -1, -1, -1],
    [0, -1, 0, -1, 0],
    [-2, -2, -2, 3, 4],
  ]) {
    throwsCode(t, 'INVALID_BLOCK', () =>
      attend(queries(1), { cache, layer: 0, blockTables: Int32Array.from(blockTables), lengths: Int32Array.of(5) }),
    )
  }
})

test('what is read of a window says where it stands, and how long it is', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  t.is(seq.retainedLength, 0)
  feed(seq, 1, 2, 4, 8, 16, 32, 64)
  t.deepEqual([seq.length, seq.retainedLength], [7, 3])
  const { k, v } = cache.gather(seq, 0)
  t.deepEqual([v.shape, v.keyPositions, k.keyPositions, v.data], [[1, 3, 1], [4], [4], Float32Array.of(16, 32, 64)])
  const into = cache.gatherInto(seq, 0, new Float32Array(seq.retainedLength), new Float32Array(seq.retainedLength))
  t.deepEqual(into.v, Float32Array.of(16, 32, 64))
  throwsCode(t, 'DIM_MISMATCH', () =>
    cache.gatherInto(seq, 0, new Float32Array(seq.length), new Float32Array(seq.length)),
  )
  seq.drop()
  throwsCode(t, 'SEQUENCE_NOT_FOUND', () => seq.retainedLength)
})

test('sinks and the window are two runs of what is read', t => {
  using cache = cacheOf({ sinks: 2 })
  const seq = cache.openSequence()
  feed(seq, 1, 2, 4, 8, 16, 32, 64, 128)
  const { k, v } = cache.gather(seq, 0)
  t.deepEqual([v.shape, v.keyPositions, v.toArray()], [[1, 4, 1], [0, 6], Float32Array.of(1, 2, 64, 128)])
  throwsCode(t, 'NOT_CONTIGUOUS', () => v.data)
  // A batch of one, its positions known: attention over the copy is that over the pages.
  const batched = { k: k.reshape([1, 1, 4, 1]), v: v.reshape([1, 1, 4, 1]) }
  t.deepEqual(attend(zeros(1), batched).out.toArray(), Float32Array.of(195 / 4))
  t.deepEqual(attend(queries(1), { cache, layer: 0, sequences: [seq] }).out.toArray(), Float32Array.of(195 / 4))
})

test('a layer of a model that slides says where what it retains stands', t => {
  const model = { layers: [{ kind: 'sliding', window: 2, sinks: 1, numKvHeads: 1, headDim: 1 }] } as const
  using cache = new PagedKvCache({ model, blockSize: 1, capacity: 8 })
  const seq = cache.openSequence()
  const values = { data: Float32Array.of(1, 2, 4, 8, 16), shape: [1, 5, 1] }
  seq.append({ layers: [{ k: { data: new Float32Array(5), shape: [1, 5, 1] }, v: values }] })
  const kv = seq.kv(0) as Kv
  t.deepEqual([kv.v.shape, kv.v.keyPositions, kv.v.toArray()], [[1, 1, 3, 1], [0, 3], Float32Array.of(1, 8, 16)])
  t.deepEqual(attend(zeros(1), kv, { window: 2 }).out.toArray(), Float32Array.of(12))
})

test('a sequence without a block for its last token has no part in the tables of a step of others', t => {
  using cache = cacheOf({ window: 1, sinks: 0 })
  const [cut, other] = [cache.openSequence(), cache.openSequence()]
  feed(cut, 1, 2, 4, 8, 16)
  cut.truncate(4)
  feed(other, 3)
  t.deepEqual([cut.length, cut.retainedLength], [4, 0])
  using batch = cache.stepBatch({ maxSequences: 2, maxBlocks: 4, maxTokens: 1 })
  using step = cache.prepareStep(batch, { sequences: [cut, other], offsets: [0, 0, 1] })
  step.write(0, { data: new Float32Array(1), shape: [1, 1, 1] }, { data: Float32Array.of(9), shape: [1, 1, 1] })
  t.deepEqual(step.attend(0, queries(1)).out.toArray(), Float32Array.of(9))
  const { blockTables, lengths } = batch
  const attended = (...qOffsets: number[]): Float32Array =>
    attend(
      queries(1),
      { cache, layer: 0, blockTables, lengths },
      { qOffsets: Int32Array.from(qOffsets) },
    ).out.toArray() as Float32Array
  t.deepEqual(attended(0, 0, 1), Float32Array.of(9))
  throwsCode(t, 'INVALID_BLOCK', () => attended(0, 1, 1))
})
