// Host tensors: memory of the caller's own, read where it lies.
import test from 'ava'

import {
  KvCache,
  RotatingCache,
  RotatingKvCache,
  Tensor,
  type HostTensor,
  type TensorData,
  type Float16ArrayLike,
} from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { elements, FLOATS, numbers, span, tokens } from '../support/tokens.js'

const make = (): KvCache => new KvCache({ batchSize: 1, numKvHeads: 2, initialCapacity: 4, maxSeqLen: 8, headDim: 1 })

/** Looks like a tensor of onnxruntime: everything is a getter of its class. */
class OrtTensor {
  readonly #data: TensorData
  readonly #dims: readonly number[]
  readonly #type: string

  constructor(type: string, data: TensorData, dims: readonly number[]) {
    this.#type = type
    this.#data = data
    this.#dims = dims
  }

  get data(): TensorData {
    return this.#data
  }

  get dims(): readonly number[] {
    return this.#dims
  }

  get type(): string {
    return this.#type
  }
}

for (const [dtype, type] of [
  ['f32', 'float32'],
  ['f16', 'float16'],
  ['bf16', 'bfloat16'],
] as const) {
  test(`${dtype}: a tensor of onnxruntime fits as it is`, t => {
    using cache = new KvCache({ batchSize: 1, numKvHeads: 2, initialCapacity: 4, maxSeqLen: 8, headDim: 1, dtype })
    const present = new OrtTensor(type, elements(dtype, span(0, 6)), [1, 2, 3, 1])
    cache.update(present, present)
    t.deepEqual(numbers(cache.getKv().k), span(0, 6))
  })
}

for (const dtype of FLOATS) {
  test(`${dtype}: range takes rows out of a whole present`, t => {
    using cache = new KvCache({ batchSize: 1, numKvHeads: 2, initialCapacity: 4, maxSeqLen: 8, headDim: 1, dtype })
    const present: HostTensor = { data: elements(dtype, span(0, 6)), dims: [1, 2, 3, 1], dtype }
    cache.update({ ...present, range: [2, 3] }, { ...present, range: [0, 1] })
    t.deepEqual(
      [numbers(cache.getKv().k), numbers(cache.getKv().v)],
      [
        [2, 5],
        [0, 3],
      ],
    )
    t.is(cache.update({ ...present, range: [3, 3] }, { ...present, range: [0, 0] }).k.shape[2], 1)
  })

  test(`${dtype}: the layout bshd is read in order`, t => {
    using cache = new KvCache({ batchSize: 1, numKvHeads: 2, initialCapacity: 4, maxSeqLen: 8, headDim: 1, dtype })
    const rows: HostTensor = { data: elements(dtype, span(0, 6)), shape: [1, 3, 2, 1], dtype, layout: 'bshd' }
    cache.update(rows, { ...rows, layout: 'bshd' })
    t.deepEqual(cache.getKv().k.shape, [1, 2, 3, 1])
    t.deepEqual(numbers(cache.getKv().k), [0, 2, 4, 1, 3, 5])
    cache.update({ ...rows, range: [1, 2] }, { ...rows, range: [2, 3] })
    t.deepEqual(numbers(cache.getKv().k.narrow(2, 3, 1)), [2, 3])
    t.deepEqual(numbers(cache.getKv().v.narrow(2, 3, 1)), [4, 5])
  })
}

const Float16 = Reflect.get(globalThis, 'Float16Array') as (new (values: number[]) => Float16ArrayLike) | undefined
const onlyWithFloat16 = Float16 === undefined ? test.skip : test

onlyWithFloat16('Float16Array goes in and out, where the runtime has it', t => {
  const half = new (Float16 as NonNullable<typeof Float16>)([1, 2, 3])
  using tensor = Tensor.from(half, [3])
  t.is(tensor.dtype, 'f16')
  t.deepEqual(numbers(tensor), [1, 2, 3])
  t.deepEqual(tensor.toArray(), elements('f16', [1, 2, 3]))
  const out = new (Float16 as NonNullable<typeof Float16>)([0, 0, 0])
  tensor.readInto(out)
  t.deepEqual(Array.from(out as unknown as number[]), [1, 2, 3])
})

/** As onnxruntime makes them: data is a getter of the class, so that spreading the object loses it. */
class Onnx {
  readonly dims = [1, 1, 3, 1]
  readonly type: string = 'float32'
  get data(): unknown {
    return new Float32Array([7, 8, 9])
  }
}

test('an onnxruntime tensor goes in as it is, and as the data of a host tensor', t => {
  const options = { batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 1 }
  using cache = new KvCache(options)
  cache.update(new Onnx(), new Onnx())
  const newest = { data: new Onnx(), range: [2, 3] } as const
  cache.update(newest, newest)
  t.deepEqual(numbers(cache.getKv().k), [7, 8, 9, 9])
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.update({ data: { dims: [1], type: 'float32', data: 'none' } }, newest))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.update(new Float32Array(1) as never, newest))
})

test('a range has to lie in the data, and a layout has four axes', t => {
  using cache = make()
  const data = new Float32Array(6)
  const good: HostTensor = { data, shape: [1, 2, 3, 1] }
  for (const range of [[2, 1], [0, 4], [4, 4], [-1, 1], [0, 1.5], [0], [0, 1, 2], 'x', {}, null]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.update({ ...good, range: range as never }, good))
  }
  for (const layout of ['BHSD', 'sbhd', '', 1, null]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.update({ ...good, layout: layout as never }, good))
  }
  using rank = new RotatingCache({ dim: 0, maxSeqLen: 4 })
  throwsCode(t, 'SHAPE_MISMATCH', () => rank.append({ data, shape: [6], layout: 'bshd' }))
  t.true(cache.isEmpty)
})

