// Step: tokens that are computed layer by layer, in which order it refuses, and its attention off the main thread.
import test from 'ava'

import {
  attend,
  type HostTensor,
  isKvTideError,
  PagedKvCache,
  type Sequence,
  type Step,
  type UniformCacheOptions,
} from '../../index.js'
import { layered } from '../support/layered.js'
import { HYBRID, kvOf, layersOf, OWN, queriesOf, stepOf } from '../support/model-rows.js'
import { waves } from '../support/pages.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 16, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, ...options })

/** K and V of tokens in one layer, `[2, n, 1]`. */
function rows(tokens: readonly number[]): [k: HostTensor, v: HostTensor] {
  const [k, v] = layered(tokens).map(({ data }) => ({
    data: data.slice(0, tokens.length * 2),
    shape: [2, tokens.length, 1],
  }))
  return [k as HostTensor, v as HostTensor]
}

const feed = (seq: Sequence, tokens: readonly number[]): void =>
  seq.append({ k: layered(tokens)[0], v: layered(tokens)[1] })
const keys = (cache: PagedKvCache, seq: Sequence): number[] =>
  Array.from(cache.gather(seq, 0).k.toArray()).slice(0, seq.length)

test('a step that is begun wrongly takes nothing', t => {
  using cache = cacheOf({ capacity: 2 })
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  for (const options of [
    null,
    3,
    {},
    { sequences: 3 },
    { sequences: [one, one] },
    { sequences: [one], offsets: [0] },
    { sequences: [one], offsets: [1, 2] },
    { sequences: [one], offsets: [] },
    { sequences: [one, two], offsets: [0, 2, 1] },
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.beginStep(options as never))
  }
  throwsCode(t, 'SEQUENCE_NOT_FOUND', () => cache.beginStep({ sequences: [9] }))
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.beginStep({ sequences: [one, two], offsets: [0, 5, 9] }), {
    needed: 3,
    free: 2,
    sequences: 2,
    held: 0,
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.beginStep({ sequences: [one], tokens: [1, 2] }), {
    argument: 'tokens.length',
    value: 2,
    expected: '1, one for each token',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.beginStep({ sequences: [one], parents: [-1] }))
  t.deepEqual([cache.freeCount, one.length, one.capacity], [2, 0, 0])
  cache.beginStep({ sequences: [one, two] }).dispose()
  t.is(cache.freeCount, 2)
})

test('its tokens count in all layers at once, or not at all', t => {
  using cache = cacheOf()
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  feed(one, [0, 1, 2])
  const step = cache.beginStep({ sequences: [one, two.id], offsets: [0, 2, 5] })
  t.deepEqual([step.sequences, Array.from(step.offsets), step.length], [[0, 1], [0, 2, 5], 5])
  t.deepEqual(Array.from(step.positions), [3, 4, 0, 1, 2])
  t.true(Object.isFrozen(step.sequences))
  step.write(1, ...rows([3, 4, 10, 11, 12]))
  t.is(one.length, 3)
  throwsCode(t, 'STEP_INCOMPLETE', () => step.commit(), { layers: [0] })
  step.write(0, ...rows([9, 9, 9, 9, 9]))
  step.write(0, ...rows([3, 4, 10, 11, 12]))
  for (const call of [
    () => step.write(2, ...rows(span(0, 5))),
    () => step.write(-1, ...rows(span(0, 5))),
    () => step.write(0, ...rows([1])),
    () => step.write(0, null as never, null as never),
    () => step.commit([1, 2]),
    () => step.commit('x' as never),
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', call)
  }
  throwsCode(t, 'SHAPE_MISMATCH', () => step.write(0, rows(span(0, 5))[0], rows([1])[1]))
  step.commit(span(0, 5))
  t.deepEqual([keys(cache, one), keys(cache, two)], [span(0, 5), [10, 11, 12]])
  cache.checkInvariants()
})

test('while it is open its sequences refuse other changes', t => {
  using cache = cacheOf()
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  using step = cache.beginStep({ sequences: [one] })
  for (const call of [
    () => feed(one, [1]),
    () => one.begin(),
    () => one.truncate(0),
    () => cache.beginStep({ sequences: [two, one] }),
  ]) {
    throwsCode(t, 'TRANSACTION_OPEN', call, { object: 'sequence' })
  }
  feed(two, [1, 2])
  step.rollback()
  feed(one, [3])
  t.deepEqual([keys(cache, one), keys(cache, two)], [[3], [1, 2]])
})

test('once it has ended each call says so', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  const ends: ((step: Step) => void)[] = [
    step => step.commit(),
    step => step.rollback(),
    step => step.dispose(),
    step => step[Symbol.dispose](),
  ]
  for (const end of ends) {
    const step = cache.beginStep({ sequences: [seq] })
    step.write(0, ...rows([1]))
    step.write(1, ...rows([1]))
    end(step)
    const q = waves(1, [1, 2, 1])
    for (const call of [
      () => step.write(0, ...rows([1])),
      () => step.attend(0, q),
      () => step.commit(),
      () => step.rollback(),
    ])
      throwsCode(t, 'TRANSACTION_CLOSED', call)
    step.dispose()
    t.is(step.length, 1)
  }
  t.is(seq.length, 1)
  const open = cache.beginStep({ sequences: [seq] })
  cache.dispose()
  throwsCode(t, 'DISPOSED', () => open.commit())
  t.notThrows(() => open.dispose())
})

test('a step whose sequence was dropped can only be rolled back', t => {
  using cache = cacheOf()
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  const step = cache.beginStep({ sequences: [one, two] })
  one.drop()
  for (const call of [
    () => step.write(0, ...rows([1, 2])),
    () => step.commit(),
    () => step.attend(0, waves(1, [2, 2, 1])),
  ])
    throwsCode(t, 'STALE_STEP', call, { seq: one.id })
  step.rollback()
  feed(two, [1])
  two.drop()
  t.is(cache.freeCount, 16)
})

test('each layer sees what is there, and its own tokens', t => {
  using cache = new PagedKvCache({ capacity: 16, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 8 })
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  const prompt = waves(1, [2, 2, 5, 8])
  one.append({ k: prompt, v: waves(2, [2, 2, 5, 8]) })
  using step = cache.beginStep({ sequences: [one, two], offsets: [0, 2, 5] })
  const outs = [0, 1].map(layer => {
    step.write(layer, waves(3 + layer, [2, 5, 8]), waves(5 + layer, [2, 5, 8]))
    const q = waves(7 + layer, [5, 4, 8])
    const out = new Float32Array(5 * 4 * 8)
    t.is(step.attend(layer, q, undefined, out).out, out)
    t.deepEqual(step.attend(layer, q).out.toArray(), out)
    t.is(step.attend(layer, q, { returnLse: true }).lse.length, 20)
    return out
  })
  t.notDeepEqual(step.attend(1, waves(8, [5, 4, 8]), { window: 1 }).out.toArray(), outs[1] as Float32Array)
  step.commit()
  for (const [layer, out] of outs.entries()) {
    const after = attend(waves(7 + layer, [5, 4, 8]), { cache, layer, sequences: [one, two] }, { qOffsets: [0, 2, 5] })
    t.deepEqual(after.out.toArray(), out)
  }
  const wide = { data: new Float32Array(0), shape: [0, 4, 8] }
  throwsCode(t, 'TRANSACTION_CLOSED', () => step.attend(0, wide))
})

test('in the background it is read the same, and not changed', async t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, span(0, 6))
  const step = cache.beginStep({ sequences: [seq], offsets: [0, 2] })
  step.write(0, ...rows([6, 7]))
  const q = waves(3, [2, 2, 1])
  const wanted = step.attend(0, q).out.toArray()
  const work = step.attendAsync(0, q, { signal: AbortSignal.timeout(60_000) })
  for (const call of [() => step.write(0, ...rows([1, 2])), () => step.commit(), () => step.rollback()])
    throwsCode(t, 'BUSY', call)
  step.dispose()
  t.deepEqual((await work).out.toArray(), wanted)
  await t.throwsAsync(step.attendAsync(0, q), { code: 'TRANSACTION_CLOSED' })
  feed(seq, [6])
  t.deepEqual(keys(cache, seq), span(0, 7))
})

