// Attention over pages of a PagedKvCache: the tables that prepareStep fills, and sequences, with the rules of the model.
import test from 'ava'

import { attend, attendAsync, PagedKvCache, type StepArrays } from '../../index.js'
import { HYBRID, kvOf, layersOf, OWN, queriesOf, seen } from '../support/model-rows.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (): PagedKvCache => new PagedKvCache({ model: HYBRID, blockSize: 2, capacity: 64 })

/** The group that a layer's pages are in: its own, or that of the layer it shares with. */
function groupOf(cache: PagedKvCache, layer: number): number {
  const of = cache.groups.findIndex(group => group.layers.includes(layer))
  if (of >= 0) return of
  return groupOf(cache, (HYBRID.layers[layer] as { with: number }).with)
}

test('the tables of each group go to attention as they are', async t => {
  using cache = cacheOf()
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
  t.true(Array.from((batch.groups[0] as StepArrays).blockTables.subarray(0, 7)).includes(-1), 'a block has left the window')
  step.commit()
  for (let layer = 0; layer < cache.numLayers; layer++) {
    const found = attend(queriesOf(layer, [12, 54]), { cache, layer, sequences: [one, other.id] }).out.toFloat32Array()
    const wanted = [...seen(layer, span(0, 13), 1), ...seen(layer, span(50, 55), 1)]
    t.true(wanted.every((value, at) => Math.abs(value - (found[at] as number)) < 1e-5), `layer ${layer}`)
  }
})

test('what is asked wrongly of a model is refused', t => {
  using cache = cacheOf()
  const sequence = cache.openSequence()
  sequence.append({ layers: layersOf(span(0, 3)) })
  const q = queriesOf(0, [2])
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, { cache, layer: cache.numLayers, sequences: [sequence] }))
  throwsCode(t, 'SEQUENCE_NOT_FOUND', () => attend(q, { cache, layer: 0, sequences: [9] }))
  throwsCode(t, 'INVALID_BLOCK', () => attend(q, { cache, layer: 0, blockTables: Int32Array.of(99, 99), lengths: Int32Array.of(3) }))
  using foreign = cacheOf()
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, { cache, layer: 0, sequences: [foreign.openSequence()] }))
  const model = { layers: [{ kind: 'full', numKvHeads: 2, headDim: 2 }], attention: { numQueryHeads: 4, sinkLogits: true } } as const
  using learned = new PagedKvCache({ model, capacity: 1 })
  const kv = { cache: learned, layer: 0, sequences: [learned.openSequence()] }
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(q, kv), { argument: 'sinkLogits', value: undefined, expected: 'those of the layer, one for each query head: the model has learned them' })
  t.is(attend(q, kv, { sinkLogits: [1, 1, 1, 1] }).out.length, 8)
  throwsCode(t, 'SHAPE_MISMATCH', () => attend({ data: new Float32Array(4), shape: [1, 2, 2] }, kv, { sinkLogits: [1, 1] }), { argument: 'q', value: [1, 2, 2], expected: "4 heads, as the model's description says" })
})
