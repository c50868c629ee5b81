// Tensor: data and shape, and the views that caches show.
import { inspect } from 'node:util'

import test from 'ava'

import { KvCache, RotatingCache, Tensor, type DType } from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { elements, FLOATS, numbers, span, tokens } from '../support/tokens.js'

const matrix = (dtype: DType = 'f32'): Tensor => Tensor.from(elements(dtype, span(0, 6)), [2, 3], { dtype })

for (const dtype of [...FLOATS, 'u8'] as const) {
  test(`${dtype}: what went in comes out, as bits and as numbers`, t => {
    const data = elements(dtype, span(0, 6))
    using tensor = Tensor.from(data, [2, 3], { dtype })
    t.deepEqual([tensor.shape, tensor.strides, tensor.length], [[2, 3], [3, 1], 6])
    t.deepEqual([tensor.dtype, tensor.device, tensor.isStale, tensor.isContiguous], [dtype, 'cpu', false, true])
    t.deepEqual(tensor.toArray(), data)
    t.deepEqual(tensor.data, data)
    t.deepEqual(tensor.toFloat32Array(), Float32Array.from(span(0, 6)))
    const out = elements(dtype, [0, 0, 0, 0, 0, 0])
    t.is(tensor.readInto(out), out)
    t.deepEqual(out, data)
    data.fill(9)
    t.deepEqual(numbers(tensor), span(0, 6), 'it is a copy')
  })

  test(`${dtype}: parts and other shapes read in order`, t => {
    using tensor = matrix(dtype)
    const column = tensor.narrow(1, 1, 2)
    t.deepEqual([column.shape, column.strides, column.isContiguous], [[2, 2], [3, 1], false])
    t.deepEqual(numbers(column), [1, 2, 4, 5])
    t.deepEqual(numbers(column.narrow(0, 1, 1)), [4, 5])
    t.deepEqual(numbers(column.reshape([4])), [1, 2, 4, 5])
    t.deepEqual(numbers(tensor.reshape([3, 1, 2]).narrow(0, 2, 1)), [4, 5])
    t.true(column.equals(Tensor.from(elements(dtype, [1, 2, 4, 5]), [2, 2], { dtype })))
    t.false(column.equals(column.reshape([4])))
  })
}

test('data and shape have to agree', t => {
  throwsCode(t, 'SHAPE_MISMATCH', () => Tensor.from(new Float32Array(5), [2, 3]))
  throwsCode(t, 'SHAPE_MISMATCH', () => Tensor.from(new Float32Array(5), []))
  throwsCode(t, 'SHAPE_MISMATCH', () => Tensor.from(new Float32Array(1), [2 ** 53 - 1]))
  t.is(Tensor.from(new Float32Array([7]), []).length, 1)
  t.is(Tensor.from(new Float32Array(0), [3, 0, 2]).length, 0)
  t.deepEqual(Tensor.from(new Float32Array(1), [1, 1, 1, 1, 1, 1, 1, 1]).shape.length, 8)
  throwsCode(t, 'INVALID_ARGUMENT', () => Tensor.from(new Float32Array(1), [1, 1, 1, 1, 1, 1, 1, 1, 1]))
  throwsCode(t, 'INVALID_ARGUMENT', () => Tensor.from(new Float32Array(0), [2 ** 53 - 1, 2 ** 53 - 1, 0]))
})

test('the dtype follows from the array, or is named', t => {
  t.is(Tensor.from(new Float32Array(1), [1]).dtype, 'f32')
  t.is(Tensor.from(new Uint8Array(1), [1]).dtype, 'u8')
  throwsCode(t, 'INVALID_ARGUMENT', () => Tensor.from(new Uint16Array(1), [1]))
  throwsCode(t, 'DTYPE_MISMATCH', () => Tensor.from(new Uint16Array(1), [1], { dtype: 'f32' }))
  throwsCode(t, 'DTYPE_MISMATCH', () => Tensor.from(new Float32Array(1), [1], { dtype: 'bf16' }))
  throwsCode(t, 'INVALID_ARGUMENT', () => Tensor.from(new Float64Array(1) as never, [1]))
  throwsCode(t, 'INVALID_ARGUMENT', () => Tensor.from([1] as never, [1]))
  t.is(
    Tensor.from(new Uint16Array(1), [1], { dtype: 'bfloat16' as 'bf16' }).dtype,
    'bf16',
    'onnxruntime has other names',
  )
  throwsCode(t, 'DEVICE_UNAVAILABLE', () => Tensor.from(new Float32Array(1), [1], { device: 'cuda:0' }))
})

test('a part has to lie in the tensor', t => {
  using tensor = matrix()
  for (const [dim, start, length] of [
    [2, 0, 1],
    [0, 3, 0],
    [0, 1, 2],
    [1, 0, 4],
    [1, 4, 2 ** 53 - 1],
  ] as const) {
    throwsCode(t, 'INVALID_ARGUMENT', () => tensor.narrow(dim, start, length))
  }
  t.is(tensor.narrow(0, 2, 0).length, 0)
  throwsCode(t, 'SHAPE_MISMATCH', () => tensor.reshape([7]))
  t.is(
    (t.throws(() => tensor.reshape([7])) as Error).message,
    'shape is [7], expected 6 elements, the number in [2, 3]',
  )
})

test("readInto wants an array of the tensor's kind and length, apart from its memory", t => {
  using tensor = matrix()
  for (const out of [
    new Float32Array(5),
    new Float32Array(7),
    new Uint16Array(6),
    new Uint8Array(24),
    [1, 2, 3, 4, 5, 6],
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => tensor.readInto(out as Float32Array))
  }
  throwsCode(t, 'INVALID_ARGUMENT', () => tensor.readInto(tensor.data))
  throwsCode(t, 'INVALID_ARGUMENT', () => tensor.narrow(0, 0, 1).readInto(tensor.data.subarray(3) as Float32Array))
  t.deepEqual(numbers(tensor), span(0, 6))
})

