// In which order a step refuses: what has ended or lost its sequence first, then layers that it has not written.
import test from 'ava'

import { type HostTensor, PagedKvCache, type Step } from '../../index.js'
import { throwsCode } from '../support/throws.js'

const LAYER = { kind: 'full', numKvHeads: 1, headDim: 1 } as const
const row = (value = 1): HostTensor => ({ data: Float32Array.of(value), shape: [1, 1, 1] })

/** A step of one token, and how its sequence is dropped. */
const STEPS: readonly [string, () => { step: Step; drop: () => void }][] = [
  ['blocks', () => {
    const cache = new PagedKvCache({ capacity: 4, blockSize: 2, numLayers: 2, numKvHeads: 1, headDim: 1 })
    const sequence = cache.openSequence()
    return { step: cache.beginStep({ sequences: [sequence] }), drop: () => sequence.drop() }
  }],
  ['a model', () => {
    const cache = new PagedKvCache({ model: { layers: [LAYER, LAYER] }, blockSize: 2, capacity: 4 })
    const sequence = cache.openSequence()
    return { step: cache.beginStep({ sequences: [sequence] }), drop: () => sequence.drop() }
  }],
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
    for (const written of [0, 1, 2]) {
      const { step, drop } = begin()
      for (let layer = 0; layer < written; layer++) step.write(layer, row(), row())
      drop()
      for (const call of [
        () => step.write(0, row(), row()),
        () => step.write(9, row(), row()),
        () => step.write(1, row(), { data: new Float32Array(2), shape: [1, 2, 1] }),
        () => step.attend(0, row()),
        () => step.attend(9, row()),
        () => step.commit(),
        () => step.commit([1, 2]),
      ]) throwsCode(t, 'STALE_STEP', call)
      step.rollback()
      throwsCode(t, 'TRANSACTION_CLOSED', () => step.commit())
      throwsCode(t, 'TRANSACTION_CLOSED', () => step.commit([1, 2]))
    }
  })
}
