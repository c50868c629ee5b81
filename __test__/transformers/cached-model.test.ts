// kvtide/transformers with the real transformers.js, on files of this project.
import test from 'ava'

import { type BlockStore, isKvTideError, PagedKvCache } from '../../index.js'
import { CachedModel, type DynamicCache as Cache, type TransformersTensor } from '../../transformers.js'
import { rejected } from '../support/throws.js'
import { references } from '../support/llama/references.js'
import { greedyOf, promptOf } from '../support/onnx/chat.js'
import { idsOf, loadModel, row } from '../support/transformers/model.js'
import { type Model, transformers } from '../support/transformers/package.js'

const { DynamicCache, Tensor } = transformers
const prompts = Object.keys(references.prompts)
const CACHE = { memoryBytes: 2 ** 23, blockSize: 4 }

let model: Model
test.before(async () => {
  model = await loadModel()
})

/** The 64 tokens that follow a prompt, without what stands before them. */
async function continued(cached: CachedModel<Model>, ids: readonly number[], options: object = {}): Promise<number[]> {
  const output = await cached.generate({ input_ids: row(ids), max_new_tokens: 64, do_sample: false, ...options })
  return idsOf(output).slice(ids.length)
}

async function codeOf(promise: Promise<unknown> | (() => unknown)): Promise<string | undefined> {
  try {
    await (typeof promise === 'function' ? promise() : promise)
  } catch (error) {
    if (isKvTideError(error)) return error.code
    throw error
  }
  return undefined
}

test('all prompts give the reference tokens, and again what was found', async t => {
  using cached = await CachedModel.of(model, { cache: CACHE })
  for (const name of prompts) t.deepEqual(await continued(cached, promptOf(name)), greedyOf(name), name)
  const { hitTokens } = cached.cache.stats()
  for (const name of prompts) t.deepEqual(await continued(cached, promptOf(name)), greedyOf(name), `${name}, again`)
  // Whole blocks of four, and never the last token.
  const found = prompts.map(name => Math.floor((promptOf(name).length - 1) / 4) * 4)
  t.is(
    cached.cache.stats().hitTokens - hitTokens,
    found.reduce((sum, tokens) => sum + tokens, 0),
  )
  t.deepEqual(cached.cache.sequenceIds(), [])
  cached.cache.checkInvariants()
})

test('what lies in tiers below the cache is found, and counts once', async t => {
  const kept = new Map<string, Uint8Array>()
  const store: BlockStore = {
    getMany: async keys => keys.map(key => kept.get(key)),
    hasMany: async keys => keys.map(key => kept.has(key)),
    putMany: async entries => entries.forEach(({ key, value }) => kept.set(key, value.slice())),
  }
  const options = { cache: { ...CACHE, prefixKey: new Uint8Array(32), tiers: { store: { store }, deadline: 60_000 } } }
  using first = await CachedModel.of(model, options)
  t.deepEqual(await continued(first, promptOf('p100')), greedyOf('p100'))
  t.true(await first.cache.flush(60_000))
  using second = await CachedModel.of(model, options)
  t.deepEqual(await continued(second, promptOf('p100')), greedyOf('p100'))
  const { promptTokens, hitTokens } = second.cache.stats()
  t.deepEqual([promptTokens, hitTokens], [promptOf('p100').length, 96])
})

test('a prompt beyond the context of the config is refused before anything is computed', async t => {
  using cached = await CachedModel.of(model, { cache: CACHE })
  const sequence = cached.cache.openSequence()
  const long = Array.from({ length: 513 }, (_, place) => place % 300)
  t.is(await codeOf(cached.generate({ input_ids: row(long), max_new_tokens: 1, sequence })), 'CONTEXT_OVERFLOW')
  t.is(sequence.length, 0)
  await cached.generate({ input_ids: row(long.slice(0, 511)), max_new_tokens: 1, sequence })
  t.is(sequence.length, 511)
})

