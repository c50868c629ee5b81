// PagedKvCache of a model: its groups of layers, its sequences and steps, and what its pools hold, together and group by group.
import test from 'ava'

import { type HostTensor, PagedKvCache, type Sequence } from '../../index.js'
import { feed, HYBRID, KINDS, kvOf, layersOf, paged, queriesOf, runStep, stepOf } from '../support/model-rows.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

/** The keys of the first head in a layer, first elements only. */
const keys = (sequence: Sequence, layer: number): number[] => {
  const k = sequence.kv(layer)?.k
  return k === undefined
    ? []
    : Array.from(k.toFloat32Array().slice(0, 2 * (k.shape[2] as number))).filter((_, at) => at % 2 === 0)
}
const wanted = (layer: number, tokens: readonly number[]): number[] =>
  Array.from(kvOf(layer, tokens).k.data as Float32Array)
    .slice(0, 2 * tokens.length)
    .filter((_, at) => at % 2 === 0)

for (const [kind, make] of KINDS) {
  test(`${kind}: it says what it is made of`, t => {
    using cache = make()
    t.deepEqual([cache.numLayers, cache.dtype, cache.device], [4, 'f32', 'cpu'])
    t.deepEqual(cache.groups, [
      {
        kind: 'sliding',
        window: 4,
        sinks: 1,
        layers: [0, 3],
        numKvHeads: 2,
        headDim: 2,
        valueHeadDim: 2,
        device: 'cpu',
      },
      { kind: 'full', layers: [1], numKvHeads: 2, headDim: 2, valueHeadDim: 2, device: 'cpu' },
    ])
    t.true(
      Object.isFrozen(cache.groups) && Object.isFrozen(cache.groups[0]) && Object.isFrozen(cache.groups[0]?.layers),
    )
  })

  test(`${kind}: every layer sees what it should, step by step`, t => {
    using cache = make()
    const sequence = cache.openSequence()
    let length = 0
    for (const last of [5, 1, 1, 3, 1, 9, 1]) {
      length += last
      t.true(stepOf(cache, sequence, span(0, length), last) < 1e-6)
      t.deepEqual([sequence.length, sequence.committedLength], [length, length])
      cache.checkInvariants()
    }
  })

  test(`${kind}: an append of all layers is a step`, t => {
    using cache = make()
    const sequence = cache.openSequence()
    t.deepEqual(sequence.kv(1).k.shape.slice(2, 3), [0])
    feed(sequence, span(0, 6))
    sequence.append({ layers: layersOf([6]) })
    t.deepEqual(keys(sequence, 1), wanted(1, span(0, 7)))
    t.deepEqual(keys(sequence, 2), keys(sequence, 1))
    t.true(stepOf(cache, sequence, span(0, 9), 2) < 1e-6)
    for (const [code, input] of [
      ['INVALID_ARGUMENT', { layers: layersOf([7]).slice(1) }],
      ['INVALID_ARGUMENT', { layers: layersOf([7]), tokens: [1, 2] }],
      ['INVALID_ARGUMENT', { layers: [...layersOf([7]).slice(0, 2), kvOf(3, [7, 8])] }],
      ['SHAPE_MISMATCH', { layers: [...layersOf([7]).slice(0, 2), { ...kvOf(3, [7]), v: kvOf(3, [7, 8]).v }] }],
      ['INVALID_ARGUMENT', { layers: [...layersOf([7]).slice(0, 2), {}] }],
    ] as const) {
      const error = throwsCode(t, code, () => sequence.append(input as never))
      t.is(sequence.length, 9, error.message)
      cache.checkInvariants()
    }
    t.true(stepOf(cache, sequence, span(0, 11), 2) < 1e-6)
  })

  test(`${kind}: what was drafted counts as far as it is committed`, t => {
    using cache = make()
    const sequence = cache.openSequence()
    feed(sequence, span(0, 7))
    const draft = sequence.begin()
    t.true(stepOf(cache, sequence, [...span(0, 7), 50, 51, 52], 3) < 1e-6)
    t.deepEqual([sequence.length, sequence.committedLength, draft.length], [10, 7, 3])
    throwsCode(t, 'TRANSACTION_OPEN', () => feed(sequence, [1]), { object: 'sequence' })
    throwsCode(t, 'TRANSACTION_OPEN', () => sequence.begin())
    const child = draft.begin()
    child.append({ layers: layersOf([53]), tokens: [53] })
    t.is(child.length, 1)
    throwsCode(t, 'TRANSACTION_OPEN', () => draft.append({ layers: layersOf([54]) }), { object: 'transaction' })
    throwsCode(t, 'TRANSACTION_OPEN', () => draft.rollback(), { object: 'transaction' })
    child.rollback()
    throwsCode(t, 'INVALID_ARGUMENT', () => draft.commit(4))
    draft.commit(2)
    for (const call of [
      () => draft.commit(),
      () => draft.rollback(),
      () => draft.length,
      () => draft.begin(),
      () => child.append({ layers: layersOf([1]) }),
    ]) {
      throwsCode(t, 'TRANSACTION_CLOSED', call)
    }
    t.is(sequence.length, 9)
    t.true(stepOf(cache, sequence, [...span(0, 7), 50, 51, 9], 1) < 1e-6)
    {
      using dropped = sequence.begin()
      dropped.append({ layers: layersOf([60, 61, 62, 63, 64, 65]) })
      t.is(dropped.length, 6)
    }
    t.true(stepOf(cache, sequence, [...span(0, 7), 50, 51, 9, 10], 1) < 1e-6)
    cache.checkInvariants()
  })

  test(`${kind}: a path of a draft tree is kept`, t => {
    using cache = make()
    const sequence = cache.openSequence()
    feed(sequence, span(0, 6))
    using draft = sequence.begin()
    const parents = [-1, -1, 1]
    using step = cache.beginStep({ sequences: [sequence], offsets: [0, 3], parents, tokens: [70, 71, 72] })
    for (const layer of [0, 1, 3]) {
      const { k, v } = kvOf(layer, [70, 71, 72])
      step.write(layer, k, v)
    }
    // The last node follows the second one: it sees what a chain without the first would.
    const found = step
      .attend(1, queriesOf(1, [70, 71, 72]))
      .out.toFloat32Array()
      .slice(-8)
    step.commit()
    throwsCode(t, 'INVALID_PATH', () => draft.commitPath([0, 2]))
    draft.commitPath([1, 2])
    t.deepEqual(keys(sequence, 1), wanted(1, [...span(0, 6), 71, 72]))
    using again = cache.openSequence()
    feed(again, [...span(0, 6), 71])
    using chain = cache.beginStep({ sequences: [again] })
    const { k, v } = kvOf(1, [72])
    chain.write(1, k, v)
    const other = chain.attend(1, queriesOf(1, [72])).out.toFloat32Array()
    t.true(other.every((value, at) => Math.abs(value - (found[at] as number)) < 1e-6))
    t.true(stepOf(cache, sequence, [...span(0, 6), 71, 72, 5], 1) < 1e-6)
  })

  test(`${kind}: forks, snapshots and roll-backs hold what they should`, t => {
    using cache = make()
    const one = cache.openSequence()
    feed(one, span(0, 3))
    using held = one.snapshot()
    t.is(held.length, 3)
    using fork = one.fork()
    feed(one, span(3, 9))
    t.true(stepOf(cache, fork, [0, 1, 2, 80, 81], 2) < 1e-6)
    t.true(stepOf(cache, one, span(0, 11), 2) < 1e-6)
    t.is(cache.sequence(one.id).length, 11)
    one.restore(held)
    t.is(one.length, 3)
    t.true(stepOf(cache, one, [0, 1, 2, 90], 1) < 1e-6)
    one.truncate(2)
    t.true(stepOf(cache, one, [0, 1, 91], 1) < 1e-6)
    throwsCode(t, 'CANNOT_ROLL_BACK', () => one.truncate(4))
    using other = make()
    throwsCode(t, 'SNAPSHOT_INVALID', () => other.openSequence().restore(held), {
      reason: 'it belongs to another cache',
    })
    one.drop()
    t.deepEqual(cache.sequenceIds(), [fork.id])
    for (const call of [
      () => one.length,
      () => feed(one, [1]),
      () => one.kv(0),
      () => one.begin(),
      () => cache.sequence(one.id),
    ]) {
      throwsCode(t, 'SEQUENCE_NOT_FOUND', call, { seq: one.id })
    }
    one.dispose()
    throwsCode(t, 'DISPOSED', () => one.length)
    cache.checkInvariants()
  })

  test(`${kind}: a step that is not whole stays open, one that is dropped leaves nothing`, t => {
    using cache = make()
    const sequence = cache.openSequence()
    feed(sequence, span(0, 5))
    const step = cache.beginStep({ sequences: [sequence.id], offsets: Int32Array.of(0, 2) })
    t.deepEqual([step.sequences, Array.from(step.offsets), step.length], [[0], [0, 2], 2])
    const { k, v } = kvOf(0, [1, 2])
    for (const call of [
      () => step.write(2, k, v),
      () => step.write(4, k, v),
      () => step.write(0, null as never, v),
      () => step.write(0, kvOf(0, [1]).k, kvOf(0, [1]).v),
      () => step.attend(9, queriesOf(0, [1, 2])),
      () => step.commit([1]),
      () => step.attend(0, 3 as never),
    ]) {
      throwsCode(t, 'INVALID_ARGUMENT', call)
    }
    step.write(0, k, v)
    t.deepEqual(throwsCode(t, 'STEP_INCOMPLETE', () => step.commit()).details as unknown, { layers: [1, 3] })
    throwsCode(t, 'SHAPE_MISMATCH', () => step.attend(0, queriesOf(0, [1, 2]), {}, new Float32Array(3)))
    const out = new Float32Array(2 * 4 * 2)
    const { lse } = step.attend(0, queriesOf(0, [1, 2]), { returnLse: true }, out)
    t.is(lse.length, 8)
    t.true(out.some(value => value !== 0))
    for (const call of [
      () => feed(sequence, [1]),
      () => sequence.truncate(1),
      () => cache.beginStep({ sequences: [sequence] }),
    ]) {
      throwsCode(t, 'TRANSACTION_OPEN', call, { object: 'sequence' })
    }
    step.rollback()
    for (const call of [
      () => step.write(0, k, v),
      () => step.commit(),
      () => step.rollback(),
      () => step.attend(0, queriesOf(0, [1, 2])),
    ]) {
      throwsCode(t, 'TRANSACTION_CLOSED', call)
    }
    cache.beginStep({ sequences: [sequence] }).dispose()
    t.true(stepOf(cache, sequence, span(0, 7), 2) < 1e-6)
    step.dispose()
    cache.dispose()
    for (const call of [() => cache.openSequence(), () => sequence.length, () => cache.stats(), () => cache.match([1])])
      throwsCode(t, 'DISPOSED', call)
  })
}

