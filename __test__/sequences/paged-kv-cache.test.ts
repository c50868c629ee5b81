// PagedKvCache: sequences in blocks of one pool.
import test from 'ava'

import { PagedKvCache, Tensor, type UniformCacheOptions } from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { elements, FLOATS, span } from '../support/tokens.js'

const make = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 4, blockSize: 2, numLayers: 2, numKvHeads: 2, headDim: 3, ...options })

/** One token's key or value: six small numbers from `first` on. */
const vector = (first: number): Float32Array => Float32Array.from(span(first, first + 6))

/** Everything that a sequence of one token each shows. */
const write = (cache: PagedKvCache, seq: number, layer: number, pos: number, first: number): void =>
  cache.writeKv(seq, layer, pos, vector(first), vector(first + 100))

for (const dtype of FLOATS) {
  test(`${dtype}: what was written is read, token by token and layer by layer`, t => {
    using cache = make({ dtype })
    const seq = cache.createSequence()
    for (const pos of span(0, 3)) {
      for (const layer of [0, 1]) {
        const first = 10 * pos + 50 * layer
        cache.writeKv(seq, layer, pos, elements(dtype, span(first, first + 6)), elements(dtype, span(first + 6, first + 12)))
      }
    }
    t.deepEqual(cache.readKv(seq, 1, 2), { key: elements(dtype, span(70, 76)), value: elements(dtype, span(76, 82)) })
    t.deepEqual(cache.readKv(seq, 0, 1), { key: elements(dtype, span(10, 16)), value: elements(dtype, span(16, 22)) })
    const key = elements(dtype, span(0, 6))
    const value = elements(dtype, span(0, 6))
    t.is(cache.readKvInto(seq, 0, 0, key, value).key, key)
    t.deepEqual(value, elements(dtype, span(6, 12)))
    t.deepEqual([cache.sequenceLength(seq), cache.sequenceCapacity(seq), cache.freeCount], [3, 4, 2])
  })
}

test('ids count up from 0 and are never used again', t => {
  using cache = make()
  t.deepEqual([cache.createSequence(), cache.createSequence(), cache.createSequence()], [0, 1, 2])
  cache.dropSequence(2)
  cache.dropSequence(0)
  t.is(cache.createSequence(), 3)
  t.deepEqual(cache.sequenceIds(), [1, 3])
  for (const seq of [0, 2, 4, 2 ** 53 - 1]) {
    throwsCode(t, 'SEQUENCE_NOT_FOUND', () => cache.dropSequence(seq), { seq })
    throwsCode(t, 'SEQUENCE_NOT_FOUND', () => cache.ensureCapacity(seq, 1))
    throwsCode(t, 'SEQUENCE_NOT_FOUND', () => write(cache, seq, 0, 0, 0))
    throwsCode(t, 'SEQUENCE_NOT_FOUND', () => cache.readKv(seq, 0, 0))
    t.deepEqual([cache.sequenceLength(seq), cache.sequenceCapacity(seq)], [0, 0])
  }
})

test('blocks are taken by the ceiling, all of them or none', t => {
  using cache = make()
  const [one, other] = [cache.createSequence(), cache.createSequence()]
  cache.ensureCapacity(one, 3)
  t.deepEqual([cache.sequenceCapacity(one), cache.sequenceLength(one), cache.freeCount, cache.totalCount], [4, 0, 2, 4])
  t.is(cache.poolUtilization(), 0.5)
  cache.ensureCapacity(one, 1)
  t.is(cache.sequenceCapacity(one), 4, 'what is there stays')
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.ensureCapacity(other, 5), { needed: 3, free: 2 })
  throwsCode(t, 'OUT_OF_BLOCKS', () => write(cache, other, 0, 4, 0), { needed: 3, free: 2 })
  t.deepEqual([cache.freeCount, cache.sequenceCapacity(other), cache.sequenceLength(other)], [2, 0, 0])
  cache.ensureCapacity(other, 4)
  t.is(cache.poolUtilization(), 1)
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.ensureCapacity(one, 2 ** 31 - 1))
  cache.dropSequence(one)
  t.deepEqual([cache.freeCount, cache.poolUtilization()], [2, 0.5])
})

test('an empty pool is used by nobody', t => {
  using cache = make({ capacity: 0 })
  const seq = cache.createSequence()
  t.deepEqual([cache.poolUtilization(), cache.totalCount, cache.freeCount], [0, 0, 0])
  cache.ensureCapacity(seq, 0)
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.ensureCapacity(seq, 1), { needed: 1, free: 0 })
  cache.dropSequence(seq)
})

