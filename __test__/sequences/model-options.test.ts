// Options of a PagedKvCache of a model: its description, the room of its pools, and its devices.
import test from 'ava'

import { type ModelCacheOptions, PagedKvCache } from '../../index.js'
import { feed, HYBRID, paged, stepOf } from '../support/model-rows.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

test('a config.json is a description too', t => {
  const config = {
    model_type: 'gemma3_text',
    num_hidden_layers: 8,
    sliding_window: 32,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 8,
    hidden_size: 32,
  }
  for (const model of [config, JSON.stringify(config)]) {
    using cache = new PagedKvCache({ model, capacity: 4 })
    t.deepEqual(
      cache.groups.map(({ kind, window, layers }) => [kind, window, layers.length]),
      [
        ['sliding', 32, 7],
        ['full', undefined, 1],
      ],
    )
  }
  using mistral = new PagedKvCache({
    model: { model_type: 'mistral', num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 16 },
    capacity: 4,
  })
  t.like(
    mistral.groups[0],
    { numKvHeads: 8, headDim: 4, window: 4096 },
    'what a file leaves out is what its class has it be',
  )
  const refused = (code: 'INVALID_ARGUMENT' | 'UNSUPPORTED_MODEL', model: unknown, argument: string): void => {
    const error = throwsCode(t, code, () => new PagedKvCache({ model, capacity: 4 } as ModelCacheOptions))
    t.is((error.details as { argument?: string }).argument, argument, error.message)
  }
  refused('UNSUPPORTED_MODEL', { ...config, model_type: 'rwkv' }, 'model_type')
  const sizes = { numKvHeads: 2, headDim: 4 }
  refused('INVALID_ARGUMENT', { layers: 3 }, 'layers')
  refused('INVALID_ARGUMENT', { layers: [{ kind: 'round', ...sizes }] }, 'layers[0].kind')
  refused('INVALID_ARGUMENT', { layers: [{ kind: 'sliding', ...sizes }] }, 'layers[0].window')
  refused('INVALID_ARGUMENT', { layers: [{ kind: 'full', window: 3, ...sizes }] }, 'layers[0].window')
  refused('INVALID_ARGUMENT', { layers: [{ kind: 'shared', with: 0, ...sizes }] }, 'layers[0].with')
  refused(
    'INVALID_ARGUMENT',
    {
      layers: [
        { kind: 'full', ...sizes },
        { kind: 'shared', with: 0, ...sizes, headDim: 8 },
      ],
    },
    'layers[1].headDim',
  )
  refused(
    'INVALID_ARGUMENT',
    { layers: [{ kind: 'full', ...sizes }], attention: { numQueryHeads: 3 } },
    'numQueryHeads',
  )
  for (const model of [5, '{', '[]']) refused('INVALID_ARGUMENT', model, 'model')
  const cyclic: Record<string, unknown> = {}
  cyclic['self'] = cyclic
  refused('INVALID_ARGUMENT', cyclic, 'model')
})

test('options are of layers that are alike, or of a model', t => {
  const sizes = { numKvHeads: 1, headDim: 1 }
  const model = { layers: [{ kind: 'full', ...sizes }] } as const
  throwsCode(t, 'INVALID_ARGUMENT', () => new PagedKvCache({ model, capacity: 4, numLayers: 1 } as never), {
    argument: 'numLayers',
    value: 1,
    expected: 'no value together with a model, which defines it for each layer',
  })
  throwsCode(
    t,
    'INVALID_ARGUMENT',
    () => new PagedKvCache({ capacity: 4, numLayers: 1, ...sizes, maxSequences: 3 } as never),
    { argument: 'maxSequences', value: 3, expected: 'no value without a model' },
  )
  throwsCode(t, 'INVALID_ARGUMENT', () => new PagedKvCache({ model } as never))
  using alike = new PagedKvCache({ capacity: 4, numLayers: 3, ...sizes, window: 8, sinks: 2 })
  t.deepEqual(alike.groups, [
    {
      kind: 'sliding',
      window: 8,
      sinks: 2,
      layers: [0, 1, 2],
      numKvHeads: 1,
      headDim: 1,
      valueHeadDim: 1,
      device: 'cpu',
    },
  ])
})