for (const [kind, make] of KINDS) {
  test(`${kind}: a sequence that is dropped takes its step and its transaction along`, t => {
    using cache = make()
    const [one, two] = [cache.openSequence(), cache.openSequence()]
    const draft = one.begin()
    const step = cache.beginStep({ sequences: [one] })
    one.drop()
    const { k, v } = kvOf(0, [1])
    throwsCode(t, 'STALE_STEP', () => step.write(0, k, v), { seq: one.id })
    throwsCode(t, 'SEQUENCE_NOT_FOUND', () => draft.commit(), { seq: one.id })
    step.dispose()
    draft.dispose()
    t.true(stepOf(cache, two, span(0, 6), 6) < 1e-6)
    cache.checkInvariants()
  })
}

test('sequences of unequal length in one step, which share a prompt', t => {
  using cache = paged({ events: 64 })
  const prompt = span(0, 17)
  const first = cache.openSequence({ salt: 'a' })
  feed(first, prompt)
  t.is(cache.match(prompt).length, 0)
  const match = cache.match(prompt, { salt: 'a' })
  t.is(match.length, 16)
  t.deepEqual(cache.explain(prompt, { salt: 'a' }), { matched: 16 })
  using foreign = new PagedKvCache({ capacity: 4, numLayers: 1, numKvHeads: 1, headDim: 1 })
  throwsCode(t, 'SNAPSHOT_INVALID', () => foreign.openSequence({ prefix: match }), {
    reason: 'it belongs to another cache',
  })
  throwsCode(t, 'SNAPSHOT_INVALID', () => cache.openSequence({ prefix: foreign.match([1]) }), {
    reason: 'it belongs to another cache',
  })
  using elsewhere = paged()
  throwsCode(t, 'SNAPSHOT_INVALID', () => elsewhere.openSequence({ prefix: match }), {
    reason: 'it belongs to another cache',
  })
  const second = cache.openSequence({ prefix: match })
  t.is(second.length, 16)
  using step = cache.beginStep({ sequences: [first, second], offsets: [0, 1, 4] })
  t.true(
    runStep(step, [
      [...prompt, 17],
      [...prompt.slice(0, 16), 30, 31, 32],
    ]) < 1e-6,
  )
  step.commit([17, 30, 31, 32])
  t.deepEqual([first.length, second.length], [18, 19])
  const { pools } = cache.stats()
  t.deepEqual(
    pools.map(pool => pool.totalBlocks),
    [32, 32],
  )
  t.true(pools.every(pool => pool.activeBlocks > 0 && pool.freeBlocks + pool.cachedBlocks + pool.activeBlocks === 32))
  first.retain({ priority: 90 })
  cache.forgetPrefixes()
  t.is(cache.match(prompt, { salt: 'a' }).length, 0)
  cache.checkInvariants()
})