test('a chat goes on, is edited in the middle, cropped and forked', async t => {
  using cached = await CachedModel.of(model, { cache: CACHE })
  using chat = cached.cache.openSequence({ salt: 'one' })
  t.deepEqual(await continued(cached, promptOf('p100'), { sequence: chat }), greedyOf('p100'))
  t.is(chat.length, 163, 'the model has not seen the last token')
  const before = cached.cache.stats().bufferBytes
  // The history was edited: both have their first sixty tokens in common.
  using fork = chat.fork()
  t.deepEqual(await continued(cached, promptOf('branch60'), { sequence: fork }), greedyOf('branch60'))
  t.is(fork.length, promptOf('branch60').length + 63)
  t.is(chat.length, 163)
  t.is(cached.cache.stats().bufferBytes, before)
  // Cropped, and taken further by hand.
  chat.truncate(100)
  const past = cached.load(chat)
  t.is(past.get_seq_length(), 100)
  const next = [...promptOf('p100'), greedyOf('p100')[0] as number]
  const output = await model.generate({
    input_ids: row(next),
    attention_mask: cached.mask(next.length),
    past_key_values: past,
    max_new_tokens: 63,
    do_sample: false,
  })
  t.deepEqual(idsOf(output).slice(100), greedyOf('p100'))
  cached.store(chat, past, idsOf(output))
  t.is(chat.length, 163)
  t.deepEqual(
    await continued(cached, promptOf('p33'), { sequence: chat }),
    greedyOf('p33'),
    'another prompt altogether',
  )
  cached.cache.checkInvariants()
})

for (const graph of ['llama/onnx-gqa-f32', 'llama/onnx-gqa-pos-f32', 'llama/onnx-gqa-f16']) {
  test(`${graph}: reference tokens, computed and found`, async t => {
    using cached = await CachedModel.of(await loadModel(graph), { cache: CACHE })
    t.is(cached.cache.dtype, graph.endsWith('f16') ? 'f16' : 'f32')
    for (const name of ['p33', 'p100', 'branch60', 'p100'])
      t.deepEqual(await continued(cached, promptOf(name)), greedyOf(name), name)
    t.true(cached.cache.stats().hitTokens >= 96 + 60)
  })
}

test('salts keep prompts apart, and share the start that they are told to', async t => {
  using cached = await CachedModel.of(model, { cache: CACHE })
  const ids = promptOf('p100')
  const hits = async (options: object): Promise<number> => {
    const { hitTokens } = cached.cache.stats()
    t.deepEqual(await continued(cached, ids, options), greedyOf('p100'))
    return cached.cache.stats().hitTokens - hitTokens
  }
  t.is(await hits({ salt: 'one', saltFrom: 40 }), 0)
  t.is(await hits({ salt: 'two', saltFrom: 40 }), 40)
  t.is(await hits({ salt: 'two', saltFrom: 40 }), 96)
  t.is(await hits({ salt: 'one' }), 0)
  t.is(await hits({}), 40)
})

test("low-bit pages, pages of half floats, and a cache of the caller's own", async t => {
  using own = new PagedKvCache({
    model: { layers: [0, 1, 2].map(() => ({ kind: 'full', numKvHeads: 2, headDim: 16 }) as const) },
    capacity: 64,
    blockSize: 4,
  })
  {
    using cached = await CachedModel.of(model, { cache: own })
    t.is(cached.cache, own)
    t.deepEqual(await continued(cached, promptOf('p33')), greedyOf('p33'))
  }
  t.is(own.match(promptOf('p33')).length, 32, 'it is not ended with the model')
  for (const format of ['f16', 'q8'] as const) {
    using cached = await CachedModel.of(model, { cache: { ...CACHE, keyFormat: format, valueFormat: format } })
    const first = await continued(cached, promptOf('p100'))
    const again = await continued(cached, promptOf('p100'))
    t.deepEqual(first, greedyOf('p100'))
    t.is(again.length, 64)
    // One token that turns out otherwise turns all that follow it.
    t.deepEqual(again.slice(0, 4), first.slice(0, 4), format)
  }
})