test('a tree that is computed layer by layer sees its ancestors, and is committed by a path', t => {
  using cache = cacheOf()
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  feed(one, [0, 1])
  feed(two, [0])
  const drafts = [one.begin(), two.begin()]
  const parents = [-1, -1, 0]
  const step = cache.beginStep({ sequences: [one, two], offsets: [0, 3, 6], parents: [...parents, ...parents] })
  for (const layer of [0, 1]) step.write(layer, ...rows([10, 11, 12, 20, 21, 22]))
  const q = waves(3, [6, 2, 1])
  t.deepEqual(step.attend(0, q).out.toArray(), step.attend(0, q, { tree: parents }).out.toArray())
  const alone = attend(
    { data: (q.data as Float32Array).subarray(0, 6), shape: [3, 2, 1] },
    { cache, layer: 0, sequences: [one] },
    { qOffsets: [0, 3], tree: parents },
  )
  t.deepEqual(step.attend(0, q).out.toArray().slice(0, 6), alone.out.toArray())
  step.commit()
  drafts[0]?.commitPath([0, 2])
  drafts[1]?.commitPath([1])
  t.deepEqual(
    [keys(cache, one), keys(cache, two)],
    [
      [0, 1, 10, 12],
      [0, 21],
    ],
  )
})

test('another cache, or another object, is refused as itself', t => {
  using cache = cacheOf()
  using step = cache.beginStep({ sequences: [cache.openSequence()] })
  const { prototype } = Object.getPrototypeOf(step).constructor as { prototype: Step }
  for (const self of [undefined, null, {}, Object.create(prototype), new Proxy(step, {}), cache]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => prototype.commit.call(self as never))
    throwsCode(t, 'INVALID_ARGUMENT', () => prototype.write.call(self as never, 0, ...rows([1])))
  }
})

