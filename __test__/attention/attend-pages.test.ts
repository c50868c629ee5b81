// Attention over the pages of a PagedKvCache, where they lie: sequences, block tables, step batches, and the rules of a model.
import test, { type ExecutionContext } from 'ava'

import {
  attend,
  attendAsync,
  type AttendKv,
  type AttendOptions,
  type ErrorCode,
  isKvTideError,
  memoryStats,
  PagedKvCache,
  type PageFormat,
  type StepArrays,
  type UniformCacheOptions,
} from '../../index.js'
import { digest } from '../support/arguments/digest.js'
import { collectAll, collected } from '../support/garbage.js'
import { distance } from '../support/llama/references.js'
import { HYBRID, kvOf, layersOf, OWN, queriesOf, seen } from '../support/model-rows.js'
import { filled, HEADS, LAYER, overCopies, tablesOf, waves } from '../support/pages.js'
import { throwsCode } from '../support/throws.js'
import { FLOATS, span } from '../support/tokens.js'

/** Sequences of unequal length, one of them empty, and the queries of each. */
const LENGTHS = [13, 0, 4, 30]
const QUERIES = [3, 1, 0, 2]
const QUERY_OFFSETS = [0, 3, 4, 4, 6]

/** Sums of 32-bit floats in another order; in f16 and bf16 the pages hold what is gathered, so that there it is no more. */
const TOLERANCE = 2e-6

const SEES: readonly AttendOptions[] = [
  {},
  { window: 5 },
  { window: 5, sinks: 2 },
  { causal: false, scale: 0.7 },
  { softcap: 2, sinkLogits: [0, 1, -1, 2] },
  { window: 7, alibiSlopes: [0.5, 0.25, 0, -0.125] },
]

const sequences = span(0, LENGTHS.length)

/** Both ways to name the pages. */
const ways = (cache: PagedKvCache): readonly AttendKv[] => [
  { cache, layer: LAYER, sequences },
  { cache, layer: LAYER, sequences: Float64Array.from(sequences) },
  { cache, layer: LAYER, blockTables: tablesOf(LENGTHS), lengths: Int32Array.from(LENGTHS) },
]

/** Checks every way over pages of this form against copies of what they hold. */
async function sameAsCopies(t: ExecutionContext, options: Partial<UniformCacheOptions>): Promise<void> {
  using cache = filled(LENGTHS, options)
  const q = waves(3, [6, HEADS.query, cache.headDim])
  for (const sees of SEES) {
    const wanted = overCopies(cache, sequences, QUERIES, q, sees)
    const call = { ...sees, qOffsets: QUERY_OFFSETS, returnLse: true } as const
    const first = attend(q, ways(cache)[0] as AttendKv, call)
    t.deepEqual([first.out.shape, first.out.dtype, first.lse.length], [[6, HEADS.query, cache.valueHeadDim], 'f32', 24])
    const off = distance(first.out.toFloat32Array(), wanted)
    t.true(off < TOLERANCE, `${JSON.stringify([options, sees])} is off by ${off}`)
    for (const kv of ways(cache)) {
      const found = await attendAsync(q, kv, call)
      t.deepEqual([found.out.toArray(), found.lse], [first.out.toArray(), first.lse])
      t.deepEqual(attend(q, kv, call, new Float32Array(wanted.length)).out, first.out.toArray())
    }
  }
}

for (const dtype of FLOATS) {
  test(`pages of ${dtype} give what copies of them give`, async t => {
    await sameAsCopies(t, { dtype })
    await sameAsCopies(t, { dtype, valueHeadDim: 24, blockSize: 4 })
  })
}

const LOW: readonly PageFormat[] = ['f8e4m3', 'q8', 'q4']

for (const keyFormat of LOW) {
  test(`keys in ${keyFormat} and values in every form give what copies of them give`, async t => {
    for (const valueFormat of [...LOW, 'f32'] as const) {
      for (const hadamard of [false, true]) {
        for (const valueHadamard of valueFormat === 'f32' ? [false] : [false, true])
          await sameAsCopies(t, { keyFormat, valueFormat, hadamard, valueHadamard })
      }
    }
    await sameAsCopies(t, { dtype: 'f16', keyFormat, hadamard: true })
    for (const valueHadamard of [false, true])
      await sameAsCopies(t, { dtype: 'bf16', valueFormat: keyFormat, valueHadamard })
  })
}

