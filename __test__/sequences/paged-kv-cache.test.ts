// PagedKvCache: sequences in blocks of one pool, token by token, in bulk, and in low-bit pages.
import test, { type ExecutionContext } from 'ava'

import { PagedKvCache, Tensor, type TensorData, type UniformCacheOptions } from '../../index.js'
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
        cache.writeKv(
          seq,
          layer,
          pos,
          elements(dtype, span(first, first + 6)),
          elements(dtype, span(first + 6, first + 12)),
        )
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
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.ensureCapacity(other, 5), { needed: 3, free: 2, sequences: 2, held: 2 })
  throwsCode(t, 'OUT_OF_BLOCKS', () => write(cache, other, 0, 4, 0), { needed: 3, free: 2, sequences: 2, held: 2 })
  t.deepEqual([cache.freeCount, cache.sequenceCapacity(other), cache.sequenceLength(other)], [2, 0, 0])
  cache.ensureCapacity(other, 4)
  t.is(cache.poolUtilization(), 1)
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.ensureCapacity(one, 2 ** 31 - 1))
  cache.dropSequence(one)
  t.deepEqual([cache.freeCount, cache.poolUtilization()], [2, 0.5])
})

test('an empty pool can be used for nothing', t => {
  using cache = make({ capacity: 0 })
  const seq = cache.createSequence()
  t.deepEqual([cache.poolUtilization(), cache.totalCount, cache.freeCount], [0, 0, 0])
  cache.ensureCapacity(seq, 0)
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.ensureCapacity(seq, 1), { needed: 1, free: 0, sequences: 1, held: 0 })
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
  throwsCode(t, 'DTYPE_MISMATCH', () =>
    cache.writeKv(seq, 0, 0, Tensor.from(elements('bf16', span(0, 6)), [6], { dtype: 'bf16' }), good),
  )
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

test("a token may come as a tensor, a view of another cache, or memory of the caller's own", t => {
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

const makeSmall = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 6, blockSize: 2, numLayers: 2, numKvHeads: 2, headDim: 3, ...options })

/** Numbers from `first` on, in any shape. */
const numbers = (first: number, shape: readonly number[]): { data: Float32Array; shape: readonly number[] } => ({
  data: Float32Array.from(span(first, first + shape.reduce((product, size) => product * size, 1))),
  shape,
})

/** Checks that `call` is refused with `code`, and which argument is to blame. */
function blames(
  t: ExecutionContext,
  code: 'INVALID_ARGUMENT' | 'SHAPE_MISMATCH',
  call: () => unknown,
  argument: string,
): void {
  t.is(throwsCode(t, code, call).details.argument, argument)
}

for (const dtype of FLOATS) {
  test(`${dtype}: tokens of a layer are written and gathered, head by head`, t => {
    using cache = makeSmall({ dtype })
    const seq = cache.createSequence()
    const data = elements(dtype, span(0, 18))
    cache.writeTokens(seq, 1, 0, { data, shape: [2, 3, 3], dtype }, { data, shape: [1, 2, 3, 3], dtype })
    const { k, v } = cache.gather(seq, 1)
    t.deepEqual([k.shape, k.dtype, k.toArray(), v.toArray()], [[2, 3, 3], dtype, data, data])
    const [key, value] = [elements(dtype, span(0, 18)).fill(0), elements(dtype, span(0, 18)).fill(0)]
    t.is(cache.gatherInto(seq, 1, key, value).k, key)
    t.deepEqual([key, value], [data, data])
    t.deepEqual(
      cache.gather(seq, 0).k.toArray(),
      elements(dtype, span(0, 18)).fill(0),
      'what was never written is zeros',
    )
    t.deepEqual(cache.sequenceLength(seq), 3)
  })
}

test('the order tokens, heads is read as well, and a part of a longer present', t => {
  using cache = makeSmall()
  const seq = cache.createSequence()
  // [tokens, heads, dim]
  const { data } = numbers(0, [2, 2, 3])
  cache.writeTokens(
    seq,
    0,
    0,
    { data, shape: [2, 2, 3], layout: 'bshd' },
    { data, shape: [1, 2, 2, 3], layout: 'bshd' },
  )
  const { k, v } = cache.gather(seq, 0)
  t.deepEqual(k.toArray(), Float32Array.from([0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11]))
  t.true(k.equals(v))
  const present = { data: numbers(0, [1, 2, 5, 3]).data, dims: [1, 2, 5, 3], type: 'float32' }
  cache.writeTokens(seq, 1, 0, { data: present, range: [3, 5] }, { data: present, range: [3, 5] })
  t.deepEqual(cache.readKv(seq, 1, 0).key, Float32Array.from([9, 10, 11, 24, 25, 26]))
})

test('one call appends to all layers of several sequences', t => {
  using cache = makeSmall()
  const [one, other] = [cache.createSequence(), cache.createSequence()]
  const first = numbers(0, [2, 2, 3, 3])
  cache.append([one, other], first, first, Int32Array.from([0, 2, 3]))
  t.deepEqual([cache.sequenceLength(one), cache.sequenceLength(other)], [2, 1])
  t.deepEqual(cache.readKv(other, 1, 0).value, Float32Array.from([24, 25, 26, 33, 34, 35]))
  const step = numbers(100, [2, 2, 2, 3])
  cache.append(Float64Array.from([other, one]), step, Tensor.from(step.data, step.shape))
  t.deepEqual([cache.sequenceLength(one), cache.sequenceLength(other)], [3, 2])
  t.deepEqual(cache.readKv(one, 0, 2).key, Float32Array.from([103, 104, 105, 109, 110, 111]))
  cache.append([], numbers(0, [2, 2, 0, 3]), numbers(0, [2, 2, 0, 3]))
})

test('an append is done whole, or nothing of it', t => {
  using cache = makeSmall({ capacity: 3 })
  const [one, other] = [cache.createSequence(), cache.createSequence()]
  const five = numbers(0, [2, 2, 5, 3])
  throwsCode(
    t,
    'OUT_OF_BLOCKS',
    () => cache.append([one, other], numbers(0, [2, 2, 6, 3]), numbers(0, [2, 2, 6, 3]), [0, 3, 6]),
    { needed: 4, free: 3, sequences: 2, held: 0 },
  )
  throwsCode(t, 'SEQUENCE_NOT_FOUND', () => cache.append([one, 9], five, five, [0, 2, 5]), { seq: 9 })
  blames(t, 'INVALID_ARGUMENT', () => cache.append([one, one], five, five, [0, 2, 5]), 'sequences')
  blames(t, 'INVALID_ARGUMENT', () => cache.append([one, other], five, five, [0, 2]), 'offsets.length')
  blames(t, 'INVALID_ARGUMENT', () => cache.append([one, other], five, five, [0, 4, 3]), 'offsets')
  blames(t, 'INVALID_ARGUMENT', () => cache.append([one, other], five, five, [1, 2, 5]), 'offsets')
  blames(t, 'INVALID_ARGUMENT', () => cache.append([one, other], five, five, [0, 2, 4]), 'k')
  blames(t, 'INVALID_ARGUMENT', () => cache.append([one, other], five, five), 'k')
  blames(t, 'INVALID_ARGUMENT', () => cache.append([one, other], five, five, []), 'offsets')
  blames(t, 'INVALID_ARGUMENT', () => cache.append([-1], five, five), 'sequences[0]')
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.append('01' as never, five, five))
  blames(t, 'SHAPE_MISMATCH', () => cache.append([one], numbers(0, [1, 2, 5, 3]), five, [0, 5]), 'k')
  blames(t, 'SHAPE_MISMATCH', () => cache.append([one], five, numbers(0, [2, 2, 4, 3]), [0, 5]), 'v')
  t.deepEqual([cache.freeCount, cache.sequenceLength(one), cache.sequenceLength(other)], [3, 0, 0])
})