test('.data is the memory itself, the same at every call', t => {
  using tensor = matrix()
  const { data } = tensor
  t.is(tensor.data, data)
  data[0] = 42
  t.is(numbers(tensor)?.[0], 42)
  t.deepEqual(Array.from(tensor.reshape([6]).data), [42, 1, 2, 3, 4, 5])
})

test('.data of what lies in pieces is refused', t => {
  throwsCode(t, 'NOT_CONTIGUOUS', () => matrix().narrow(1, 0, 2).data, { operation: 'data', pieces: 'strided rows' })
  const { message } = t.throws(() => matrix().narrow(1, 0, 2).data) as Error
  t.is(message, 'data needs contiguous memory, but the view has strided rows; copy it with toArray() or readInto()')
  using cache = new RotatingCache({ dim: 2, maxSeqLen: 2, sinks: 1 })
  for (const token of span(0, 5)) cache.append(tokens(token, token + 1))
  const view = cache.currentData() as Tensor
  throwsCode(t, 'NOT_CONTIGUOUS', () => view.data, { operation: 'data', pieces: 'two runs (sinks and window)' })
  t.deepEqual([numbers(view), view.keyPositions, view.isContiguous], [[0, 3, 4], [0, 3], false])
  t.deepEqual(numbers(view.reshape([3])), [0, 3, 4])
  t.deepEqual(view.narrow(2, 1, 2).keyPositions, [3])
  t.deepEqual(Array.from(view.narrow(2, 1, 2).data), [3, 4], 'one run of it is one piece')
})

test('keyPositions say at which token each run begins', t => {
  using cache = new RotatingCache({ dim: 2, maxSeqLen: 3, sinks: 2, slack: 4 })
  t.deepEqual(cache.append(tokens(0, 5)).keyPositions, [0])
  t.deepEqual(cache.append(tokens(5, 6)).keyPositions, [0, 3])
  t.deepEqual(cache.append(tokens(6, 9)).keyPositions, [0, 3], 'of a prefill, those it shows')
  t.deepEqual(cache.currentData()?.keyPositions, [0, 6])
  using plain = new RotatingCache({ dim: 2, maxSeqLen: 3 })
  plain.append(tokens(0, 2))
  t.deepEqual(plain.append(tokens(2, 7)).keyPositions, [0])
  t.deepEqual(plain.currentData()?.keyPositions, [4])
})

test('a view is stale when a slot that it shows was overwritten, and only then', t => {
  using cache = new RotatingCache({ dim: 2, maxSeqLen: 2, capacitySeqLen: 2, slack: 2 })
  const first = cache.append(tokens(0, 2))
  const whole = cache.append(tokens(2, 4))
  t.deepEqual(
    [numbers(first), numbers(whole)],
    [
      [0, 1],
      [0, 1, 2, 3],
    ],
  )
  cache.append(tokens(4, 5))
  for (const view of [first, whole]) {
    t.true(view.isStale)
    const out = new Float32Array(view.length)
    for (const read of [
      () => view.toArray(),
      () => view.toFloat32Array(),
      () => view.data,
      () => view.readInto(out),
      () => view.equals(view),
      () => view.reshape([view.length]).toArray(),
      () => cache.append(view),
    ]) {
      throwsCode(t, 'STALE_VIEW', read)
    }
    t.deepEqual(view.shape, [1, 1, view.length, 1], 'its description can still be read')
  }
  t.deepEqual(numbers(cache.currentData()), [3, 4])
})

test('.data that was taken before is refused again once the view is stale', t => {
  using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 4, headDim: 1 })
  const { k } = cache.update(tokens(0, 2), tokens(0, 2))
  t.deepEqual(Array.from(k.data), [0, 1])
  cache.truncate(1)
  cache.update(tokens(5, 6), tokens(5, 6))
  throwsCode(t, 'STALE_VIEW', () => k.data)
})

test('equals compares shape, dtype and every bit', t => {
  const nan = Tensor.from(new Float32Array([NaN]), [1])
  t.true(nan.equals(Tensor.from(new Float32Array([NaN]), [1])))
  t.false(Tensor.from(new Float32Array([0]), [1]).equals(Tensor.from(new Float32Array([-0]), [1])))
  t.false(matrix('f16').equals(matrix('bf16')))
  throwsCode(t, 'INVALID_ARGUMENT', () => nan.equals({ data: new Float32Array(1), shape: [1] } as never))
})

test('it shows itself in a console, stale and disposed ones too', t => {
  t.is(inspect(matrix()), 'Tensor f32 [2, 3] [ 0, 1, 2, 3, 4, 5 ]')
  t.is(inspect(Tensor.from(new Uint8Array(9), [3, 3])), 'Tensor u8 [3, 3] [ 0, 0, 0, 0, 0, 0, ... 3 more ]')
  t.is(inspect(Tensor.from(new Uint8Array(4000), [2, 2000])), 'Tensor u8 [2, 2000] [ 0, 0, 0, 0, 0, 0, ... 3994 more ]')
  const gone = matrix()
  gone.dispose()
  t.is(inspect(gone), 'Tensor (DISPOSED)')
  using cache = new RotatingCache({ dim: 2, maxSeqLen: 1, capacitySeqLen: 1, slack: 0 })
  const view = cache.append(tokens(0, 1))
  cache.append(tokens(1, 2))
  t.is(inspect(view), 'Tensor f32 [1, 1, 1, 1] (stale)')
})