const FULL_LAYER = { kind: 'full', numKvHeads: 1, headDim: 1 } as const
const row = (value = 1): HostTensor => ({ data: Float32Array.of(value), shape: [1, 1, 1] })

/** A step of one token, and how its sequence is dropped. */
const STEPS: readonly [string, () => { step: Step; drop: () => void }][] = [
  [
    'blocks',
    () => {
      const cache = new PagedKvCache({ capacity: 4, blockSize: 2, numLayers: 2, numKvHeads: 1, headDim: 1 })
      const sequence = cache.openSequence()
      return { step: cache.beginStep({ sequences: [sequence] }), drop: () => sequence.drop() }
    },
  ],
  [
    'a model',
    () => {
      const cache = new PagedKvCache({ model: { layers: [FULL_LAYER, FULL_LAYER] }, blockSize: 2, capacity: 4 })
      const sequence = cache.openSequence()
      return { step: cache.beginStep({ sequences: [sequence] }), drop: () => sequence.drop() }
    },
  ],
]

for (const [name, begin] of STEPS) {
  test(`${name}: queries wait for their layer to be written`, async t => {
    const { step } = begin()
    const early = throwsCode(t, 'INVALID_ARGUMENT', () => step.attend(0, row()))
    t.deepEqual([early.details.argument, early.details.value], ['layer', 'not written'])
    step.write(0, row(), row(5))
    t.is(step.attend(0, row()).out.toArray()[0], 5)
    throwsCode(t, 'INVALID_ARGUMENT', () => step.attend(1, row()))
    await t.throwsAsync(step.attendAsync(1, row()), { code: 'INVALID_ARGUMENT' })
    step.write(1, row(), row(6))
    t.is(step.attend(1, row()).out.toArray()[0], 6)
    step.commit()
  })

  test(`${name}: a step whose sequence was dropped is stale, whatever else is wrong`, t => {
    for (const layers of [0, 1, 2]) {
      const { step, drop } = begin()
      for (let layer = 0; layer < layers; layer++) step.write(layer, row(), row())
      drop()
      for (const call of [
        () => step.write(0, row(), row()),
        () => step.write(9, row(), row()),
        () => step.write(1, row(), { data: new Float32Array(2), shape: [1, 2, 1] }),
        () => step.attend(0, row()),
        () => step.attend(9, row()),
        () => step.commit(),
        () => step.commit([1, 2]),
      ])
        throwsCode(t, 'STALE_STEP', call)
      step.rollback()
      throwsCode(t, 'TRANSACTION_CLOSED', () => step.commit())
      throwsCode(t, 'TRANSACTION_CLOSED', () => step.commit([1, 2]))
    }
  })
}