test('unless offsets say otherwise, each sequence has one query, its last token', t => {
  using cache = filled([5, 9])
  const q = waves(2, [2, HEADS.query, 16])
  const { out } = attend(q, { cache, layer: LAYER, sequences: [1, 0] })
  t.true(distance(out.toFloat32Array(), overCopies(cache, [1, 0], [1, 1], q)) < TOLERANCE)
  // A sequence may come twice, and a layer that was never written is zeros.
  const twice = attend(q, { cache, layer: LAYER, sequences: [1, 1] }).out
  t.deepEqual(twice.toArray().subarray(0, 64), out.toArray().subarray(0, 64))
  t.deepEqual([...new Set(attend(q, { cache, layer: 0, sequences: [0, 1] }).out.toArray())], [0])
  t.is(attend(waves(2, [0, HEADS.query, 16]), { cache, layer: LAYER, sequences: [] }).out.length, 0)
})

test('draft trees, masks, padding and positions are as over copies', t => {
  const more: readonly AttendOptions[] = [
    { tree: [-1, 0, 0] },
    { tree: [-1, 0, 0], window: 2 },
    { mask: { data: waves(5, [3, 9]).data as Float32Array, shape: [3, 9] } },
    { positions: [1, 8, 4] },
    { starts: [3] },
  ]
  for (const options of [{}, { keyFormat: 'q4', valueFormat: 'q8', hadamard: true, valueHadamard: true }] as const) {
    using cache = filled([9], options)
    const q = waves(3, [3, HEADS.query, 16])
    for (const sees of more) {
      const { out } = attend(q, { cache, layer: LAYER, sequences: [0] }, { ...sees, qOffsets: [0, 3] })
      t.true(
        distance(out.toFloat32Array(), overCopies(cache, [0], [3], q, sees)) < TOLERANCE,
        JSON.stringify([options, sees]),
      )
    }
  }
})

test('a getter that writes to the cache or disposes of it comes before the reading', t => {
  const cache = filled([5])
  const q = { data: new Float32Array(64), shape: [1, HEADS.query, 16] }
  const row = new Float32Array(32).fill(9)
  const written = {
    cache,
    layer: LAYER,
    get sequences() {
      for (let pos = 0; pos < 5; pos++) cache.writeKv(0, LAYER, pos, row, row)
      return [0]
    },
  }
  t.deepEqual([...new Set(attend(q, written).out.toArray())], [9])
  const gone = {
    cache,
    layer: LAYER,
    get sequences() {
      cache.dispose()
      return [0]
    },
  }
  throwsCode(t, 'DISPOSED', () => attend(q, gone))
})

test('what another sequence left in a block is not seen, and what was not written is zeros', t => {
  using cache = filled([8], { capacity: 2 })
  cache.dropSequence(0)
  const seq = cache.createSequence()
  cache.writeKv(seq, LAYER, 6, new Float32Array(32).fill(1), new Float32Array(32).fill(7))
  const q = { data: new Float32Array(64), shape: [1, HEADS.query, 16] }
  for (const kv of [
    { cache, layer: LAYER, sequences: [seq] },
    { cache, layer: LAYER, blockTables: Int32Array.of(0, 1), lengths: Int32Array.of(7) },
  ]) {
    t.deepEqual([...new Set(attend(q, kv).out.toArray())], [1])
  }
})

/** Every call that changes a cache with a sequence 0 of five tokens. */
const changes = (cache: PagedKvCache): readonly (() => unknown)[] => {
  const [row, all] = [new Float32Array(32), waves(1, [2, HEADS.kv, 1, 16])]
  return [
    () => cache.writeKv(0, LAYER, 5, row, row),
    () => cache.writeTokens(0, LAYER, 5, waves(1, [HEADS.kv, 1, 16]), waves(1, [HEADS.kv, 1, 16])),
    () => cache.append([0], all, all),
    () => cache.createSequence(),
    () => cache.ensureCapacity(0, 20),
    () => cache.dropSequence(0),
  ]
}

