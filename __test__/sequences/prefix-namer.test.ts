// PrefixNamer: names without a cache are those of the cache, and what they depend on.
import test from 'ava'
import fc from 'fast-check'

import {
  type CacheForm,
  isKvTideError,
  memoryStats,
  PagedKvCache,
  type UniformCacheOptions,
  PrefixNamer,
  type PrefixNamerOptions,
  type PromptOptions,
} from '../../index.js'
import { check, same } from '../support/properties.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const PAGES = { numLayers: 2, numKvHeads: 2, headDim: 4, blockSize: 2, prefixKey: new Uint8Array(32).fill(7) } as const
const SIZES = { numKvHeads: 2, headDim: 4 } as const
const MODEL = {
  model: {
    layers: [
      { kind: 'full', ...SIZES },
      { kind: 'sliding', window: 4, ...SIZES },
      { kind: 'full', ...SIZES },
    ],
  },
  blockSize: 2,
  prefixKey: PAGES.prefixKey,
} as const

/** The names that a cache gives to a prompt. */
function cached(options: PrefixNamerOptions, tokens: readonly number[], prompt: PromptOptions): string[] {
  if ('model' in options && options.model !== undefined) {
    using cache = new PagedKvCache({ ...options, capacity: 2 })
    return cache.keys(tokens, prompt)
  }
  using cache = new PagedKvCache({ ...options, capacity: 2 } as UniformCacheOptions)
  return cache.keys(tokens, prompt)
}

function named(options: PrefixNamerOptions, tokens: readonly number[], prompt: PromptOptions = {}): string[] {
  using namer = new PrefixNamer(options)
  return namer.keys(tokens, prompt)
}

/** The answer of a call, or the message with which it is refused. */
function outcome(call: () => string[]): string[] | string {
  try {
    return call()
  } catch (error) {
    if (isKvTideError(error)) return `${error.code}: ${error.message}`
    throw error
  }
}