test('a host tensor needs data, a shape and a dtype that agree', t => {
  using cache = make()
  const good = tokens(0, 2).reshape([1, 2, 1, 1])
  const data = new Float32Array(2)
  for (const [code, host] of [
    ['INVALID_ARGUMENT', {}],
    ['INVALID_ARGUMENT', { data }],
    ['INVALID_ARGUMENT', { shape: [1, 2, 1, 1] }],
    ['INVALID_ARGUMENT', { data: [1, 2], shape: [1, 2, 1, 1] }],
    ['INVALID_ARGUMENT', { data, shape: '1,2,1,1' }],
    ['INVALID_ARGUMENT', { data: new Uint16Array(2), shape: [1, 2, 1, 1] }],
    ['INVALID_ARGUMENT', { data, shape: [1, 2, 1, 1], type: 'float64' }],
    ['DTYPE_MISMATCH', { data, shape: [1, 2, 1, 1], dtype: 'f16' }],
    ['DTYPE_MISMATCH', { data: new Uint16Array(2), shape: [1, 2, 1, 1], dtype: 'bf16' }],
    ['SHAPE_MISMATCH', { data, shape: [1, 2, 2, 1] }],
    ['SHAPE_MISMATCH', { data, shape: [2, 1, 1, 1] }],
  ] as const) {
    throwsCode(t, code, () => cache.update(host as HostTensor, good))
    throwsCode(t, code, () => cache.update(good, host as HostTensor))
  }
  t.true(cache.isEmpty)
})

test('every field is read once: a getter cannot change its mind', t => {
  using cache = make()
  const answers: Record<string, unknown[]> = {
    data: [new Float32Array([1, 2]), new Float32Array(1), 'x'],
    shape: [[1, 2, 1, 1], [1, 1], null],
    range: [[0, 1], [0, 99], 7],
    layout: ['bhsd', 'bshd', 3],
  }
  const asked: string[] = []
  const fickle = Object.defineProperties(
    {},
    Object.fromEntries(
      Object.keys(answers).map(name => [
        name,
        {
          get: () => {
            asked.push(name)
            return answers[name]?.shift()
          },
        },
      ]),
    ),
  ) as HostTensor
  cache.update(fickle, { data: new Float32Array([3, 4]), shape: [1, 2, 1, 1] })
  t.deepEqual(asked.toSorted(), ['data', 'layout', 'range', 'shape'])
  t.deepEqual(numbers(cache.getKv().k), [1, 2])
})

test('a shape that answers differently the second time is read once', t => {
  const lengths = [4, 400, 9]
  const shape = new Proxy([1, 2, 1, 1], {
    get: (target, name) => (name === 'length' ? lengths.shift() : Reflect.get(target, name)),
  })
  t.deepEqual(Tensor.from(new Float32Array(2), shape).shape, [1, 2, 1, 1])
  const iterable = Object.assign([2], {
    *[Symbol.iterator]() {
      for (;;) yield 1
    },
  })
  t.deepEqual(Tensor.from(new Float32Array(2), iterable).shape, [2])
})

test('a getter of V that calls the cache does not change what K was', t => {
  using cache = make()
  const k: HostTensor = { data: new Float32Array([1, 2, 3, 4]), shape: [1, 2, 2, 1] }
  const v = {
    shape: [1, 2, 2, 1],
    get data() {
      cache.update(
        { data: new Float32Array([7, 8, 9, 10, 11, 12]), shape: [1, 2, 3, 1], range: [2, 3] },
        tokens(50, 52).reshape([1, 2, 1, 1]),
      )
      return new Float32Array([5, 6, 7, 8])
    },
  }
  cache.update(k, v)
  t.deepEqual(numbers(cache.getKv().k), [9, 1, 2, 12, 3, 4])
  t.deepEqual(numbers(cache.getKv().v), [50, 5, 6, 51, 7, 8])
})

test('a getter that ends the cache, or takes the memory away, ends in a refusal', t => {
  const good = tokens(0, 2).reshape([1, 2, 1, 1])
  const cache = make()
  const ends = {
    shape: [1, 2, 1, 1],
    get data() {
      cache.dispose()
      return new Float32Array(2)
    },
  }
  throwsCode(t, 'DISPOSED', () => cache.update(good, ends))
  using other = make()
  const data = new Float32Array(2)
  const detaches = {
    data: new Float32Array(2),
    get shape() {
      structuredClone(data, { transfer: [data.buffer] })
      return [1, 2, 1, 1]
    },
  }
  throwsCode(t, 'SHAPE_MISMATCH', () => other.update({ data, shape: [1, 2, 1, 1] }, detaches))
  t.true(other.isEmpty)
})

test("an exception of the caller's own getter passes as it is, and changes nothing", t => {
  using cache = make()
  const mine = new RangeError('mine')
  const throwing = {
    shape: [1, 2, 1, 1],
    get data(): never {
      throw mine
    },
  }
  t.is(
    t.throws(() => cache.update(tokens(0, 2).reshape([1, 2, 1, 1]), throwing)),
    mine,
  )
  t.true(cache.isEmpty)
})

test("the cache's own memory may be appended to it", t => {
  using cache = new RotatingKvCache({ maxSeqLen: 3, capacitySeqLen: 3, slack: 1 })
  const first = cache.append(tokens(1, 4), tokens(11, 14))
  const { data } = first.k
  cache.append({ data, shape: [1, 1, 3, 1], range: [0, 2] }, first.v.narrow(2, 1, 2))
  t.deepEqual(
    [numbers(cache.currentData()?.k ?? null), numbers(cache.currentData()?.v ?? null)],
    [
      [3, 1, 2],
      [13, 12, 13],
    ],
  )
})
