// StepBatch: the tables of a step in arrays that are kept from one to the next.
import test, { type ExecutionContext } from 'ava'

import {
  attend,
  type HostTensor,
  PagedKvCache,
  type UniformCacheOptions,
  type Sequence,
  type StepArrays,
  type StepBatch,
} from '../../index.js'
import { HYBRID, layersOf, queriesOf, runStep } from '../support/model-rows.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const BLOCK = 4
const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 64, blockSize: BLOCK, numLayers: 1, numKvHeads: 1, headDim: 2, ...options })
const SIZES = { maxSequences: 3, maxBlocks: 6, maxTokens: 16 }

let seed = 1
const noise = (): number => {
  seed = (seed * 16_807) % 2_147_483_647
  return seed / 2_147_483_647 - 0.5
}
const rows = (n: number, shape: readonly number[]): HostTensor => ({
  data: Float32Array.from({ length: 2 * n }, noise),
  shape,
})

const padded = (list: readonly number[], value: number, length: number): number[] => [
  ...list,
  ...Array.from({ length: length - list.length }, () => value),
]

/** One step: what attention over the tables gives is, bit by bit, what the step's own gives. */
function run(
  t: ExecutionContext,
  cache: PagedKvCache,
  batch: StepBatch,
  sequences: readonly Sequence[],
  counts: readonly number[],
): void {
  const offsets = counts.reduce((ends, count) => [...ends, (ends.at(-1) as number) + count], [0])
  const [tokens, before] = [offsets.at(-1) as number, sequences.map(sequence => sequence.length)]
  using step = cache.prepareStep(batch, { sequences, offsets })
  step.write(0, rows(tokens, [1, tokens, 2]), rows(tokens, [1, tokens, 2]))
  const q = rows(tokens, [tokens, 1, 2])
  const { blockTables, lengths, queryOffsets: qOffsets } = batch
  t.true(attend(q, { cache, layer: 0, blockTables, lengths }, { qOffsets }).out.equals(step.attend(0, q).out))
  t.deepEqual(
    Array.from(lengths),
    padded(
      counts.map((count, at) => (before[at] as number) + count),
      0,
      lengths.length,
    ),
  )
  t.deepEqual(Array.from(qOffsets), padded(offsets, tokens, qOffsets.length))
  const positions = counts.flatMap((count, at) => span(before[at] as number, (before[at] as number) + count))
  t.deepEqual(Array.from(batch.positions.subarray(0, tokens)), positions)
  const owners = counts.flatMap((count, at) => Array.from({ length: count }, () => at))
  const slots = positions.map(
    (position, at) =>
      (blockTables[(owners[at] as number) * SIZES.maxBlocks + Math.floor(position / BLOCK)] as number) * BLOCK +
      (position % BLOCK),
  )
  t.deepEqual(Array.from(batch.slotMapping.subarray(0, tokens)), slots)
  step.commit()
}

test('attention takes the tables as they are, whatever happened between steps', t => {
  using cache = cacheOf()
  using batch = cache.stepBatch(SIZES)
  let [one, two, three] = [cache.openSequence(), cache.openSequence(), cache.openSequence()]
  run(t, cache, batch, [one, two, three], [5, 3, 8])
  for (let round = 0; round < 4; round++) run(t, cache, batch, [one, two, three], [1, 1, 1])
  run(t, cache, batch, [three, one], [2, 1])
  cache.prepareStep(batch, { sequences: [] }).commit()
  t.deepEqual(
    [Array.from(batch.lengths), Array.from(batch.queryOffsets)],
    [
      [0, 0, 0],
      [0, 0, 0, 0],
    ],
  )
  two.truncate(2)
  run(t, cache, batch, [one, two, three], [1, 4, 1])
  const fork = one.fork()
  run(t, cache, batch, [fork, two, one], [1, 1, 1])
  const held = two.snapshot()
  run(t, cache, batch, [one, two], [1, 3])
  two.restore(held)
  run(t, cache, batch, [one, two], [1, 1])
  three.drop()
  three = cache.openSequence()
  run(t, cache, batch, [one, two, three], [1, 1, 1])
  {
    using draft = one.begin()
    cache.prepareStep(batch, { sequences: [one], offsets: [0, 2] }).rollback()
    t.is(draft.length, 0)
  }
  run(t, cache, batch, [one, two, three], [1, 1, 1])
  cache.checkInvariants()
})

test('a row that did not change is not written again, until the batch is told to forget', t => {
  using cache = cacheOf()
  using batch = cache.stepBatch(SIZES)
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  run(t, cache, batch, [one, two], [5, 5])
  const right = batch.blockTables.slice()
  batch.blockTables.fill(-7)
  cache.prepareStep(batch, { sequences: [one, two] }).dispose()
  t.deepEqual([batch.blockTables[0], batch.blockTables[SIZES.maxBlocks]], [-7, -7])
  batch.forget()
  cache.prepareStep(batch, { sequences: [one, two] }).dispose()
  for (const place of [0, 1, SIZES.maxBlocks, SIZES.maxBlocks + 1]) t.is(batch.blockTables[place], right[place])
})

