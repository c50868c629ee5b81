// Tensors know their dtype in TypeScript as well, and K and V are disposed of together.
import test from 'ava'

import {
  attend,
  type DType,
  KvCache,
  type KvCacheOptions,
  RotatingKvCache,
  Tensor,
  type TensorData,
} from '../../index.js'
import { throwsCode } from '../support/throws.js'

/** Compiles only where a value has just this type. */
const typed =
  <T>() =>
  <V extends T>(value: V & ([T] extends [V] ? unknown : never)): V =>
    value

const sizes = { batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 2 }

test('elements have the type that the dtype says', t => {
  const floats = typed<Float32Array>()(Tensor.from(new Float32Array(2), [2]).toArray())
  const bits = typed<Uint16Array>()(Tensor.from(new Uint16Array(2), [2], { dtype: 'f16' }).narrow(0, 0, 1).data)
  const bytes = typed<Uint8Array>()(Tensor.from(new Uint8Array(2), [2]).reshape([1, 2]).toArray())
  const unknown: Tensor = Tensor.from(floats, [2])
  typed<TensorData>()(unknown.toArray())
  typed<'f32'>()(Tensor.from(floats, [2]).dtype)
  t.deepEqual([floats.length, bits.length, bytes.length], [2, 1, 2])
})

test('caches give tensors of their dtype, and attention those of its queries', async t => {
  using plain = new KvCache({ ...sizes, dtype: 'f32' })
  const options: KvCacheOptions = sizes
  const any: KvCache = plain
  using unsaid: KvCache = new KvCache(options)
  using half = new KvCache({ ...sizes, dtype: 'f16' })
  const name = 'bf16' as DType
  using other = new KvCache({ ...sizes, dtype: name })
  const token = { data: new Float32Array(2), shape: [1, 1, 1, 2] }
  const bits = { data: new Uint16Array(2), shape: [1, 1, 1, 2], dtype: 'f16' } as const
  using kv = plain.update(token, token)
  typed<Float32Array>()(kv.k.toArray())
  typed<Uint16Array>()(half.update(bits, bits).v.toArray())
  typed<Tensor>()(other.update({ ...bits, dtype: 'bf16' }, { ...bits, dtype: 'bf16' }).k)
  typed<Float32Array>()(attend(token, kv).out.toArray())
  typed<Uint16Array>()(attend(bits, kv).out.toArray())
  typed<Float32Array>()(await attend(kv.k, kv).out.toArrayAsync())
  using draft = plain.begin()
  typed<Tensor<'f32'>>()(draft.append(token, token).k)
  typed<Tensor<'f32'>>()(draft.treeMask())
  t.deepEqual([other.dtype, unsaid.dtype, any.dtype], ['bf16', 'f32', 'f32'])
})

test('K and V are disposed of together', t => {
  using cache = new RotatingKvCache({ maxSeqLen: 4 })
  const token = { data: new Float32Array(2), shape: [1, 1, 1, 2] }
  const { k, v } = cache.append(token, token)
  {
    using kv = cache.currentData()
    t.deepEqual(Object.keys(kv as object), ['k', 'v'])
  }
  t.is(k.length, 2)
  const kv = cache.append(token, token)
  kv.dispose()
  kv.dispose()
  for (const tensor of [kv.k, kv.v]) throwsCode(t, 'DISPOSED', () => tensor.shape)
  t.is(v.isStale, false)
})