const maybe = <T>(value: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> => fc.option(value, { nil: undefined, freq: 2 })
const small = fc.integer({ min: 1, max: 3 })
const format = maybe(fc.constantFrom('f32', 'f16', 'f8e4m3', 'q8', 'q4'))

const naming = fc.record({
  blockSize: small,
  dtype: maybe(fc.constantFrom('f32', 'f16')),
  keyFormat: format,
  valueFormat: format,
  hadamard: maybe(fc.boolean()),
  valueHadamard: maybe(fc.boolean()),
  namespace: maybe(fc.constantFrom('', 'a', 'ab')),
  prefixKey: maybe(fc.constantFrom(new Uint8Array(32), PAGES.prefixKey)),
})

const pages = fc.record({
  numLayers: small,
  numKvHeads: small,
  headDim: small,
  valueHeadDim: maybe(fc.integer({ min: 0, max: 3 })),
})

const layer = fc.oneof(
  fc.record({ kind: fc.constant('full' as const), numKvHeads: small, headDim: small }),
  fc.record({
    kind: fc.constant('sliding' as const),
    window: fc.constantFrom(4, 8),
    numKvHeads: small,
    headDim: small,
  }),
)

const model = fc.record({
  model: fc.oneof(
    fc.array(layer, { minLength: 1, maxLength: 4 }).map(layers => ({ layers })),
    fc.constantFrom('mistral', 'gemma3_text', 'gpt_oss').map(model_type => ({ model_type, num_hidden_layers: 7 })),
  ),
})

const options = fc
  .tuple(naming, fc.oneof(pages, model))
  .map(([both, own]) => ({ ...both, ...own }) as PrefixNamerOptions)
const extra = fc
  .record({ start: fc.nat(4), length: small, key: fc.constantFrom(Uint8Array.of(1), Uint8Array.of(2)) })
  .map(({ start, length, key }) => ({ start, end: start + length, key }))
const prompts: fc.Arbitrary<PromptOptions> = fc.record(
  { salt: fc.constantFrom('', 'a', Uint8Array.of(98)), extra: fc.array(extra, { maxLength: 2 }) },
  { requiredKeys: [] },
)

test('it names as the cache that its options make, and refuses what that refuses', t => {
  check(t, fc.tuple(options, fc.array(fc.nat(3), { maxLength: 7 }), prompts), ([of, tokens, prompt]) => {
    same(
      'what it names',
      outcome(() => named(of, tokens, prompt)),
      outcome(() => cached(of, tokens, prompt)),
    )
  })
})

test('the form of a cache, as a message has it, names as the cache does', t => {
  check(
    t,
    fc.tuple(options, fc.array(fc.nat(3), { maxLength: 7 }), prompts, fc.option(small, { nil: undefined })),
    ([of, tokens, prompt, window]) => {
      const made = (): PagedKvCache =>
        new PagedKvCache({
          ...of,
          capacity: 2,
          ...('model' in of || window === undefined ? {} : { window }),
        } as UniformCacheOptions)
      let cache: PagedKvCache
      try {
        cache = made()
      } catch (error) {
        if (isKvTideError(error)) return
        throw error
      }
      const { prefixKey } = of
      const form = JSON.parse(JSON.stringify(cache.form)) as CacheForm
      same(
        'what it names',
        outcome(() => named({ ...form, ...(prefixKey && { prefixKey }) }, tokens, prompt)),
        outcome(() => cache.keys(tokens, prompt)),
      )
      using again = new PagedKvCache({ ...form, ...(prefixKey && { prefixKey }), capacity: 2 })
      same('its form', [JSON.stringify(again.form)], [JSON.stringify(form)])
      cache.dispose()
    },
  )
})

test('each of what is in a name makes another one', t => {
  const tokens = [1, 2, 3, 4, 5, 6]
  const differs = (base: PrefixNamerOptions, changes: Record<string, unknown>): void => {
    const one = named(base, tokens).at(-1)
    t.is(named({ ...base }, tokens).at(-1), one)
    for (const [name, value] of Object.entries(changes))
      t.not(named({ ...base, [name]: value } as never, tokens).at(-1), one, name)
  }
  const both = {
    blockSize: 3,
    dtype: 'f16',
    keyFormat: 'q8',
    valueFormat: 'q8',
    namespace: 'a',
    prefixKey: new Uint8Array(32),
  }
  differs(PAGES, { ...both, numLayers: 3, numKvHeads: 1, headDim: 3, valueHeadDim: 3 })
  differs({ ...PAGES, keyFormat: 'q8' }, { hadamard: true })
  differs({ ...PAGES, valueFormat: 'q8' }, { valueHadamard: true })
  differs({ ...PAGES, keyFormat: 'q8', valueFormat: 'q8', hadamard: true }, { valueHadamard: true })
  const layers = MODEL.model.layers
  differs(MODEL, { ...both, model: { layers: layers.slice(1) } })
  differs(MODEL, { model: { layers: layers.toReversed().toSpliced(1, 1) } })
  differs(MODEL, { model: { layers: [layers[1], layers[0], layers[2]] }, device: ['cpu', 'cpu', 'cuda'] })
  const base = named(PAGES, tokens)
  for (const prompt of [{ salt: 'a' }, { extra: [{ start: 5, end: 6, key: Uint8Array.of(1) }] }])
    t.not(named(PAGES, tokens, prompt)[2], base[2])
  t.deepEqual(named(PAGES, [...tokens, 9]), base)
})

test('nothing else is in a name', t => {
  const tokens = span(0, 9)
  const pagesOf = named(PAGES, tokens)
  const more = {
    capacity: 'many',
    window: 4,
    sinks: -1,
    eviction: 5,
    events: {},
    now: 0,
    memoryLimitBytes: null,
    device: 'auto',
  }
  t.deepEqual(named({ ...PAGES, ...more } as never, tokens), pagesOf)
  const modelOf = named(MODEL, tokens)
  t.deepEqual(
    named({ ...MODEL, capacity: [1, 2, 3], memoryBytes: 'all', maxSequences: 0, device: 'cuda:3' } as never, tokens),
    modelOf,
  )
  const sliding = { layers: MODEL.model.layers.map(of => ('window' in of ? { ...of, window: 5 } : of)) }
  t.deepEqual(named({ ...MODEL, model: sliding }, tokens), modelOf)
  const { blockSize, prefixKey } = PAGES
  const alike = {
    model: {
      layers: [
        { kind: 'full', ...SIZES },
        { kind: 'full', ...SIZES },
      ],
    },
    blockSize,
    prefixKey,
  } as const
  t.deepEqual(named(alike, tokens), pagesOf, 'a model of one group is pages')
})

test('devices need not be there, and part layers into groups', t => {
  const tokens = span(0, 4)
  const on = (...device: string[]): string[] => named({ ...MODEL, device }, tokens)
  t.deepEqual(on('cuda', 'cuda:0', 'cuda:00'), named(MODEL, tokens))
  t.deepEqual(on('cuda:1', 'cuda:9', 'cuda:1'), named(MODEL, tokens))
  t.notDeepEqual(on('cuda:0', 'cuda:0', 'cuda:1'), named(MODEL, tokens))
  t.deepEqual(on('cuda:0', 'cuda:0', 'cuda:1'), on('cpu', 'metal', 'cuda'))
  for (const device of ['auto', 'gpu', ''])
    throwsCode(t, 'INVALID_ARGUMENT', () => on('cpu', 'cpu', device), {
      argument: 'device',
      value: device,
      expected: 'one of cpu, cuda, cuda:N, metal',
    })
  throwsCode(t, 'INVALID_ARGUMENT', () => on('cpu'), {
    argument: 'device.length',
    value: 1,
    expected: '3, one for each layer',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => new PrefixNamer({ ...PAGES, device: 'gpu' }))
})

test('it is refused what has no names, and takes no memory for pages', t => {
  const { usedBytes } = memoryStats()
  using namer = new PrefixNamer({ ...PAGES, capacity: 2 ** 31 - 1, numLayers: 60_000 })
  t.deepEqual([namer.blockSize, namer.keys([1, 2, 3, 4, 5]).length, memoryStats().usedBytes], [2, 2, usedBytes])
  throwsCode(t, 'UNSUPPORTED_MODEL', () => new PrefixNamer({ model: { model_type: 'rwkv' } }))
  for (const [name, value] of [
    ['numLayers', 0],
    ['headDim', undefined],
    ['keyFormat', 'q3'],
    ['prefixKey', new Uint8Array(31)],
    ['namespace', '\ud800'],
    ['hadamard', true],
    ['valueHadamard', true],
  ] as const) {
    const details = throwsCode(t, 'INVALID_ARGUMENT', () => new PrefixNamer({ ...PAGES, [name]: value } as never))
      .details as { argument: string }
    t.is(details.argument, name)
  }
  throwsCode(t, 'INVALID_ARGUMENT', () => namer.keys([-1]))
  throwsCode(t, 'INVALID_ARGUMENT', () => namer.keys([1], { salt: 5 as never }))
})

test('what a config.json leaves out is in the names as its family has it', t => {
  const short = { model: { model_type: 'mistral', num_hidden_layers: 2 }, blockSize: 2, prefixKey: PAGES.prefixKey }
  const whole = {
    ...short,
    model: { ...short.model, hidden_size: 4096, num_attention_heads: 32, num_key_value_heads: 8, sliding_window: 4096 },
  }
  t.deepEqual(named(short, [1, 2]), named(whole, [1, 2]))
  t.notDeepEqual(
    named(short, [1, 2]),
    named({ ...short, model: { ...short.model, num_key_value_heads: null } }, [1, 2]),
  )
})