test('arrays of the caller are filled where they are', t => {
  using cache = cacheOf()
  const arrays = {
    blockTables: new Int32Array(18),
    slotMapping: new Int32Array(16),
    positions: new Int32Array(16),
    lengths: new Int32Array(3),
    queryOffsets: new Int32Array(4),
  }
  using batch = cache.stepBatch({ ...SIZES, arrays })
  t.true(batch.lengths === arrays.lengths && batch.blockTables === arrays.blockTables)
  run(t, cache, batch, [cache.openSequence()], [6])
  t.deepEqual(Array.from(arrays.lengths), [6, 0, 0])
  const wrong: [Partial<StepArrays>, string][] = [
    [{ blockTables: new Int32Array(17) }, 'arrays.blockTables.length'],
    [{ queryOffsets: new Int32Array(3) }, 'arrays.queryOffsets.length'],
    [{ lengths: new Int32Array(new SharedArrayBuffer(12)) }, 'arrays.lengths'],
    [{ positions: new Float32Array(16) as never }, 'arrays.positions'],
    [{ slotMapping: undefined as never }, 'arrays.slotMapping'],
  ]
  for (const [more, argument] of wrong) {
    const error = throwsCode(t, 'INVALID_ARGUMENT', () => cache.stepBatch({ ...SIZES, arrays: { ...arrays, ...more } }))
    t.is(error.details.argument, argument)
  }
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.stepBatch({ ...SIZES, maxBlocks: 2 ** 30 }))
})

test('where the tables are refused, nothing has begun', t => {
  using cache = cacheOf()
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  const free = cache.freeCount
  const refused = (argument: string, batch: unknown, options: object): void => {
    const error = throwsCode(t, 'INVALID_ARGUMENT', () => cache.prepareStep(batch as StepBatch, options as never))
    t.is(error.details.argument, argument, error.message)
    t.deepEqual([cache.freeCount, one.length, one.capacity], [free, 0, 0])
    cache.beginStep({ sequences: [one, two] }).dispose()
  }
  const small = cache.stepBatch({ maxSequences: 1, maxBlocks: 1, maxTokens: 4 })
  refused('maxSequences', small, { sequences: [one, two] })
  refused('maxTokens', small, { sequences: [one], offsets: [0, 5] })
  refused('maxBlocks', cache.stepBatch({ ...SIZES, maxBlocks: 1 }), { sequences: [one], offsets: [0, 5] })
  const gone = cache.stepBatch(SIZES)
  structuredClone(gone.lengths, { transfer: [gone.lengths.buffer as ArrayBuffer] })
  refused('lengths', gone, { sequences: [one] })
  using other = cacheOf()
  refused('batch', other.stepBatch(SIZES), { sequences: [one] })
  refused('batch', {}, { sequences: [one] })
  refused('sequences', cache.stepBatch(SIZES), {})
  const ended = cache.stepBatch(SIZES)
  ended.dispose()
  throwsCode(t, 'DISPOSED', () => cache.prepareStep(ended, { sequences: [one] }))
  t.is(cache.freeCount, free)
})

test('a model has tables for each group of its layers', t => {
  using cache = new PagedKvCache({ model: HYBRID, blockSize: BLOCK, capacity: 32 })
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  one.append({ layers: layersOf(span(0, 9)) })
  using batch = cache.stepBatch(SIZES)
  using step = cache.prepareStep(batch, { sequences: [one, two], offsets: [0, 1, 4] })
  t.true(runStep(step, [span(0, 10), span(20, 23)]) < 1e-6)
  for (const layer of [0, 1, 2, 3]) {
    const q = queriesOf(layer, [9, 20, 21, 22])
    t.true(
      attend(q, { cache, layer, ...batch }).out.equals(step.attend(layer, q).out),
      `layer ${layer}: the batch as it is`,
    )
  }
  t.is(batch.groups.length, 2)
  for (const { blockTables, slotMapping, positions, lengths, queryOffsets } of batch.groups) {
    t.deepEqual(
      [Array.from(lengths), Array.from(queryOffsets), Array.from(positions.subarray(0, 4))],
      [
        [10, 3, 0],
        [0, 1, 4, 4],
        [9, 0, 1, 2],
      ],
    )
    const slots = [
      [0, 9],
      [1, 0],
      [1, 1],
      [1, 2],
    ].map(
      ([row = 0, at = 0]) =>
        (blockTables[row * SIZES.maxBlocks + Math.floor(at / BLOCK)] as number) * BLOCK + (at % BLOCK),
    )
    t.deepEqual(Array.from(slotMapping.subarray(0, 4)), slots)
  }
  step.commit()
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.stepBatch({ ...SIZES, arrays: [] }))
  using short = cache.stepBatch({ ...SIZES, maxTokens: 1 })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.prepareStep(short, { sequences: [one], offsets: [0, 2] }))
  t.is(one.length, 10)
  cache.checkInvariants()
})

test('arrays that lie over each other are refused when the batch is made, by their names', t => {
  using cache = cacheOf()
  using model = new PagedKvCache({ model: HYBRID, capacity: 8 })
  const { buffer } = new Int32Array(64)
  const arrays = (positions: Int32Array): StepArrays => ({
    blockTables: new Int32Array(buffer, 0, 18),
    slotMapping: new Int32Array(buffer, 18 * 4, 16),
    positions,
    lengths: new Int32Array(3),
    queryOffsets: new Int32Array(4),
  })
  const over = arrays(new Int32Array(buffer, 33 * 4, 16))
  const error = throwsCode(t, 'INVALID_ARGUMENT', () => cache.stepBatch({ ...SIZES, arrays: over }))
  t.deepEqual(
    [error.details.argument, error.details.expected],
    ['arrays.positions', 'memory that does not overlap that of slotMapping'],
  )
  const groups = model.groups.map(() => arrays(new Int32Array(buffer, 34 * 4, 16)))
  throwsCode(t, 'INVALID_ARGUMENT', () => model.stepBatch({ ...SIZES, arrays: groups }))
  t.notThrows(
    () => cache.stepBatch({ ...SIZES, arrays: arrays(new Int32Array(buffer, 34 * 4, 16)) }),
    'neighbours are apart',
  )
})