test('a slot that is not allocated or not written cannot be read', t => {
  using cache = make()
  const seq = cache.createSequence()
  write(cache, seq, 0, 2, 0)
  t.is(cache.sequenceLength(seq), 3)
  throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(seq, 0, 1), { seq, layer: 0, pos: 1, length: 3 })
  throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(seq, 1, 2), { seq, layer: 1, pos: 2, length: 3 })
  throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(seq, 0, 3))
  throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(seq, 0, 2 ** 31 - 1))
  const [key, value] = [vector(0).fill(9), vector(0).fill(9)]
  throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKvInto(seq, 0, 0, key, value))
  t.deepEqual([key, value], [vector(0).fill(9), vector(0).fill(9)], 'nothing was written to them')
})

test('a block never shows one sequence what another wrote', t => {
  using cache = make({ capacity: 1 })
  const first = cache.createSequence()
  write(cache, first, 0, 0, 1)
  write(cache, first, 0, 1, 1)
  cache.dropSequence(first)
  const second = cache.createSequence()
  cache.ensureCapacity(second, 2)
  throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(second, 0, 0))
  write(cache, second, 0, 0, 7)
  t.deepEqual(cache.readKv(second, 0, 0).key, vector(7))
  throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(second, 0, 1))
  throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(second, 1, 0))
})

test('a layer out of range, and a vector of another length or dtype, are refused', t => {
  using cache = make()
  const seq = cache.createSequence()
  throwsCode(t, 'INVALID_ARGUMENT', () => write(cache, seq, 2, 0, 0))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.readKv(seq, 2, 0))
  const good = vector(0)
  const short = good.slice(1)
  const mismatch = { value: 5, actual: 5, expected: 6 }
  throwsCode(t, 'DIM_MISMATCH', () => cache.writeKv(seq, 0, 0, short, good), { argument: 'key', ...mismatch })
  throwsCode(t, 'DIM_MISMATCH', () => cache.writeKv(seq, 0, 0, good, short), { argument: 'value', ...mismatch })
  throwsCode(t, 'DTYPE_MISMATCH', () => cache.writeKv(seq, 0, 0, elements('f16', span(0, 6)), good))
  throwsCode(t, 'DTYPE_MISMATCH', () => cache.writeKv(seq, 0, 0, good, elements('u8', span(0, 6))))
  throwsCode(t, 'DTYPE_MISMATCH', () => cache.writeKv(seq, 0, 0, Tensor.from(elements('bf16', span(0, 6)), [6], { dtype: 'bf16' }), good))
  t.deepEqual([cache.sequenceCapacity(seq), cache.freeCount], [0, 4])
  write(cache, seq, 0, 0, 0)
  throwsCode(t, 'DIM_MISMATCH', () => cache.readKvInto(seq, 0, 0, short, good))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.readKvInto(seq, 0, 0, elements('f16', span(0, 6)) as never, good))
})

test('key and value are read into memory that does not overlap', t => {
  using cache = make()
  const seq = cache.createSequence()
  write(cache, seq, 0, 0, 1)
  const room = new Float32Array(9)
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.readKvInto(seq, 0, 0, room.subarray(0, 6), room.subarray(3, 9)))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.readKvInto(seq, 0, 0, room.subarray(0, 6), room.subarray(0, 6)))
  t.deepEqual(room, new Float32Array(9))
})

test('a token may come as a tensor, a view of another cache, or memory of the caller\'s own', t => {
  using cache = make()
  const seq = cache.createSequence()
  using tensor = Tensor.from(vector(20), [2, 1, 3])
  cache.writeKv(seq, 0, 0, tensor, { data: vector(30), dims: [2, 3], type: 'float32' })
  t.deepEqual(cache.readKv(seq, 0, 0), { key: vector(20), value: vector(30) })
  using wide = Tensor.from(Float32Array.from(span(0, 12)), [1, 2, 2, 3])
  cache.writeKv(seq, 1, 0, wide.narrow(2, 1, 1), vector(0))
  t.deepEqual(cache.readKv(seq, 1, 0).key, Float32Array.from([3, 4, 5, 9, 10, 11]))
})

test('a written token can be written again', t => {
  using cache = make()
  const seq = cache.createSequence()
  write(cache, seq, 0, 1, 1)
  write(cache, seq, 0, 1, 50)
  t.deepEqual(cache.readKv(seq, 0, 1), { key: vector(50), value: vector(150) })
  t.deepEqual([cache.sequenceLength(seq), cache.freeCount], [2, 3])
})

test('what it was made with can be read and not written', t => {
  using cache = new PagedKvCache({ capacity: 3, numLayers: 5, numKvHeads: 2, headDim: 7, dtype: 'bf16' })
  t.like(cache, { capacity: 3, blockSize: 16, numLayers: 5, numKvHeads: 2, headDim: 7, dtype: 'bf16', device: 'cpu' })
  t.throws(() => Object.assign(cache, { dtype: 'u8' }), { instanceOf: TypeError })
  t.throws(() => Object.defineProperty(cache, 'headDim', { value: 2 ** 40 }), { instanceOf: TypeError })
  t.is(cache.stats().bufferBytes, 3 * 5 * 2 * 2 * 16 * 7 * 2)
})