test('what generate is given besides is given on, and what it answers comes back', async t => {
  using cached = await CachedModel.of(model, { cache: CACHE })
  const seen: number[] = []
  const streamer = { put: (rows: bigint[][]) => seen.push(...rows.flat().map(Number)), end: () => seen.push(-1) }
  const answer = (await cached.generate({
    inputs: row(promptOf('p7')),
    max_new_tokens: 4,
    return_dict_in_generate: true,
    streamer,
  })) as { sequences: TransformersTensor; past_key_values: Cache }
  t.deepEqual(idsOf(answer.sequences), [...promptOf('p7'), ...greedyOf('p7').slice(0, 4)])
  t.is(answer.past_key_values.get_seq_length(), 10)
  t.deepEqual(seen, [...idsOf(answer.sequences), -1])
})

test('where it fails, the sequence is as it was', async t => {
  using cached = await CachedModel.of(model, { cache: { capacity: 10, blockSize: 4 } })
  using chat = cached.cache.openSequence()
  await cached.generate({ input_ids: row(promptOf('p7')), max_new_tokens: 4, sequence: chat })
  const failing = {
    put: () => {
      throw new Error('mine')
    },
    end: () => undefined,
  }
  await t.throwsAsync(
    cached.generate({
      input_ids: row([...promptOf('p7').slice(0, 5), 9, 9, 9]),
      max_new_tokens: 4,
      sequence: chat,
      streamer: failing,
    }),
    { message: 'mine' },
  )
  t.is(chat.length, 10)
  // Where there is no room, the answer is not lost.
  const answer = await cached.generate({
    input_ids: row(promptOf('p100')),
    max_new_tokens: 2,
    sequence: chat,
    do_sample: false,
  })
  t.deepEqual(idsOf(answer).slice(100), greedyOf('p100').slice(0, 2))
  t.deepEqual([chat.length, cached.cache.sequenceIds().length], [10, 1])
  t.is(chat.resume([...promptOf('p7'), ...greedyOf('p7').slice(0, 3), 1]), 10)
  cached.cache.checkInvariants()
})