for (const options of [{}, { keyFormat: 'q8', valueFormat: 'q4', hadamard: true, valueHadamard: true }] as const) {
  test(`while it runs changes are refused and reads go on: ${JSON.stringify(options)}`, async t => {
    using cache = filled([5, 9], options)
    const q = waves(2, [2, HEADS.query, 16])
    const kv = { cache, layer: LAYER, sequences: [0, 1] }
    const wanted = attend(q, kv).out
    const before = digest(cache)
    const running = [
      attendAsync(q, kv),
      attendAsync(q, { cache, layer: LAYER, blockTables: tablesOf([5, 9]), lengths: Int32Array.of(5, 9) }),
    ]
    for (const call of changes(cache)) throwsCode(t, 'BUSY', call)
    t.is(digest(cache), before)
    t.deepEqual([cache.gather(0, LAYER).k.shape, cache.readKv(1, LAYER, 8).key.length], [[2, 5, 16], 32])
    t.true(attend(q, kv).out.equals(wanted))
    for (const { out } of await Promise.all(running)) t.true(out.equals(wanted))
    for (const call of changes(cache)) t.notThrows(call)
  })
}

test('while it runs, slots that were never written can be gathered, and read in place once zeros are there', async t => {
  using cache = filled([5, 9, 8])
  // A sequence with a hole where another one's old bytes lie: the first read in place has to put zeros there.
  cache.dropSequence(2)
  const holed = cache.createSequence()
  cache.writeKv(holed, LAYER, 2, new Float32Array(32), new Float32Array(32).fill(6))
  const q = { data: new Float32Array(64), shape: [1, HEADS.query, 16] }
  const read = (): number | undefined => attend(q, { cache, layer: LAYER, sequences: [holed] }).out.toArray()[0]
  const other = { cache, layer: LAYER, sequences: [0] }
  const first = attendAsync(q, other)
  throwsCode(t, 'BUSY', read)
  const hole = [...new Float32Array(32), ...new Float32Array(16).fill(6)]
  t.deepEqual(Array.from(cache.gather(holed, LAYER).v.toArray()), [...hole, ...hole])
  await first
  t.is(read(), 2)
  const second = attendAsync(q, other)
  t.is(read(), 2)
  await second
})

/** Disposes of a cache while its pages are read. */
async function disposeMeanwhile(t: ExecutionContext): Promise<void> {
  const cache = filled([5, 9], { keyFormat: 'q8' })
  const q = waves(2, [2, HEADS.query, 16])
  const kv = { cache, layer: LAYER, sequences: [0, 1] }
  const wanted = attend(q, kv).out.toArray()
  const running = attendAsync(q, kv)
  cache.dispose()
  throwsCode(t, 'DISPOSED', () => attend(q, kv))
  t.deepEqual((await running).out.toArray(), wanted)
}

test.serial('a cache that is disposed of meanwhile is read to the end, and freed then', async t => {
  await collectAll()
  const start = memoryStats().usedBytes
  await disposeMeanwhile(t)
  t.true(await collected(() => memoryStats().usedBytes <= start), `${memoryStats().usedBytes - start} bytes are left`)
})

test('when it was aborted or refused, the cache is free again', async t => {
  using cache = filled([5, 9])
  const q = waves(2, [2, HEADS.query, 16])
  const kv = { cache, layer: LAYER, sequences: [0, 1] }
  const controller = new AbortController()
  const running = attendAsync(q, kv, { signal: controller.signal })
  controller.abort()
  const error = await t.throwsAsync(running)
  t.true(isKvTideError(error) && error.code === 'ABORTED')
  const refused = await t.throwsAsync(attendAsync(waves(2, [3, HEADS.query, 16]), kv))
  t.true(isKvTideError(refused) && refused.code === 'INVALID_ARGUMENT', String(refused))
  for (const call of changes(cache)) t.notThrows(call)
})

