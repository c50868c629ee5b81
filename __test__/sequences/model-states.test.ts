// Descriptions of layers with states: the group that they form, and states that are refused.
import test from 'ava'

import { type ModelCacheOptions, type ModelDescription, PagedKvCache, PrefixNamer } from '../../index.js'
import { formOf, groupsOfModel } from '../../lib/sequences/layer-group.js'
import { throwsCode } from '../support/throws.js'

const SIZES = { numKvHeads: 2, headDim: 4 }
const CONV = { name: 'conv', shape: [6, 3], dtype: 'f16' } as const
const SSM = { name: 'ssm', shape: [2, 4, 8], dtype: 'f32' } as const

const MODEL: ModelDescription = {
  layers: [
    { kind: 'state', tensors: [CONV, SSM] },
    { kind: 'full', ...SIZES },
    { kind: 'empty' },
    { kind: 'sliding', window: 8, ...SIZES, tensors: [CONV] },
  ],
}

const ATTENTION = { numKvHeads: 2, headDim: 4, valueHeadDim: 4, device: 'cpu' }
const STATES = { numKvHeads: 0, headDim: 0, valueHeadDim: 0, device: 'cpu' }

test('all states form one group behind the others, with a place for each', t => {
  t.deepEqual(groupsOfModel(MODEL, 'f32'), [
    { kind: 'full', layers: [1], ...ATTENTION },
    { kind: 'sliding', window: 8, sinks: 0, layers: [3], ...ATTENTION },
    {
      kind: 'state',
      layers: [0, 3],
      ...STATES,
      tensors: [
        { layer: 0, ...CONV, offset: 0, bytes: 36 },
        { layer: 0, ...SSM, offset: 64, bytes: 256 },
        { layer: 3, ...CONV, offset: 320, bytes: 36 },
      ],
      bytes: 384,
    },
  ])
})

test('a config.json gives the states of its layers, convolutions in the dtype of the cache', t => {
  const config = {
    model_type: 'lfm2',
    num_hidden_layers: 2,
    hidden_size: 64,
    num_attention_heads: 4,
    full_attn_idxs: [1],
  }
  const lfm2 = { ...config, num_key_value_heads: 2 }
  for (const [dtype, bytes] of [
    ['f32', 512],
    ['f16', 256],
    ['bf16', 256],
  ] as const) {
    const conv = { layer: 0, name: 'conv', shape: [64, 2], dtype, offset: 0, bytes }
    t.deepEqual(groupsOfModel(lfm2, dtype).at(-1), { kind: 'state', layers: [0], ...STATES, tensors: [conv], bytes })
  }
  const mamba = groupsOfModel({ model_type: 'mamba', num_hidden_layers: 3, hidden_size: 64 }, 'f16')
  t.deepEqual(
    mamba.map(({ kind, layers, bytes }) => [kind, layers.length, bytes]),
    [['state', 3, 3 * (128 * 3 * 2 + 128 * 16 * 4)]],
  )
})

test('the form of a cache has its states', t => {
  const pages = {
    blockSize: 16,
    dtype: 'f32',
    keyFormat: 'f32',
    valueFormat: 'f32',
    hadamard: false,
    valueHadamard: false,
    namespace: '',
  } as const
  const { model } = formOf(pages, groupsOfModel(MODEL, 'f32'))
  t.deepEqual(model.layers, [
    { kind: 'state', tensors: [CONV, SSM] },
    { kind: 'full', ...SIZES, valueHeadDim: 4 },
    { kind: 'sliding', window: 8, sinks: 0, ...SIZES, valueHeadDim: 4, tensors: [CONV] },
  ])
  t.deepEqual(
    groupsOfModel(model, 'f32').map(({ kind, bytes }) => [kind, bytes]),
    groupsOfModel(MODEL, 'f32').map(({ kind, bytes }) => [kind, bytes]),
  )
})

const cacheOf = (model: ModelDescription): PagedKvCache =>
  new PagedKvCache({ model, capacity: 4, blockSize: 2, prefixKey: new Uint8Array(32) })

