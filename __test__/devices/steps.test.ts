// Steps of a paged cache and of a whole model, on each device: each layer sees what it should while the step is open.
import { attend, PagedKvCache } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { HYBRID, layersOf, runStep, stepOf } from '../support/model-rows.js'
import { waves } from '../support/pages.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

/** The allowed difference between attention on a device and on the CPU, in 32-bit floats. */
const TOLERANCE = 2e-5

const made = (device: string): PagedKvCache =>
  new PagedKvCache({ device, capacity: 16, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 32 })

onDevices('a step of pages: written layer by layer, seen by its own queries, committed at once', (t, device) => {
  const [cache, reference] = [made(device), made('cpu')]
  const outs = [cache, reference].map(of => {
    const [one, two] = [of.openSequence(), of.openSequence()]
    one.append({ k: waves(1, [2, 2, 5, 32]), v: waves(2, [2, 2, 5, 32]) })
    using step = of.beginStep({ sequences: [one, two], offsets: [0, 2, 5] })
    throwsCode(t, 'STEP_INCOMPLETE', () => step.commit())
    const seen = [0, 1].flatMap(layer => {
      step.write(layer, waves(3 + layer, [2, 5, 32]), waves(5 + layer, [2, 5, 32]))
      return Array.from(step.attend(layer, waves(7 + layer, [5, 4, 32])).out.toFloat32Array())
    })
    step.commit()
    const after = [0, 1].flatMap(layer =>
      Array.from(
        attend(
          waves(7 + layer, [5, 4, 32]),
          { cache: of, layer, sequences: [one, two] },
          { qOffsets: [0, 2, 5] },
        ).out.toFloat32Array(),
      ),
    )
    t.deepEqual(after, seen, 'the same once it is committed')
    of.checkInvariants()
    return seen
  }) as [number[], number[]]
  t.true(outs[0].every((value, at) => Math.abs(value - (outs[1][at] as number)) <= TOLERANCE))
  for (const layer of [0, 1])
    for (const seq of [0, 1]) t.true(cache.gather(seq, layer).k.equals(reference.gather(seq, layer).k))
})

onDevices('attention in the background reads what the step has written', async (t, device) => {
  using cache = new PagedKvCache({ device, capacity: 16, blockSize: 4, numLayers: 1, numKvHeads: 2, headDim: 8 })
  const seq = cache.openSequence()
  seq.append({ k: waves(1, [1, 2, 6, 8]), v: waves(2, [1, 2, 6, 8]) })
  using step = cache.beginStep({ sequences: [seq], offsets: [0, 2] })
  step.write(0, waves(3, [2, 2, 8]), waves(4, [2, 2, 8]))
  const q = waves(5, [2, 2, 8])
  const wanted = step.attend(0, q).out.toArray()
  t.deepEqual((await step.attendAsync(0, q)).out.toArray(), wanted)
  step.commit()
})

const KINDS = [
  { blockSize: 4, capacity: 200 },
  { blockSize: 1, capacity: 800 },
] as const

for (const options of KINDS) {
  const kind = `blocks of ${options.blockSize}`
  onDevices(`a model of full, sliding and shared layers, ${kind}: prompt, steps, drafts`, (t, device) => {
    using cache = new PagedKvCache({ model: HYBRID, device, ...options })
    t.is(cache.device, device)
    const sequence = cache.openSequence()
    t.true(stepOf(cache, sequence, span(1, 12), 11) <= TOLERANCE)
    for (const length of span(13, 30)) t.true(stepOf(cache, sequence, span(1, length), 1) <= TOLERANCE)
    using snapshot = sequence.snapshot()
    sequence.append({ layers: layersOf(span(100, 103)) })
    t.true(stepOf(cache, sequence, [...span(1, 29), ...span(100, 107)], 4) <= TOLERANCE)
    sequence.restore(snapshot)
    const draft = sequence.begin()
    draft.append({ layers: layersOf(span(200, 205)) })
    draft.commit(2)
    t.true(stepOf(cache, sequence, [...span(1, 29), 200, 201, 202], 1) <= TOLERANCE)
    t.is(sequence.length, 31)
    cache.checkInvariants()
  })

  onDevices(`a model's step that is dropped leaves nothing, ${kind}`, (t, device) => {
    using cache = new PagedKvCache({ model: HYBRID, device, ...options })
    const sequence = cache.openSequence()
    stepOf(cache, sequence, span(1, 20), 19)
    {
      using step = cache.beginStep({ sequences: [sequence], offsets: [0, 3] })
      t.true(runStep(step, [[...span(1, 20), 50, 51, 52]]) <= TOLERANCE)
    }
    t.is(sequence.length, 19)
    t.true(stepOf(cache, sequence, span(1, 21), 1) <= TOLERANCE)
  })
}