test('what cannot be taken is refused with its code', async t => {
  using cached = await CachedModel.of(model, { cache: CACHE })
  using chat = cached.cache.openSequence()
  const past = cached.load(chat)
  const ids = promptOf('p7')
  const output = await model.generate({
    input_ids: row(ids),
    past_key_values: past,
    max_new_tokens: 4,
    do_sample: false,
  })
  const all = idsOf(output)
  t.is(await codeOf(() => cached.store(chat, past, all.slice(0, 9))), 'INVALID_ARGUMENT', 'fewer tokens than it holds')
  t.is(await codeOf(() => cached.store(chat, past, [...all.slice(0, 10), 0.5])), 'INVALID_ARGUMENT')
  const tensors = past as unknown as Record<string, TransformersTensor>
  const other = new DynamicCache({
    ...tensors,
    'past_key_values.1.value': new Tensor('float32', new Float32Array(2 * 10 * 8), [1, 2, 10, 8]),
  })
  t.is(await codeOf(() => cached.store(chat, other, all)), 'SHAPE_MISMATCH', 'of another model')
  const wide = new DynamicCache(
    Object.fromEntries(
      Object.keys(tensors).map(name => [
        name,
        new Tensor('float32', new Float32Array(2 * 2 * 10 * 16), [2, 2, 10, 16]),
      ]),
    ),
  )
  t.is(await codeOf(() => cached.store(chat, wide, all)), 'SHAPE_MISMATCH', 'of two rows')
  const short = new DynamicCache({ 'past_key_values.0.key': tensors['past_key_values.0.key'] as TransformersTensor })
  t.is(await codeOf(() => cached.store(chat, short, all)), 'INVALID_ARGUMENT', 'of fewer layers')
  t.is(chat.length, 0)
  cached.store(chat, past, all)
  t.is(chat.length, 10)
  const deeper = new DynamicCache({
    ...tensors,
    'past_key_values.3.key': tensors['past_key_values.0.key'] as TransformersTensor,
  })
  t.is(await codeOf(() => cached.store(chat, deeper, all)), 'INVALID_ARGUMENT', 'of more layers')
  const named = new DynamicCache({ past_key_0: tensors['past_key_values.0.key'] as TransformersTensor })
  t.is(
    await codeOf(() => cached.store(chat, named, all)),
    'INVALID_ARGUMENT',
    'with other names, and not for an empty one',
  )
  const half = new DynamicCache(
    Object.fromEntries(
      Object.keys(tensors).map(name => [name, new Tensor('float16', new Uint16Array(2 * 10 * 16), [1, 2, 10, 16])]),
    ),
  )
  t.is(await codeOf(() => cached.store(chat, half, all)), 'DTYPE_MISMATCH', 'of half floats')
  t.is(chat.length, 10)

  const two = new Tensor('int64', new BigInt64Array(4).fill(5n), [2, 2])
  const padded = new Tensor('int64', BigInt64Array.from([0n, 1n, 1n]), [1, 3])
  const three = row([1, 2, 3])
  for (const wrong of [
    {},
    { input_ids: [1, 2] },
    { input_ids: two },
    { input_ids: row([]) },
    { input_ids: row([1, -1]) },
    { input_ids: three, attention_mask: padded },
    { input_ids: three, attention_mask: row([1, 1]) },
    { input_ids: three, position_ids: three },
    { input_ids: row([1]), past_key_values: past },
    { input_ids: row([1]), sequence: 5 },
    { input_ids: row([1]), sequence: chat, salt: 'one' },
    { input_ids: row([1]), salt: 5 },
  ]) {
    t.is(await codeOf(cached.generate(wrong as never)), 'INVALID_ARGUMENT', Object.keys(wrong).join())
  }
  {
    using _ = chat.begin()
    const asked: bigint[][] = []
    const streamer = { put: (rows: bigint[][]) => asked.push(...rows), end: () => undefined }
    t.is(
      await codeOf(cached.generate({ input_ids: row([1, 2, 3]), sequence: chat, max_new_tokens: 1, streamer })),
      'TRANSACTION_OPEN',
    )
    t.deepEqual(asked, [], 'before anything is computed')
  }
  using elsewhere = new PagedKvCache({ capacity: 8, numLayers: 3, numKvHeads: 2, headDim: 16 })
  t.is(await codeOf(() => cached.load(elsewhere.openSequence())), 'INVALID_ARGUMENT')
  t.is(
    await codeOf(
      CachedModel.of(model, { cache: new PagedKvCache({ capacity: 8, numLayers: 2, numKvHeads: 2, headDim: 16 }) }),
    ),
    'INVALID_ARGUMENT',
  )
  t.is(await codeOf(CachedModel.of({} as never)), 'INVALID_ARGUMENT')
  t.is(await codeOf(CachedModel.of(model, { cashe: {} } as never)), 'INVALID_ARGUMENT')
  cached.dispose()
  cached.dispose()
  t.is(await codeOf(cached.generate({ input_ids: row([1]) })), 'DISPOSED')
})

test("its generate can take the place of the model's own, as a pipeline calls it, and only once", async t => {
  const patched = await loadModel()
  using cached = await CachedModel.of(patched, { cache: CACHE })
  patched.generate = options => cached.generate(options as never)
  for (const name of ['p33', 'p33']) {
    const output = await patched.generate({ input_ids: row(promptOf(name)), max_new_tokens: 64, do_sample: false })
    t.deepEqual(idsOf(output).slice(promptOf(name).length), greedyOf(name))
  }
  t.is(cached.cache.stats().hitTokens, 32)
  // A second one would call the first, and that one the model with a past that is not its own.
  using second = await CachedModel.of(patched, { cache: CACHE })
  const error = await rejected(second.generate({ input_ids: row([1, 2, 3]), max_new_tokens: 1 }), 'INVALID_ARGUMENT')
  t.is(
    error.message,
    'model.generate is "a function that calls generate of a CachedModel", expected the model\'s own: make one CachedModel of a model, before its generate is replaced',
  )
  const past = cached.load(cached.cache.openSequence())
  const { details } = await rejected(
    cached.generate({ input_ids: row([1]), past_key_values: past } as never),
    'INVALID_ARGUMENT',
  )
  t.is(details.value, 'an object')
})