test('tokens that do not fit are refused by name', t => {
  using cache = makeSmall()
  const seq = cache.createSequence()
  const right = numbers(0, [2, 1, 3])
  for (const shape of [
    [2, 3],
    [1, 1, 3],
    [2, 1, 4],
    [2, 2, 1, 3],
    [1, 1, 2, 1, 3],
  ]) {
    blames(t, 'SHAPE_MISMATCH', () => cache.writeTokens(seq, 0, 0, numbers(0, shape), right), 'k')
    blames(t, 'SHAPE_MISMATCH', () => cache.writeTokens(seq, 0, 0, right, numbers(0, shape)), 'v')
  }
  throwsCode(t, 'DTYPE_MISMATCH', () =>
    cache.writeTokens(seq, 0, 0, { data: new Uint16Array(6), shape: [2, 1, 3], dtype: 'f16' }, right),
  )
  blames(t, 'SHAPE_MISMATCH', () => cache.writeTokens(seq, 0, 0, right, numbers(0, [2, 2, 3])), 'v')
  blames(t, 'INVALID_ARGUMENT', () => cache.writeTokens(seq, 2, 0, right, right), 'layer')
  blames(t, 'INVALID_ARGUMENT', () => cache.writeTokens(seq, 0, 2 ** 31 - 1, right, right), 'pos')
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.writeTokens(seq, 0, 12, right, right), {
    needed: 7,
    free: 6,
    sequences: 1,
    held: 0,
  })
  t.deepEqual([cache.freeCount, cache.sequenceLength(seq)], [6, 0])
  cache.writeTokens(seq, 0, 0, right, right)
  throwsCode(t, 'DIM_MISMATCH', () => cache.gatherInto(seq, 0, new Float32Array(5), new Float32Array(6)), {
    argument: 'k',
    value: 5,
    actual: 5,
    expected: 6,
  })
  const room = new Float32Array(9)
  blames(t, 'INVALID_ARGUMENT', () => cache.gatherInto(seq, 0, room.subarray(0, 6), room.subarray(3, 9)), 'v')
  t.deepEqual(room, new Float32Array(9))
})

