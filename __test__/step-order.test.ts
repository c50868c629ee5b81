// What a step refuses until a layer is written.
import test from 'ava'

import { ModelCache, PagedKvCache, type HostTensor, type ModelStep, type PagedStep } from '../index.js'
import { throwsCode } from './support/throws.js'

const LAYER = { kind: 'full', numKvHeads: 1, headDim: 1 } as const
const row = (value = 1): HostTensor => ({ data: Float32Array.of(value), shape: [1, 1, 1] })

/** A step of one token, and how its sequence is dropped. */
const STEPS: readonly [string, () => { step: PagedStep | ModelStep; drop: () => void }][] = [
  ['blocks', () => {
    const cache = new PagedKvCache({ capacity: 4, blockSize: 2, numLayers: 2, numKvHeads: 1, headDim: 1 })
    const sequence = cache.openSequence()
    return { step: cache.beginStep({ sequences: [sequence] }), drop: () => sequence.drop() }
  }],
  ...(['paged', 'contiguous'] as const).map(kind => [`a model, ${kind}`, () => {
    const cache = new ModelCache({ model: { layers: [LAYER, LAYER] }, kind, ...(kind === 'paged' ? { blockSize: 2, blocks: 4 } : {}) })
    const sequence = cache.createSequence()
    return { step: cache.beginStep({ sequences: [sequence] }), drop: () => sequence.drop() }
  }] as [string, () => { step: ModelStep; drop: () => void }]),
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
}