const KINDS = [
  [
    'blocks of 4',
    (more: object = {}): PagedKvCache => new PagedKvCache({ model: HYBRID, blockSize: 4, capacity: 32, ...more }),
  ],
  [
    'blocks of 1',
    (more: object = {}): PagedKvCache => new PagedKvCache({ model: HYBRID, blockSize: 1, capacity: 128, ...more }),
  ],
] as const

const feedLayers = (sequence: Sequence, tokens: readonly number[]): void =>
  sequence.append({ layers: layersOf(tokens), tokens })

/** A step of one sequence, its layers with keys and values of their own written. */
function written(cache: PagedKvCache, sequence: Sequence, tokens: readonly number[], more: object = {}): Step {
  const step = cache.beginStep({ sequences: [sequence], offsets: [0, tokens.length], ...more })
  for (const layer of OWN) {
    const { k, v } = kvOf(layer, tokens)
    step.write(layer, k, v)
  }
  return step
}

/** The same queries with a batch of one before them, and heads before tokens. */
function batched({ data, shape }: HostTensor): HostTensor {
  const [n, heads, dim] = shape as readonly [number, number, number]
  const moved = new Float32Array(n * heads * dim).map((_, at) => {
    const [head, token] = [Math.floor(at / dim / n), Math.floor(at / dim) % n]
    return (data as Float32Array)[(token * heads + head) * dim + (at % dim)] as number
  })
  return { data: moved, shape: [1, heads, n, dim] }
}

/** A step that is read in the background. */
function start(make: () => PagedKvCache): {
  cache: PagedKvCache
  sequence: Sequence
  step: Step
  wanted: unknown
  work: Promise<unknown>
} {
  const cache = make()
  const sequence = cache.openSequence()
  feedLayers(sequence, span(0, 9))
  const step = written(cache, sequence, [9, 10])
  const wanted = step.attend(0, queriesOf(0, [9, 10])).out.toArray()
  return {
    cache,
    sequence,
    step,
    wanted,
    work: step.attendAsync(0, queriesOf(0, [9, 10])).then(({ out }) => out.toArray()),
  }
}

