// Logits in native memory: what goes in comes out, and is counted.
import test from 'ava'

import { memoryStats } from '../../index.js'
import { binding } from '../../lib/loading/binding.js'
import { throwsCode } from '../support/throws.js'

const make = (data: object, dtype: string, rows: number, vocab: number) =>
  new binding.NativeLogits(data, dtype, rows, vocab)

test('rows come out as they went in', t => {
  const logits = make(Float32Array.of(1, 2, 3, 4, 5, NaN), 'f32', 2, 3)
  t.deepEqual([logits.rows(), logits.vocab()], [2, 3])
  t.deepEqual([logits.row(0), logits.row(1)], [Float32Array.of(1, 2, 3), Float32Array.of(4, 5, NaN)])
  logits.row(0)[0] = 9
  t.is(logits.row(0)[0], 1, 'a row is a copy')
  logits.dispose()
})

test('half floats become floats', t => {
  const f16 = make(Uint16Array.of(0x3c00, 0xc100, 0xfc00), 'f16', 1, 3)
  t.deepEqual(f16.row(0), Float32Array.of(1, -2.5, -Infinity))
  const bf16 = make(Uint16Array.of(0x3f80, 0xc020, 0xff80), 'bf16', 3, 1)
  t.deepEqual(
    [0, 1, 2].map(row => bf16.row(row)[0]),
    [1, -2.5, -Infinity],
  )
  const odd = new Uint16Array(new ArrayBuffer(8), 2, 3)
  odd.set([0x3f80, 0, 0])
  t.deepEqual(make(odd, 'bf16', 1, 3).row(0), Float32Array.of(1, 0, 0))
})

test('wrong sizes, dtypes and rows are refused', t => {
  throwsCode(t, 'INVALID_ARGUMENT', () => make(new Float32Array(5), 'f32', 2, 3), {
    argument: 'logits',
    value: 5,
    expected: '6 logits: 2 rows of 3',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => make(new Float32Array(6), 'f32', 2 ** 32, 3))
  throwsCode(t, 'INVALID_ARGUMENT', () => make(new Uint8Array(6), 'u8', 2, 3))
  throwsCode(t, 'INVALID_ARGUMENT', () => make(new Float32Array(6), 'f64', 2, 3))
  throwsCode(t, 'INVALID_ARGUMENT', () => make([1, 2], 'f32', 1, 2))
  throwsCode(t, 'INVALID_ARGUMENT', () => make(new Float32Array(new SharedArrayBuffer(8)), 'f32', 1, 2))
  const logits = make(new Float32Array(6), 'f32', 2, 3)
  for (const row of [2, -1, 0.5, NaN]) throwsCode(t, 'INVALID_ARGUMENT', () => logits.row(row))
  t.is(make(new Float32Array(0), 'f32', 0, 3).rows(), 0)
})

test('their memory is counted until they are disposed of', t => {
  const before = memoryStats().usedBytes
  const logits = make(new Float32Array(3000), 'f32', 3, 1000)
  t.is(memoryStats().usedBytes - before, 12_000)
  logits.dispose()
  t.is(memoryStats().usedBytes, before)
  logits.dispose()
  throwsCode(t, 'DISPOSED', () => logits.rows(), { object: 'logits' })
  throwsCode(t, 'DISPOSED', () => logits.row(0))
})