test('events tell which blocks can be found', async t => {
  using cache = paged({ events: 64, prefixKey: new Uint8Array(32) })
  feed(cache.openSequence(), span(0, 9))
  using events = cache.events()
  const { value } = await events.next()
  t.is(value?.type, 'stored')
  const prompt = span(0, 9)
  t.like(value, { type: 'stored', key: cache.keys(prompt)[0] })
  t.deepEqual(cache.indexedKeys(), { keys: cache.keys(prompt), next: 2 })
  throwsCode(t, 'INVALID_ARGUMENT', () => paged().events())
})

test('learned logits of a model have to be given', t => {
  using cache = new PagedKvCache({ model: { ...HYBRID, attention: { sinkLogits: true } }, capacity: 4 })
  using step = cache.beginStep({ sequences: [cache.openSequence()] })
  const { k, v } = kvOf(1, [1])
  step.write(1, k, v)
  throwsCode(t, 'INVALID_ARGUMENT', () => step.attend(1, queriesOf(1, [1])))
  t.notThrows(() => step.attend(1, queriesOf(1, [1]), { sinkLogits: [0, 0, 0, 0] }))
})

test('what is one tensor of all layers needs layers that are alike', t => {
  using cache = paged()
  const sequence = cache.openSequence()
  feed(sequence, span(0, 3))
  const row = { data: new Float32Array(4), shape: [2, 1, 2] }
  const all = { data: new Float32Array(12), shape: [3, 2, 1, 2] }
  const expected = 'layer by layer, because the layers form 2 groups'
  throwsCode(t, 'INVALID_ARGUMENT', () => sequence.append({ k: all, v: all }), {
    argument: 'k',
    value: 'for layers of one group',
    expected,
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.append([sequence], all, all), {
    argument: 'k',
    value: 'for layers of one group',
    expected,
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.writeTokens(sequence, 1, 3, row, row))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.writeKv(sequence, 1, 3, new Float32Array(4), new Float32Array(4)))
  t.is(sequence.length, 3)
  cache.checkInvariants()
  // Layers that are alike take both.
  using alike = new PagedKvCache({ capacity: 8, numLayers: 2, numKvHeads: 2, headDim: 2 })
  const other = alike.openSequence()
  other.append({
    layers: [
      { k: row, v: row },
      { k: row, v: row },
    ],
  })
  other.append({
    k: { data: new Float32Array(8), shape: [2, 2, 1, 2] },
    v: { data: new Float32Array(8), shape: [2, 2, 1, 2] },
  })
  t.is(other.length, 2)
  throwsCode(t, 'INVALID_ARGUMENT', () => other.append({ layers: [], k: row, v: row } as never), {
    argument: 'layers',
    value: 'an array of 0',
    expected: 'no layers together with k and v',
  })
})

/** Numbers from one on. */
const of = (shape: readonly number[], from: number): HostTensor => ({
  data: Float32Array.from({ length: shape.reduce((a, b) => a * b) }, (_, at) => from + at),
  shape,
})

test('reads by position are of any layer, whatever its group and its sizes', t => {
  const layers = [
    { kind: 'full', numKvHeads: 1, headDim: 2 },
    { kind: 'full', numKvHeads: 2, headDim: 3, valueHeadDim: 1 },
    { kind: 'shared', with: 1, numKvHeads: 2, headDim: 3, valueHeadDim: 1 },
  ] as const
  using cache = new PagedKvCache({ model: { layers }, capacity: 4 })
  const sequence = cache.openSequence()
  sequence.append({
    layers: [
      { k: of([1, 1, 2], 1), v: of([1, 1, 2], 5) },
      { k: of([2, 1, 3], 10), v: of([2, 1, 1], 20) },
    ],
  })
  t.deepEqual(cache.readKv(sequence, 0, 0), { key: Float32Array.of(1, 2), value: Float32Array.of(5, 6) })
  for (const layer of [1, 2]) {
    t.deepEqual(cache.readKv(sequence, layer, 0), {
      key: Float32Array.of(10, 11, 12, 13, 14, 15),
      value: Float32Array.of(20, 21),
    })
    t.deepEqual(cache.gather(sequence, layer).v.shape, [2, 1, 1])
  }
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.readKv(sequence, 3, 0))
})

