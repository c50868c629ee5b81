// Step: tokens that are computed layer by layer.
import test from 'ava'

import { attend, type HostTensor, PagedKvCache, type UniformCacheOptions, type Sequence, type Step } from '../../index.js'
import { layered } from '../support/layered.js'
import { waves } from '../support/pages.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 16, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, ...options })

/** K and V of tokens in one layer, `[2, n, 1]`. */
function rows(tokens: readonly number[]): [k: HostTensor, v: HostTensor] {
  const [k, v] = layered(tokens).map(({ data }) => ({ data: data.slice(0, tokens.length * 2), shape: [2, tokens.length, 1] }))
  return [k as HostTensor, v as HostTensor]
}

const feed = (seq: Sequence, tokens: readonly number[]): void => seq.append({ k: layered(tokens)[0], v: layered(tokens)[1] })
const keys = (cache: PagedKvCache, seq: Sequence): number[] => Array.from(cache.gather(seq, 0).k.toArray()).slice(0, seq.length)

test('a step that is begun wrongly takes nothing', t => {
  using cache = cacheOf({ capacity: 2 })
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  for (const options of [null, 3, {}, { sequences: 3 }, { sequences: [one, one] }, { sequences: [one], offsets: [0] }, { sequences: [one], offsets: [1, 2] }, { sequences: [one], offsets: [] }, { sequences: [one, two], offsets: [0, 2, 1] }]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.beginStep(options as never))
  }
  throwsCode(t, 'SEQUENCE_NOT_FOUND', () => cache.beginStep({ sequences: [9] }))
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.beginStep({ sequences: [one, two], offsets: [0, 5, 9] }), { needed: 3, free: 2 })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.beginStep({ sequences: [one], tokens: [1, 2] }), { argument: 'tokens.length', value: 2, expected: '1, one for each token' })
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
  t.true(Object.isFrozen(step.sequences))
  step.write(1, ...rows([3, 4, 10, 11, 12]))
  t.is(one.length, 3)
  throwsCode(t, 'STEP_INCOMPLETE', () => step.commit(), { layers: [0] })
  step.write(0, ...rows([9, 9, 9, 9, 9]))
  step.write(0, ...rows([3, 4, 10, 11, 12]))
  for (const call of [() => step.write(2, ...rows(span(0, 5))), () => step.write(-1, ...rows(span(0, 5))), () => step.write(0, ...rows([1])), () => step.write(0, null as never, null as never), () => step.commit([1, 2]), () => step.commit('x' as never)]) {
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
  for (const call of [() => feed(one, [1]), () => one.begin(), () => one.fork(), () => one.snapshot(), () => one.truncate(0), () => cache.beginStep({ sequences: [two, one] })]) {
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
  const ends: ((step: Step) => void)[] = [step => step.commit(), step => step.rollback(), step => step.dispose(), step => step[Symbol.dispose]()]
  for (const end of ends) {
    const step = cache.beginStep({ sequences: [seq] })
    step.write(0, ...rows([1]))
    step.write(1, ...rows([1]))
    end(step)
    const q = waves(1, [1, 2, 1])
    for (const call of [() => step.write(0, ...rows([1])), () => step.attend(0, q), () => step.commit(), () => step.rollback()]) throwsCode(t, 'TRANSACTION_CLOSED', call)
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
  for (const call of [() => step.write(0, ...rows([1, 2])), () => step.commit(), () => step.attend(0, waves(1, [2, 2, 1]))]) throwsCode(t, 'STALE_STEP', call, { seq: one.id })
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
  for (const call of [() => step.write(0, ...rows([1, 2])), () => step.commit(), () => step.rollback()]) throwsCode(t, 'BUSY', call)
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
  const alone = attend({ data: (q.data as Float32Array).subarray(0, 6), shape: [3, 2, 1] }, { cache, layer: 0, sequences: [one] }, { qOffsets: [0, 3], tree: parents })
  t.deepEqual(step.attend(0, q).out.toArray().slice(0, 6), alone.out.toArray())
  step.commit()
  drafts[0]?.commitPath([0, 2])
  drafts[1]?.commitPath([1])
  t.deepEqual([keys(cache, one), keys(cache, two)], [[0, 1, 10, 12], [0, 21]])
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
