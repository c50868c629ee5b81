// Calls that are refused take nothing from others: no prompt that could be found is evicted, no block is copied.
import test, { type ExecutionContext } from 'ava'

import { type ErrorCode, type HostTensor, PagedKvCache, type Sequence } from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const PROMPT = [1, 2, 3, 4, 5]
const LAYER = { kind: 'full', numKvHeads: 1, headDim: 1 } as const
const rows = (shape: (n: number) => number[], n: number): HostTensor => ({ data: new Float32Array(n), shape: shape(n) })
const one = (n: number): HostTensor => rows(tokens => [1, tokens, 1], n)
const all = (n: number): HostTensor => rows(tokens => [1, 1, tokens, 1], n)
const layers = (n: number) => [0, 1].map(() => ({ k: one(n), v: one(n) }))
const wide = (n: number): HostTensor => ({ data: new Float32Array(2 * n), shape: [1, n, 2] })
const bytes = (n: number): HostTensor => ({ data: new Uint8Array(n), shape: [1, n, 1] })

/** A full cache of four blocks, half of which have the prompt of another sequence, and are not held any more. */
function cachedInModel(): PagedKvCache {
  const cache = new PagedKvCache({ model: { layers: [LAYER, LAYER] }, blockSize: 2, capacity: 4 })
  const prompt = cache.openSequence()
  prompt.append({ tokens: PROMPT.slice(0, 4), layers: layers(4) })
  prompt.drop()
  return cache
}

function cachedInBlocks(): PagedKvCache {
  const cache = new PagedKvCache({ capacity: 4, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1 })
  const prompt = cache.openSequence()
  prompt.append({ tokens: PROMPT.slice(0, 4), k: all(4), v: all(4) })
  prompt.drop()
  return cache
}

/** A call is refused, and what there is stays. */
function leavesAll(t: ExecutionContext, cache: PagedKvCache, code: ErrorCode, call: () => void): void {
  const before = [cache.stats(), cache.explain(PROMPT)]
  throwsCode(t, code, call)
  t.deepEqual([cache.stats(), cache.explain(PROMPT)], before)
  t.is(cache.explain(PROMPT).matched, 4)
  cache.checkInvariants()
}

const REFUSED: readonly [string, ErrorCode, (sequence: Sequence) => void][] = [
  [
    'values of fewer tokens in the second layer',
    'SHAPE_MISMATCH',
    sequence => sequence.append({ layers: [layers(8)[0] as never, { k: one(8), v: one(1) }] }),
  ],
  [
    'another dtype in the second layer',
    'DTYPE_MISMATCH',
    sequence => sequence.append({ layers: [layers(8)[0] as never, { k: bytes(8), v: one(8) }] }),
  ],
  [
    'fewer tokens in the second layer',
    'INVALID_ARGUMENT',
    sequence => sequence.append({ layers: [layers(8)[0] as never, layers(7)[0] as never] }),
  ],
  ['too few ids', 'INVALID_ARGUMENT', sequence => sequence.append({ tokens: [1], layers: layers(8) })],
  ['too few layers', 'INVALID_ARGUMENT', sequence => sequence.append({ layers: layers(8).slice(1) })],
  [
    'a wrong layer in a draft',
    'SHAPE_MISMATCH',
    sequence => {
      using draft = sequence.begin()
      draft.append({ layers: [layers(8)[0] as never, { k: one(8), v: one(1) }] })
    },
  ],
]

for (const [name, code, call] of REFUSED) {
  test(`an append to all layers that is refused evicts nothing: ${name}`, t => {
    using cache = cachedInModel()
    const sequence = cache.openSequence()
    leavesAll(t, cache, code, () => call(sequence))
    sequence.append({ layers: layers(8) })
    t.is(cache.explain(PROMPT).matched, 0)
  })
}

const SMALL = [{ maxBlocks: 3 }, { maxTokens: 7 }]

test('a step whose tables are too small evicts nothing', t => {
  for (const small of SMALL) {
    const sizes = { maxSequences: 1, maxBlocks: 4, maxTokens: 8, ...small }
    using cache = cachedInBlocks()
    const sequence = cache.openSequence()
    leavesAll(t, cache, 'INVALID_ARGUMENT', () =>
      cache.prepareStep(cache.stepBatch(sizes), { sequences: [sequence], offsets: [0, 8] }),
    )
    cache
      .prepareStep(cache.stepBatch({ ...sizes, maxBlocks: 4, maxTokens: 8 }), {
        sequences: [sequence],
        offsets: [0, 8],
      })
      .dispose()
    using model = cachedInModel()
    const other = model.openSequence()
    leavesAll(t, model, 'INVALID_ARGUMENT', () =>
      model.prepareStep(model.stepBatch(sizes), { sequences: [other], offsets: [0, 8] }),
    )
  }
})

test('tables of the second group that are too small evict nothing in the first', t => {
  const groups = [LAYER, { ...LAYER, headDim: 2 }]
  using cache = new PagedKvCache({ model: { layers: groups }, blockSize: 2, capacity: 4 })
  const prompt = cache.openSequence()
  prompt.append({
    tokens: PROMPT.slice(0, 4),
    layers: [
      { k: one(4), v: one(4) },
      { k: wide(4), v: wide(4) },
    ],
  })
  prompt.drop()
  const sequence = cache.openSequence()
  const sizes = { maxSequences: 1, maxBlocks: 4, maxTokens: 8 }
  using made = cache.stepBatch(sizes)
  const arrays = made.groups.map((of, group) => ({ ...of, positions: new Int32Array(group === 0 ? 8 : 7) }))
  leavesAll(t, cache, 'INVALID_ARGUMENT', () =>
    cache.prepareStep(cache.stepBatch({ ...sizes, maxTokens: 7, arrays }), { sequences: [sequence], offsets: [0, 8] }),
  )
})

test('a step of a fork whose tables are too small copies nothing', t => {
  using cache = new PagedKvCache({ capacity: 8, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1 })
  const sequence = cache.openSequence()
  sequence.append({ tokens: span(1, 4), k: all(3), v: all(3) })
  const fork = sequence.fork()
  const before = cache.stats()
  throwsCode(t, 'INVALID_ARGUMENT', () =>
    cache.prepareStep(cache.stepBatch({ maxSequences: 1, maxBlocks: 1, maxTokens: 4 }), { sequences: [fork] }),
  )
  t.deepEqual(cache.stats(), before)
  t.is(cache.stats().copiesOnWrite, 0)
})
