// Sequence.readInto: all layers into arrays of the caller's.
import test from 'ava'

import { PagedKvCache, type PageFormat, type TensorData } from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const [LAYERS, HEADS, DIM] = [3, 2, 32]

/** Distinct numbers of any element. */
const numbers = (length: number, from: number): Float32Array =>
  Float32Array.from({ length }, (_, at) => ((at * 37 + from) % 211) - 100)

const arrayOf = (format: PageFormat, length: number): TensorData =>
  format === 'f16' || format === 'bf16' ? new Uint16Array(length) : new Float32Array(length)

for (const [keyFormat, valueFormat] of [
  ['f32', 'f32'],
  ['f16', 'bf16'],
  ['q8', 'q4'],
  ['f8e4m3', 'f32'],
] satisfies [PageFormat, PageFormat][]) {
  test(`what it copies is what each layer shows: ${keyFormat}, ${valueFormat}`, t => {
    using cache = new PagedKvCache({
      capacity: 64,
      blockSize: 4,
      numLayers: LAYERS,
      numKvHeads: HEADS,
      headDim: DIM,
      keyFormat,
      valueFormat,
    })
    const seq = cache.openSequence()
    for (const tokens of [0, 7, 1, 9]) {
      if (tokens > 0)
        seq.append({
          k: { data: numbers(LAYERS * HEADS * tokens * DIM, tokens), shape: [LAYERS, HEADS, tokens, DIM] },
          v: { data: numbers(LAYERS * HEADS * tokens * DIM, 3), shape: [LAYERS, HEADS, tokens, DIM] },
        })
      const size = HEADS * seq.length * DIM
      const all = seq.readInto({ k: arrayOf(keyFormat, LAYERS * size), v: arrayOf(valueFormat, LAYERS * size) })
      const layers = span(0, LAYERS).map(() => ({ k: arrayOf(keyFormat, size), v: arrayOf(valueFormat, size) }))
      t.is(seq.readInto({ layers }).layers, layers)
      for (const layer of span(0, LAYERS)) {
        using shown = seq.kv(layer)
        t.deepEqual(shown.k.shape, [1, HEADS, seq.length, DIM])
        for (const part of ['k', 'v'] as const) {
          const expected = shown[part].toArray()
          t.deepEqual(layers[layer]?.[part], expected)
          t.deepEqual(all[part].subarray(layer * size, (layer + 1) * size), expected)
        }
      }
    }
  })
}

test('layers of a model have arrays of their own sizes, and those that share have none', t => {
  const sizes = { numKvHeads: 1, headDim: 2 }
  const model = {
    layers: [
      { kind: 'sliding', window: 4, ...sizes },
      { kind: 'full', numKvHeads: 2, headDim: 1 },
      { kind: 'shared', with: 1, numKvHeads: 2, headDim: 1 },
    ],
  } as const
  using cache = new PagedKvCache({ model, blockSize: 2, capacity: 16 })
  const seq = cache.openSequence()
  for (const at of span(0, 5)) {
    const rows = (layer: number): { data: Float32Array; shape: number[] } => ({
      data: numbers(4, at + layer),
      shape: layer === 0 ? [1, 2, 2] : [2, 2, 1],
    })
    seq.append({ layers: [0, 1].map(layer => ({ k: rows(layer), v: rows(layer) })) })
  }
  const [sliding, full] = [seq.kv(0), seq.kv(2)]
  t.is(sliding.k.shape[2], 4)
  t.is(full.k.shape[2], 10)
  const layers = [sliding, full].map(({ k }) => ({ k: new Float32Array(k.length), v: new Float32Array(k.length) }))
  seq.readInto({ layers })
  for (const [place, kv] of [sliding, full].entries())
    t.deepEqual([layers[place]?.k, layers[place]?.v], [kv.k.toArray(), kv.v.toArray()])
  throwsCode(t, 'INVALID_ARGUMENT', () => seq.readInto({ layers: layers.slice(1) }), {
    argument: 'layers.length',
    value: 1,
    expected: '2, one for each layer with keys and values of its own',
  })
})

test('arrays that do not fit are refused, and none is written', t => {
  using cache = new PagedKvCache({ capacity: 8, blockSize: 4, numLayers: 2, numKvHeads: 1, headDim: 2 })
  const seq = cache.openSequence()
  seq.append({ k: { data: numbers(12, 1), shape: [2, 1, 3, 2] }, v: { data: numbers(12, 1), shape: [2, 1, 3, 2] } })
  const k = new Float32Array(12)
  const refuse = (code: 'DIM_MISMATCH' | 'INVALID_ARGUMENT', out: object): void =>
    void throwsCode(t, code, () => seq.readInto(out as never))
  refuse('DIM_MISMATCH', { k, v: new Float32Array(10) })
  refuse('INVALID_ARGUMENT', { k, v: new Float32Array(11) })
  refuse('INVALID_ARGUMENT', { k, v: new Uint16Array(12) })
  refuse('INVALID_ARGUMENT', { k, v: k })
  refuse('INVALID_ARGUMENT', { k })
  refuse('INVALID_ARGUMENT', { k, v: new Float32Array(12), layers: [] })
  refuse('INVALID_ARGUMENT', { layers: 'both' })
  refuse('DIM_MISMATCH', {
    layers: [
      { k: k.subarray(0, 6), v: new Float32Array(6) },
      { k: k.subarray(6), v: new Float32Array(5) },
    ],
  })
  t.true(k.every(value => value === 0))
  seq.readInto({ k, v: new Float32Array(12) })
  t.false(k.every(value => value === 0))
})