test('events are those of layers that keep everything', async t => {
  using cache = paged({ events: 64, capacity: [64, 5] })
  const prompt = span(0, 16)
  const first = cache.openSequence()
  feed(first, prompt)
  first.drop()
  feed(cache.openSequence(), span(20, 32))
  t.true(cache.match([...prompt, 99]).length < 16)
  using events = cache.events()
  const types: string[] = []
  for (let count = 0; count < 9; count++) types.push((await events.next()).value?.type ?? 'none')
  t.deepEqual([types.filter(type => type === 'stored').length, types.filter(type => type === 'removed').length], [7, 2])
  t.is(cache.indexedKeys().keys.length, 5)
})

test('prompts are counted once for all groups', t => {
  using cache = paged()
  feed(cache.openSequence(), span(0, 9))
  cache.match(span(0, 16)).dispose()
  const { promptTokens, hitTokens, hitRate, tierBytes, bufferBytes, pools } = cache.stats()
  t.deepEqual([promptTokens, hitTokens, hitRate, tierBytes], [16, 8, 0.5, { cpu: bufferBytes }])
  t.true(
    pools.length === 2 &&
      pools.every(pool => !('promptTokens' in pool) && !('hitTokens' in pool) && pool.totalBlocks === 32),
  )
  t.deepEqual([cache.stats().totalBlocks, cache.capacity, cache.blockSize], [64, 64, 4])
})

test('a refusal names the group, and the layer', t => {
  using cache = paged({ capacity: [16, 3] })
  const sequence = cache.openSequence()
  const error = throwsCode(t, 'OUT_OF_BLOCKS', () => feed(sequence, span(0, 16)), {
    needed: 4,
    free: 3,
    group: 1,
    sequences: 1,
    held: 0,
  })
  t.is(
    error.message,
    '4 blocks are needed in group 1 of the layers, 3 are free: the pool has no more, and none is held',
  )
  const layers = [...layersOf([7])]
  layers[1] = { ...layers[1], v: { data: new Float32Array(2), shape: [1, 1, 2] } } as never
  const wrong = throwsCode(t, 'SHAPE_MISMATCH', () => sequence.append({ layers }))
  t.is((wrong.details as { argument?: string }).argument, 'layers[1].v', wrong.message)
  t.true(wrong.message.startsWith('layers[1].v '))
})