const LOW_BIT = ['f8e4m3', 'q8', 'q4'] as const
/** Half a step of values up to 1: of f8e4m3 at 1, of q8, of q4 between -1 and 1. */
const HALF_STEP = { f8e4m3: 1 / 32, q8: 0.51 / 127, q4: 1.01 / 15 }

/** The largest difference between two lists of numbers. */
const distance = (one: TensorData, other: TensorData): number =>
  Math.max(...Array.from(one, (value, at) => Math.abs(value - (other[at] as number))))

for (const format of LOW_BIT) {
  test(`${format}: pages are quantised when they are full, and never by more than half a step`, t => {
    for (const hadamard of [false, true]) {
      using cache = makeSmall({ headDim: 32, numLayers: 1, keyFormat: format, valueFormat: format, hadamard })
      const seq = cache.createSequence()
      const data = Float32Array.from({ length: 2 * 3 * 32 }, (_, at) => Math.sin(at))
      cache.writeTokens(seq, 0, 0, { data, shape: [2, 3, 32] }, { data, shape: [2, 3, 32] })
      const { k, v } = cache.gather(seq, 0)
      const values = v.toArray()
      t.is(k.dtype, 'f32')
      t.true(distance(values, data) > 0 && distance(values, data) <= HALF_STEP[format], `${distance(values, data)}`)
      t.true(distance(k.toArray(), data) <= HALF_STEP[format] * (hadamard ? 6 : 1))
      const last = cache.readKv(seq, 0, 2)
      t.is(
        distance(last.value, Float32Array.from([...data.subarray(64, 96), ...data.subarray(160, 192)])),
        0,
        'the page that is not full is exact',
      )
      t.true(last.key instanceof Float32Array)
    }
  })
}

test('q8 takes at most 0.3 of the bytes of f32, and staging is counted and given back', t => {
  const [q8, f32] = ['q8', 'f32'].map(format =>
    makeSmall({ blockSize: 16, headDim: 128, keyFormat: format as 'q8', valueFormat: format as 'q8' }),
  ) as [PagedKvCache, PagedKvCache]
  t.true(q8.bytesPerToken <= 0.3 * f32.bytesPerToken)
  t.is(f32.bytesPerToken, 2 * 2 * 2 * 128 * 4)
  const before = q8.stats().bufferBytes
  t.is(before, 6 * 16 * q8.bytesPerToken)
  const seq = q8.createSequence()
  const token = numbers(0, [2, 2, 1, 128])
  q8.append([seq], token, token)
  t.is(q8.stats().bufferBytes, before + 2 * 2 * 2 * 16 * 128 * 4, 'a page of each layer')
  q8.dropSequence(seq)
  q8.append([q8.createSequence()], token, token)
  t.is(q8.stats().bufferBytes, before + 2 * 2 * 2 * 16 * 128 * 4, 'the same pages again')
})

test('staging that does not fit is refused, and nothing has changed', t => {
  const q8: Partial<UniformCacheOptions> = { keyFormat: 'q8', valueFormat: 'q8' }
  using free = makeSmall(q8)
  // Room for the slab, and not for a staging page of 96 bytes.
  using cache = makeSmall({ ...q8, memoryLimitBytes: free.stats().bufferBytes + 95 })
  const seq = cache.createSequence()
  throwsCode(t, 'OUT_OF_MEMORY', () => cache.writeTokens(seq, 0, 0, numbers(0, [2, 3, 3]), numbers(0, [2, 3, 3])))
  t.deepEqual([cache.freeCount, cache.sequenceLength(seq), cache.sequenceCapacity(seq)], [6, 0, 0])
  cache.writeTokens(seq, 0, 0, numbers(0, [2, 4, 3]), numbers(0, [2, 4, 3]))
  t.is(cache.sequenceLength(seq), 4, 'what fills its pages needs no staging')
})