for (const [kind, make] of KINDS) {
  test(`${kind}: it gives the bits of the call that waits, in every layer and by every rule`, async t => {
    using cache = make()
    const sequence = cache.openSequence()
    feedLayers(sequence, span(0, 9))
    using step = written(cache, sequence, [9, 10, 11])
    const rules = [
      {},
      { scale: 0.25 },
      { softcap: 3 },
      { window: 2, sinks: 1 },
      { sinkLogits: [1, 2, 3, 4] },
      { alibiSlopes: [1, 0.5, 0.25, 0.125] },
      { tree: [-1, -1, 0] },
      { causal: false },
      { threads: 1 },
    ]
    for (const layer of HYBRID.layers.keys()) {
      for (const q of [queriesOf(layer, [9, 10, 11]), batched(queriesOf(layer, [9, 10, 11]))]) {
        for (const options of rules) {
          const wanted = step.attend(layer, q, { ...options, returnLse: true })
          const found = await step.attendAsync(layer, q, { ...options, returnLse: true })
          t.deepEqual(
            [found.out.shape, found.out.toArray(), found.lse],
            [wanted.out.shape, wanted.out.toArray(), wanted.lse],
          )
          const out = new Float32Array(found.out.length)
          t.is((await step.attendAsync(layer, q, options, out)).out, out)
          t.deepEqual(out, found.out.toArray() as Float32Array)
        }
      }
    }
    using draft = (step.commit(), sequence.begin())
    using tree = written(cache, sequence, [12, 13, 14], { parents: [-1, -1, 0] })
    const wanted = tree.attend(0, queriesOf(0, [12, 13, 14])).out.toArray()
    t.deepEqual((await tree.attendAsync(0, queriesOf(0, [12, 13, 14]))).out.toArray(), wanted)
    tree.commit()
    draft.commitPath([0, 2])
    t.is(sequence.length, 14)
  })

  test(`${kind}: whatever layer is read, all that would change its sequence waits`, async t => {
    using cache = make()
    const sequence = cache.openSequence()
    feedLayers(sequence, span(0, 9))
    const draft = sequence.begin()
    for (const layer of HYBRID.layers.keys()) {
      using step = written(cache, sequence, [9, 10])
      const q = queriesOf(layer, [9, 10])
      const wanted = step.attend(layer, q).out.toArray()
      const work = step.attendAsync(layer, q, { signal: AbortSignal.timeout(60_000) })
      const { k, v } = kvOf(1, [9, 10])
      for (const call of [() => step.write(1, k, v), () => step.commit(), () => step.rollback(), () => sequence.drop()])
        throwsCode(t, 'BUSY', call)
      t.deepEqual(step.attend(layer, q).out.toArray(), wanted)
      t.deepEqual([sequence.length, draft.length], [9 + layer, layer])
      cache.checkInvariants()
      t.deepEqual((await work).out.toArray(), wanted)
      step.rollback()
      draft.append({ layers: layersOf([20 + layer]) })
    }
    draft.rollback()
    t.true(stepOf(cache, sequence, span(0, 11), 2) < 1e-6)
  })

  test(`${kind}: what is disposed of meanwhile is read to the end`, async t => {
    const one = start(make)
    one.step.dispose()
    t.deepEqual(await one.work, one.wanted)
    await t.throwsAsync(one.step.attendAsync(0, queriesOf(0, [9, 10])), { code: 'TRANSACTION_CLOSED' })
    t.true(stepOf(one.cache, one.sequence, span(0, 11), 2) < 1e-6)
    const two = start(make)
    two.sequence.dispose()
    t.deepEqual(await two.work, two.wanted)
    two.cache.openSequence()
    t.deepEqual(two.cache.sequenceIds(), [1])
    two.cache.checkInvariants()
    const three = start(make)
    three.cache.dispose()
    t.deepEqual(await three.work, three.wanted)
    await t.throwsAsync(three.step.attendAsync(0, queriesOf(0, [9, 10])), { code: 'DISPOSED' })
  })

  test(`${kind}: an abort ends it, and what is refused has left no reader behind`, async t => {
    using cache = make({ model: { ...HYBRID, attention: { numQueryHeads: 4, sinkLogits: true } } })
    const sequence = cache.openSequence()
    using step = written(cache, sequence, [1])
    const [q, sinkLogits] = [queriesOf(0, [1]), [0, 0, 0, 0]]
    const refused = async (code: string, work: Promise<unknown>): Promise<void> => {
      const error = await t.throwsAsync(work)
      t.true(isKvTideError(error) && error.code === code, String(error))
    }
    await refused('ABORTED', step.attendAsync(0, q, { sinkLogits, signal: AbortSignal.abort() }))
    const controller = new AbortController()
    const work = step.attendAsync(0, q, { sinkLogits, signal: controller.signal })
    controller.abort()
    await refused('ABORTED', work)
    await refused('INVALID_ARGUMENT', step.attendAsync(0, q))
    const wide = { data: new Float32Array(16), shape: [1, 8, 2] }
    await refused('SHAPE_MISMATCH', step.attendAsync(0, wide, { sinkLogits: [0, 0, 0, 0, 0, 0, 0, 0] }))
    throwsCode(t, 'SHAPE_MISMATCH', () => step.attend(0, wide, { sinkLogits }), {
      argument: 'q',
      value: [1, 8, 2],
      expected: "4 heads, the number in the model's description",
    })
    await refused('INVALID_ARGUMENT', step.attendAsync(4, q, { sinkLogits }))
    await refused('SHAPE_MISMATCH', step.attendAsync(0, q, { sinkLogits }, new Float32Array(3)))
    await refused('INVALID_ARGUMENT', step.attendAsync(0, q, { sinkLogits, signal: {} as never }))
    step.commit()
    t.is(sequence.length, 1)
  })
}
