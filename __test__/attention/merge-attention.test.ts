import test from 'ava'

import {
  attend,
  KvCache,
  mergeAttention,
  Tensor,
  type AttendedWithLse,
  type HostTensor,
  type TokenSource,
} from '../../index.js'
import { narrow } from '../support/half.js'
import { throwsCode } from '../support/throws.js'

const rows = (...data: number[]): HostTensor => ({ data: Float32Array.from(data), shape: [1, 1, data.length, 1] })
/** A part of one row, in half floats. */
const half = (value: number): AttendedWithLse<TokenSource> => ({
  out: { data: narrow('bf16', [value]), shape: [1, 1, 1], dtype: 'bf16' },
  lse: Float32Array.of(0),
})
const options = { causal: false, returnLse: true } as const

/** A part of one row, and what parts of one row merge to. */
const part = (out: number, lse: number): AttendedWithLse<TokenSource> => ({ out: rows(out), lse: Float32Array.of(lse) })
function merged(...parts: AttendedWithLse<TokenSource>[]): number[] {
  const { out, lse } = mergeAttention(parts)
  return [out.toArray()[0] as number, lse[0] as number]
}

test('a shared prefix and a tail merge to the whole', t => {
  using cache = new KvCache({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 8, headDim: 1 })
  const prefix = cache.update(rows(1, 2), rows(10, 20))
  const parts = [attend(rows(0.5), prefix, options), attend(rows(0.5), { k: rows(3), v: rows(60) }, options)]
  const whole = attend(rows(0.5), { k: rows(1, 2, 3), v: rows(10, 20, 60) }, options)
  const both = mergeAttention(parts)
  t.true(Math.abs((both.out.toArray()[0] as number) - (whole.out.toArray()[0] as number)) < 1e-5)
  t.true(Math.abs((both.lse[0] as number) - (whole.lse[0] as number)) < 1e-6)
  t.deepEqual(mergeAttention(parts.slice(0, 1)).out.toArray(), parts[0]?.out.toArray())
})

test('parts may be Tensors, memory of your own, halves, or have seen nothing', t => {
  const seen = { out: rows(5, 7), lse: Float32Array.of(0, -Infinity) }
  const unseen = { out: Tensor.from(new Float32Array(2), [1, 1, 2, 1]), lse: Float32Array.of(-1e38, -Infinity) }
  t.deepEqual(Array.from(mergeAttention([seen, unseen]).out.toArray()), [5, 0])
  const nothing = mergeAttention([{ out: rows(0), lse: Float32Array.of(-Infinity) }])
  t.deepEqual([Array.from(nothing.out.toArray()), Array.from(nothing.lse)], [[0], [-Infinity]])
  const { out } = mergeAttention([half(2), half(4)])
  t.deepEqual([out.dtype, out.shape, Array.from(out.toFloat32Array())], ['bf16', [1, 1, 1], [3]])
})

test('what is NaN in a part is NaN in the whole, and infinities stay', t => {
  const bad = attend(rows(0), { k: rows(NaN), v: rows(1) }, options)
  t.deepEqual([Array.from(bad.out.toArray()), Array.from(bad.lse)], [[NaN], [NaN]])
  for (const parts of [[bad], [bad, part(1, 0)], [part(1, 0), bad], [bad, part(0, -Infinity)]])
    t.deepEqual(merged(...parts), [NaN, NaN])
  t.deepEqual(merged(part(NaN, 0), part(1, 0))[0], NaN)
  t.deepEqual(merged(part(Infinity, -1e30), part(1, 0)), [Infinity, 0])
  t.deepEqual(merged(part(Infinity, 0), part(-Infinity, 0))[0], NaN)
})

test('many queries merge in native memory as few do', t => {
  const large = {
    out: { data: new Float32Array(20_000).fill(2), shape: [20_000, 1, 1] },
    lse: new Float32Array(20_000),
  }
  const both = mergeAttention([large, large])
  t.deepEqual([both.out.shape, new Set(both.out.toArray()), both.lse.length], [[20_000, 1, 1], new Set([2]), 20_000])
})

test('parts that do not go together are refused', t => {
  const whole = { out: rows(1, 2), lse: Float32Array.of(0, 0) }
  throwsCode(t, 'INVALID_ARGUMENT', () => mergeAttention([]), {
    argument: 'parts',
    value: 'an array of 0',
    expected: 'at least one part',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => mergeAttention([whole, undefined as never]))
  throwsCode(t, 'INVALID_ARGUMENT', () => mergeAttention([{ out: whole.out } as never]), {
    argument: 'parts[0].lse',
    value: undefined,
    expected: 'Float32Array',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => mergeAttention([{ lse: whole.lse } as never]))
  throwsCode(t, 'INVALID_ARGUMENT', () => mergeAttention([{ out: whole.out, lse: [0, 0] as never }]))
  throwsCode(t, 'SHAPE_MISMATCH', () => mergeAttention([whole, { ...whole, lse: Float32Array.of(0) }]))
  throwsCode(t, 'SHAPE_MISMATCH', () => mergeAttention([whole, { out: rows(1), lse: Float32Array.of(0) }]))
  throwsCode(t, 'SHAPE_MISMATCH', () =>
    mergeAttention([{ out: { data: new Float32Array(2), shape: [2] }, lse: new Float32Array(2) }]),
  )
  throwsCode(t, 'DTYPE_MISMATCH', () =>
    mergeAttention([{ out: { data: new Uint8Array(1), shape: [1, 1, 1] }, lse: Float32Array.of(0) }]),
  )
})