test('K and V have their own form and head dimension', t => {
  using cache = makeSmall({ keyFormat: 'q4', valueHeadDim: 5, dtype: 'f16' })
  t.like(cache, {
    keyFormat: 'q4',
    valueFormat: 'f16',
    headDim: 3,
    valueHeadDim: 5,
    hadamard: false,
    valueHadamard: false,
  })
  const seq = cache.createSequence()
  const [k, v] = [elements('f16', span(0, 12)), elements('f16', span(0, 20))]
  cache.writeTokens(seq, 0, 0, { data: k, shape: [2, 2, 3], dtype: 'f16' }, { data: v, shape: [2, 2, 5], dtype: 'f16' })
  const gathered = cache.gather(seq, 0)
  t.deepEqual([gathered.k.dtype, gathered.v.dtype, gathered.v.toArray()], ['f32', 'f16', v])
  t.deepEqual(cache.readKv(seq, 0, 0).value.length, 10)
})

test('a cache without V keeps K alone', t => {
  using cache = makeSmall({ valueHeadDim: 0, numKvHeads: 1 })
  const seq = cache.createSequence()
  const none = { data: new Float32Array(0), shape: [2, 1, 3, 0] }
  cache.append([seq], numbers(0, [2, 1, 3, 3]), none, [0, 3])
  t.deepEqual(cache.readKv(seq, 1, 0), { key: Float32Array.from([9, 10, 11]), value: new Float32Array(0) })
  t.deepEqual(cache.gather(seq, 0).v.shape, [1, 3, 0])
  cache.writeKv(seq, 0, 3, Float32Array.from([1, 2, 3]), new Float32Array(0))
  t.is(cache.sequenceLength(seq), 4)
})

test('half floats under f32 are rounded when they are written, and come out as they lie', t => {
  using cache = makeSmall({
    keyFormat: 'f16',
    valueFormat: 'bf16',
    blockSize: 16,
    numLayers: 1,
    numKvHeads: 1,
    headDim: 2,
  })
  t.is(cache.bytesPerToken, 2 * 2 + 2 * 2)
  const seq = cache.createSequence()
  // Halfway between two neighbours goes to the even one; 65520 is too large for f16.
  const [key, value] = [Float32Array.of(1 + 2 ** -11, 65520), Float32Array.of(1 + 2 ** -8, -3)]
  cache.writeKv(seq, 0, 0, key, value)
  t.deepEqual(cache.readKv(seq, 0, 0), { key: Uint16Array.of(0x3c00, 0x7c00), value: Uint16Array.of(0x3f80, 0xc040) })
  cache.append([seq], { data: key.fill(0.5), shape: [1, 1, 1, 2] }, { data: value, shape: [1, 1, 1, 2] })
  const { k, v } = cache.gather(seq, 0)
  t.deepEqual([k.dtype, v.dtype, v.toFloat32Array()], ['f16', 'bf16', Float32Array.of(1, -3, 1, -3)])
  const [into, out] = [new Uint16Array(4), new Uint16Array(4)]
  cache.gatherInto(seq, 0, into, out)
  t.deepEqual([into, out], [k.toArray(), v.toArray()])
  blames(t, 'INVALID_ARGUMENT', () => cache.gatherInto(seq, 0, new Float32Array(4) as never, out), 'k')
  throwsCode(t, 'DTYPE_MISMATCH', () => cache.writeKv(seq, 0, 2, Uint16Array.of(0, 0), value))
})

test('forms that do not go together are refused by name', t => {
  blames(t, 'INVALID_ARGUMENT', () => makeSmall({ dtype: 'bf16', keyFormat: 'f16' }), 'keyFormat')
  blames(t, 'INVALID_ARGUMENT', () => makeSmall({ dtype: 'f16', valueFormat: 'f32' }), 'valueFormat')
  blames(t, 'INVALID_ARGUMENT', () => makeSmall({ keyFormat: 'bf16', hadamard: true }), 'hadamard')
  blames(t, 'INVALID_ARGUMENT', () => makeSmall({ valueFormat: 'u8' }), 'valueFormat')
  blames(t, 'INVALID_ARGUMENT', () => makeSmall({ dtype: 'u8', keyFormat: 'q8' }), 'keyFormat')
  blames(t, 'INVALID_ARGUMENT', () => makeSmall({ hadamard: true }), 'hadamard')
  blames(t, 'INVALID_ARGUMENT', () => makeSmall({ keyFormat: 'q8', valueHadamard: true }), 'valueHadamard')
  blames(t, 'INVALID_ARGUMENT', () => makeSmall({ valueFormat: 'q8', hadamard: true }), 'hadamard')
  blames(t, 'INVALID_ARGUMENT', () => makeSmall({ keyFormat: 'q5' as never }), 'keyFormat')
  t.is(makeSmall({ dtype: 'u8' }).keyFormat, 'u8')
})