/** Wrong pages of a cache with sequences of 5 and 9 tokens and 8 blocks, the code, and the argument to blame if one is. */
const WRONG: readonly (readonly [kv: object, code: ErrorCode, argument?: string])[] = [
  [{ sequences: [0, 2] }, 'SEQUENCE_NOT_FOUND'],
  [{ sequences: [0, -1] }, 'INVALID_ARGUMENT', 'sequences[1]'],
  [{ sequences: Int32Array.of(0, 1) }, 'INVALID_ARGUMENT', 'sequences'],
  [{ sequences: [0] }, 'INVALID_ARGUMENT', 'qOffsets'],
  [{}, 'INVALID_ARGUMENT', 'sequences'],
  [{ sequences: [0, 1], layer: 2 }, 'INVALID_ARGUMENT', 'layer'],
  [{ sequences: [0, 1], layer: -1 }, 'INVALID_ARGUMENT', 'layer'],
  [{ sequences: [0, 1], layer: undefined }, 'INVALID_ARGUMENT', 'layer'],
  [{ sequences: [0, 1], cache: {} }, 'INVALID_ARGUMENT', 'cache'],
  [{ blockTables: Int32Array.of(0, 8), lengths: Int32Array.of(4, 4) }, 'INVALID_BLOCK'],
  [{ blockTables: Int32Array.of(0, -1), lengths: Int32Array.of(4, 1) }, 'INVALID_BLOCK'],
  [{ blockTables: Int32Array.of(0, 2 ** 31 - 1), lengths: Int32Array.of(4, 1) }, 'INVALID_BLOCK'],
  [{ blockTables: Int32Array.of(0, 1), lengths: Int32Array.of(4, 5) }, 'POSITION_OUT_OF_RANGE'],
  [{ blockTables: Int32Array.of(), lengths: Int32Array.of(0, 1) }, 'POSITION_OUT_OF_RANGE'],
  [{ blockTables: Int32Array.of(0, 1), lengths: Int32Array.of(4, -1) }, 'INVALID_ARGUMENT', 'lengths'],
  [{ blockTables: Int32Array.of(0, 1, 2), lengths: Int32Array.of(4, 4) }, 'SHAPE_MISMATCH', 'blockTables'],
  [{ blockTables: Int32Array.of(0, 1), layer: 2, lengths: Int32Array.of(4, 4) }, 'INVALID_ARGUMENT', 'layer'],
  [{ blockTables: Int32Array.of(0, 1) }, 'INVALID_ARGUMENT', 'lengths'],
  [{ lengths: Int32Array.of(0, 1) }, 'INVALID_ARGUMENT', 'sequences'],
  [{ blockTables: Float64Array.of(0, 1), lengths: Int32Array.of(4, 4) }, 'INVALID_ARGUMENT', 'blockTables'],
]

test('wrong pages are refused by name, and nothing has changed', async t => {
  using cache = filled([5, 9], { capacity: 8 })
  const q = waves(2, [2, HEADS.query, 16])
  const out = new Float32Array(2 * HEADS.query * 16).fill(7)
  const before = digest(cache)
  for (const [wrong, code, argument] of WRONG) {
    const kv = { cache, layer: LAYER, ...wrong } as never
    const error = throwsCode(t, code, () => attend(q, kv, {}, out))
    if (argument !== undefined) t.is((error.details as { argument?: string }).argument, argument, error.message)
    const later = await t.throwsAsync(attendAsync(q, kv, {}, out))
    t.true(isKvTideError(later) && later.code === code && later.message === error.message, String(later))
  }
  t.deepEqual([digest(cache), [...new Set(out)]], [before, [7]])
  for (const call of changes(cache)) t.notThrows(call)
})

test('options that pages do not take are refused, and queries of another shape', t => {
  using cache = filled([5, 9])
  const kv = { cache, layer: LAYER, sequences: [0, 1] }
  const q = waves(2, [2, HEADS.query, 16])
  throwsCode(t, 'SHAPE_MISMATCH', () => attend(waves(2, [2, HEADS.query, 2, 16]), kv))
  throwsCode(t, 'SHAPE_MISMATCH', () => attend(waves(2, [2, 3, 16]), kv))
  throwsCode(t, 'SHAPE_MISMATCH', () => attend(waves(2, [2, HEADS.query, 8]), kv))
  t.is(throwsCode(t, 'SHAPE_MISMATCH', () => attend(q, kv, { qOffsets: [0, 2] })).details.argument, 'qOffsets')
  t.is(throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, kv, { qOffsets: [0, 1, 3] })).details.argument, 'qOffsets')
})

test('pages of bytes and a cache that was disposed of are refused', t => {
  using bytes = new PagedKvCache({ capacity: 2, numLayers: 1, numKvHeads: 1, headDim: 2, dtype: 'u8' })
  const q = waves(1, [1, 1, 2])
  const error = throwsCode(t, 'DTYPE_MISMATCH', () =>
    attend(q, { cache: bytes, layer: 0, sequences: [bytes.createSequence()] }),
  )
  t.is(error.details.argument, 'cache')
  const cache = filled([5])
  cache.dispose()
  for (const kv of [
    { cache, layer: 0, sequences: [0] },
    { cache, layer: 0, blockTables: Int32Array.of(0), lengths: Int32Array.of(1) },
  ]) {
    throwsCode(t, 'DISPOSED', () => attend(waves(1, [1, HEADS.query, 16]), kv), { object: 'PagedKvCache' })
  }
})