test('a cache has the groups of its model, and its form makes another with the same keys', t => {
  using cache = cacheOf(MODEL)
  t.deepEqual(cache.groups, groupsOfModel(MODEL, 'f32'))
  const tokens = [1, 2, 3, 4, 5]
  const { form } = cache
  using namer = new PrefixNamer({ ...form, prefixKey: new Uint8Array(32) })
  t.deepEqual(namer.keys(tokens), cache.keys(tokens))
  using again = cacheOf(form.model)
  t.deepEqual(again.keys(tokens), cache.keys(tokens))
  using without = cacheOf({ layers: [{ kind: 'full', ...SIZES }] })
  t.notDeepEqual(without.keys(tokens), cache.keys(tokens))
})

test('calls that need keys and values name a layer without them', t => {
  using cache = new PagedKvCache({ model: MODEL, capacity: 4 })
  const chat = cache.openSequence()
  const rows = { data: new Float32Array(8), shape: [2, 1, 4] }
  using step = cache.beginStep({ sequences: [chat] })
  for (const [layer, kept] of [
    [0, 'a state'],
    [2, 'nothing'],
  ] as const) {
    const expected = `a layer with keys and values; layer ${layer} keeps ${kept}`
    const details = { argument: 'layer', value: layer, expected }
    throwsCode(t, 'INVALID_ARGUMENT', () => chat.kv(layer), details)
    throwsCode(t, 'INVALID_ARGUMENT', () => step.write(layer, rows, rows), details)
    throwsCode(t, 'INVALID_ARGUMENT', () => step.attend(layer, rows), details)
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.readKv(chat.id, layer, 0), details)
  }
})

test('states that cannot be are refused by name', t => {
  const refused = (argument: string, ...layers: readonly unknown[]): void => {
    const options = { model: { layers }, capacity: 4 } as unknown as ModelCacheOptions
    const error = throwsCode(t, 'INVALID_ARGUMENT', () => new PagedKvCache(options))
    t.is(error.details.argument, argument, error.message)
  }
  const full = { kind: 'full', ...SIZES }
  const state = (tensor: object): object => ({ kind: 'state', tensors: [{ ...CONV, ...tensor }] })
  refused('layers[0].tensors', { kind: 'state' })
  refused('layers[0].tensors.length', { kind: 'state', tensors: [] })
  refused('layers[0].tensors', { kind: 'state', tensors: CONV })
  refused('layers[1].tensors[0]', full, { kind: 'state', tensors: ['conv'] })
  refused('layers[0].tensors[0].name', state({ name: 5 }))
  refused('layers[0].tensors[0].name', state({ name: '' }))
  refused('layers[1].tensors[1].name', full, { kind: 'state', tensors: [CONV, CONV] })
  refused('layers[0].tensors[0].shape', state({ shape: 5 }))
  refused('layers[0].tensors[0].shape.length', state({ shape: [] }))
  refused('layers[0].tensors[0].shape.length', state({ shape: [1, 1, 1, 1, 1, 1, 1, 1, 1] }))
  for (const size of [0, -1, 0.5, 2 ** 31, '3', null])
    refused('layers[0].tensors[0].shape[1]', state({ shape: [4, size] }))
  refused('layers[0].tensors[0].shape', state({ shape: [2 ** 30, 2 ** 30] }))
  for (const dtype of ['q8', 'float32', undefined, 3]) refused('layers[0].tensors[0].dtype', state({ dtype }))
  refused('layers[0].numKvHeads', { kind: 'state', tensors: [CONV], numKvHeads: 2 })
  refused('layers[0].headDim', { kind: 'empty', headDim: 2 })
  refused('layers[0].tensors', { kind: 'empty', tensors: [CONV] })
  refused('layers[1].tensors', full, { kind: 'shared', with: 0, ...SIZES, tensors: [CONV] })
  refused('layers[1].with', { kind: 'state', tensors: [CONV] }, { kind: 'shared', with: 0, ...SIZES })
  refused('layers', { kind: 'empty' })
})
