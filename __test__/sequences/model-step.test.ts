// Step: attention of a layer off the main thread.
import test from 'ava'

import { type HostTensor, isKvTideError, PagedKvCache, type Sequence, type Step } from '../../index.js'
import { HYBRID, kvOf, layersOf, OWN, queriesOf, stepOf } from '../support/model-rows.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const KINDS = [
  ['blocks of 4', (more: object = {}): PagedKvCache => new PagedKvCache({ model: HYBRID, blockSize: 4, capacity: 32, ...more })],
  ['blocks of 1', (more: object = {}): PagedKvCache => new PagedKvCache({ model: HYBRID, blockSize: 1, capacity: 128, ...more })],
] as const

const feed = (sequence: Sequence, tokens: readonly number[]): void => sequence.append({ layers: layersOf(tokens), tokens })

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
function start(make: () => PagedKvCache): { cache: PagedKvCache; sequence: Sequence; step: Step; wanted: unknown; work: Promise<unknown> } {
  const cache = make()
  const sequence = cache.openSequence()
  feed(sequence, span(0, 9))
  const step = written(cache, sequence, [9, 10])
  const wanted = step.attend(0, queriesOf(0, [9, 10])).out.toArray()
  return { cache, sequence, step, wanted, work: step.attendAsync(0, queriesOf(0, [9, 10])).then(({ out }) => out.toArray()) }
}

for (const [kind, make] of KINDS) {
  test(`${kind}: it gives the bits of the call that waits, in every layer and by every rule`, async t => {
    using cache = make()
    const sequence = cache.openSequence()
    feed(sequence, span(0, 9))
    using step = written(cache, sequence, [9, 10, 11])
    const rules = [{}, { scale: 0.25 }, { softcap: 3 }, { window: 2, sinks: 1 }, { sinkLogits: [1, 2, 3, 4] }, { tree: [-1, -1, 0] }, { causal: false }, { threads: 1 }]
    for (const layer of HYBRID.layers.keys()) {
      for (const q of [queriesOf(layer, [9, 10, 11]), batched(queriesOf(layer, [9, 10, 11]))]) {
        for (const options of rules) {
          const wanted = step.attend(layer, q, { ...options, returnLse: true })
          const found = await step.attendAsync(layer, q, { ...options, returnLse: true })
          t.deepEqual([found.out.shape, found.out.toArray(), found.lse], [wanted.out.shape, wanted.out.toArray(), wanted.lse])
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
    feed(sequence, span(0, 9))
    const draft = sequence.begin()
    for (const layer of HYBRID.layers.keys()) {
      using step = written(cache, sequence, [9, 10])
      const q = queriesOf(layer, [9, 10])
      const wanted = step.attend(layer, q).out.toArray()
      const work = step.attendAsync(layer, q, { signal: AbortSignal.timeout(60_000) })
      const { k, v } = kvOf(1, [9, 10])
      for (const call of [() => step.write(1, k, v), () => step.commit(), () => step.rollback(), () => sequence.drop()]) throwsCode(t, 'BUSY', call)
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
    throwsCode(t, 'SHAPE_MISMATCH', () => step.attend(0, wide, { sinkLogits }), { argument: 'q', value: [1, 8, 2], expected: "4 heads, as the model's description says" })
    await refused('INVALID_ARGUMENT', step.attendAsync(4, q, { sinkLogits }))
    await refused('SHAPE_MISMATCH', step.attendAsync(0, q, { sinkLogits }, new Float32Array(3)))
    await refused('INVALID_ARGUMENT', step.attendAsync(0, q, { sinkLogits, signal: {} as never }))
    step.commit()
    t.is(sequence.length, 1)
  })
}