test('room is given to each group, or split from memory', t => {
  using cache = paged({ capacity: [3, 4] })
  t.deepEqual(
    cache.stats().pools.map(pool => pool.totalBlocks),
    [3, 4],
  )
  t.true(cache.canAllocate(12))
  t.false(cache.canAllocate(12, { watermark: 2 }))
  const sequence = cache.openSequence()
  const error = throwsCode(t, 'OUT_OF_BLOCKS', () => feed(sequence, span(0, 40)))
  t.is(sequence.length, 0, error.message)
  using split = paged({ capacity: undefined, memoryBytes: 1 << 16, maxSequences: 4 })
  t.true(split.stats().pools.every(pool => pool.totalBlocks > 4))
  throwsCode(t, 'INVALID_ARGUMENT', () => paged({ capacity: [3] }))
})

const room = (more: object): PagedKvCache =>
  paged({ capacity: undefined, memoryBytes: 1 << 17, maxSequences: 1, ...more })

test('windows have room for a prompt that is appended at once', t => {
  using cache = room({})
  feed(cache.openSequence(), span(0, 400))
  using small = room({ maxPrefillTokens: 8 })
  t.true((small.stats().pools[0]?.totalBlocks ?? 0) < (cache.stats().pools[0]?.totalBlocks ?? 0))
  throwsCode(t, 'OUT_OF_BLOCKS', () => feed(small.openSequence(), span(0, 400)))
  for (const maxPrefillTokens of [-1, 0.5, null]) throwsCode(t, 'INVALID_ARGUMENT', () => room({ maxPrefillTokens }))
  throwsCode(t, 'INVALID_ARGUMENT', () => paged({ maxPrefillTokens: 4 }), {
    argument: 'maxPrefillTokens',
    value: 4,
    expected: 'no value without memoryBytes',
  })
})

test('memory that has no block for a group is refused by name, with the least that will do', t => {
  const refused = (memoryBytes: number): number => {
    const { details } = throwsCode(t, 'INVALID_ARGUMENT', () => room({ memoryBytes }))
    t.deepEqual([details.argument, details.value], ['memoryBytes', memoryBytes])
    t.regex(details.expected, /^at least \d+, for a block of \d+ tokens in each group of layers$/)
    return Number(/\d+/.exec(details.expected)?.[0])
  }
  for (const memoryBytes of [0, 1, 10]) {
    const least = refused(memoryBytes)
    t.is(refused(least - 1), least)
    using cache = room({ memoryBytes: least })
    t.true(cache.stats().pools.every(pool => pool.totalBlocks > 0))
  }
})

test('layers may live on several devices, by name', t => {
  for (const kind of [{ capacity: 8 }, { memoryBytes: 1 << 16, maxSequences: 2 }] as const) {
    using cache = new PagedKvCache({ model: HYBRID, ...kind, device: HYBRID.layers.map(() => 'cpu') })
    t.deepEqual([cache.device, cache.groups.map(group => group.device)], ['cpu', ['cpu', 'cpu']])
    t.true(stepOf(cache, cache.openSequence(), span(0, 5), 5) < 1e-6)
    const refused = (device: readonly unknown[], details: object): void => {
      throwsCode(
        t,
        'INVALID_ARGUMENT',
        () => new PagedKvCache({ model: HYBRID, ...kind, device: device as string[] }),
        details as never,
      )
    }
    refused(['cpu', 'cpu', 'cpu'], { argument: 'device.length', value: 3, expected: '4, one for each layer' })
    refused([], { argument: 'device', value: 'an array of 0', expected: 'a name for each layer' })
    refused(['cpu', 5, 'cpu', 'cpu'], { argument: 'device[1]', value: 5, expected: 'a string' })
    refused(['cpu', 'gpu', 'cpu', 'cpu'], {
      argument: 'device',
      value: 'gpu',
      expected: 'one of cpu, cuda, cuda:N, metal, auto',
    })
  }
})