const modelCache = (): PagedKvCache => new PagedKvCache({ model: HYBRID, blockSize: 2, capacity: 64 })

/** The group that a layer's pages are in: its own, or that of the layer it shares with. */
function groupOf(cache: PagedKvCache, layer: number): number {
  const of = cache.groups.findIndex(group => group.layers.includes(layer))
  if (of >= 0) return of
  return groupOf(cache, (HYBRID.layers[layer] as { with: number }).with)
}

test('the tables of each group go to attention as they are', async t => {
  using cache = modelCache()
  const [one, other] = [cache.openSequence({ salt: 'one' }), cache.openSequence({ salt: 'another' })]
  one.append({ layers: layersOf(span(0, 11)) })
  other.append({ layers: layersOf(span(50, 54)) })
  using batch = cache.stepBatch({ maxSequences: 2, maxBlocks: 16, maxTokens: 8 })
  const tokens = [11, 12, 54]
  using step = cache.prepareStep(batch, { sequences: [one, other], offsets: [0, 2, 3] })
  for (const layer of OWN) {
    const { k, v } = kvOf(layer, tokens)
    step.write(layer, k, v)
  }
  for (let layer = 0; layer < cache.numLayers; layer++) {
    const { blockTables, lengths, queryOffsets: qOffsets } = batch.groups[groupOf(cache, layer)] as StepArrays
    const q = queriesOf(layer, tokens)
    const wanted = step.attend(layer, q).out.toArray()
    const kv = { cache, layer, blockTables, lengths }
    t.deepEqual(attend(q, kv, { qOffsets }).out.toArray(), wanted, `layer ${layer}`)
    t.deepEqual((await attendAsync(q, kv, { qOffsets })).out.toArray(), wanted, `layer ${layer}`)
    t.notDeepEqual(attend(q, kv, { qOffsets, scale: 9 }).out.toArray(), wanted, `layer ${layer}`)
  }
  t.true(
    Array.from((batch.groups[0] as StepArrays).blockTables.subarray(0, 7)).includes(-1),
    'a block has left the window',
  )
  step.commit()
  for (let layer = 0; layer < cache.numLayers; layer++) {
    const found = attend(queriesOf(layer, [12, 54]), { cache, layer, sequences: [one, other.id] }).out.toFloat32Array()
    const wanted = [...seen(layer, span(0, 13), 1), ...seen(layer, span(50, 55), 1)]
    t.true(
      wanted.every((value, at) => Math.abs(value - (found[at] as number)) < 1e-5),
      `layer ${layer}`,
    )
  }
})

test('what is asked wrongly of a model is refused', t => {
  using cache = modelCache()
  const sequence = cache.openSequence()
  sequence.append({ layers: layersOf(span(0, 3)) })
  const q = queriesOf(0, [2])
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, { cache, layer: cache.numLayers, sequences: [sequence] }))
  throwsCode(t, 'SEQUENCE_NOT_FOUND', () => attend(q, { cache, layer: 0, sequences: [9] }))
  throwsCode(t, 'INVALID_BLOCK', () =>
    attend(q, { cache, layer: 0, blockTables: Int32Array.of(99, 99), lengths: Int32Array.of(3) }),
  )
  using foreign = modelCache()
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, { cache, layer: 0, sequences: [foreign.openSequence()] }))
  const model = {
    layers: [{ kind: 'full', numKvHeads: 2, headDim: 2 }],
    attention: { numQueryHeads: 4, sinkLogits: true },
  } as const
  using learned = new PagedKvCache({ model, capacity: 1 })
  const kv = { cache: learned, layer: 0, sequences: [learned.openSequence()] }
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, kv), {
    argument: 'sinkLogits',
    value: undefined,
    expected: 'the sink logits that the model has learned for the layer, one for each query head',
  })
  t.is(attend(q, kv, { sinkLogits: [1, 1, 1, 1] }).out.length, 8)
  throwsCode(
    t,
    'SHAPE_MISMATCH',
    () => attend({ data: new Float32Array(4), shape: [1, 2, 2] }, kv, { sinkLogits: [1, 1] }),
    { argument: 'q', value: [1, 2, 2], expected: "4 heads, the number in the model's description" },
  )
})
