// What the queries of a step see where its sequences are drafted as trees.
import test, { type ExecutionContext } from 'ava'

import { attend, type HostTensor, PagedKvCache, type Sequence, type Step, type Tensor } from '../../index.js'
import { throwsCode } from '../support/throws.js'

/** Rows of one head and dimension: with keys of 0 attention is the mean of the values that a query sees. */
const rows = (values: readonly number[]): HostTensor => ({
  data: Float32Array.from(values),
  shape: [1, values.length, 1],
})
const all = (values: readonly number[]): HostTensor => ({ ...rows(values), shape: [1, 1, values.length, 1] })
const zeros = (values: readonly number[]): HostTensor => rows(values.map(() => 0))
const queries = (n: number): HostTensor => ({ data: new Float32Array(n), shape: [n, 1, 1] })
const numbers = ({ out }: { readonly out: Tensor }): number[] => Array.from(out.toFloat32Array())

async function seenBy(
  t: ExecutionContext,
  cache: PagedKvCache,
  sequences: readonly Sequence[],
  values: readonly (readonly number[])[],
  parents?: readonly number[],
): Promise<number[]> {
  const offsets = [0]
  for (const of of values) offsets.push((offsets.at(-1) as number) + of.length)
  using batch = cache.stepBatch({ maxSequences: sequences.length, maxBlocks: 16, maxTokens: 64 })
  const step = cache.prepareStep(batch, { sequences, offsets, ...(parents && { parents }) })
  t.deepEqual(step.positions, batch.positions.slice(0, step.length))
  step.write(0, zeros(values.flat()), rows(values.flat()))
  const q = queries(values.flat().length)
  const seen = numbers(step.attend(0, q))
  t.deepEqual(numbers(await step.attendAsync(0, q)), seen)
  step.commit()
  return seen
}

const model = { layers: [{ kind: 'full', numKvHeads: 1, headDim: 1 }] } as const

const KINDS = {
  'paged cache': (): PagedKvCache =>
    new PagedKvCache({ capacity: 16, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1 }),
  model: (): PagedKvCache => new PagedKvCache({ model, blockSize: 2, capacity: 16 }),
}

const open = (cache: PagedKvCache): Sequence => cache.openSequence()

for (const [name, make] of Object.entries(KINDS)) {
  test(`${name}: each level of a tree sees its ancestors, with parents and without`, async t => {
    using cache = make()
    const sequence = open(cache)
    await seenBy(t, cache, [sequence], [[6]])
    const draft = sequence.begin()
    t.deepEqual(await seenBy(t, cache, [sequence], [[100, 2]], [-1, -1]), [53, 4])
    t.deepEqual(await seenBy(t, cache, [sequence], [[1, 4]], [1, 0]), [3, 110 / 3].map(Math.fround))
    t.deepEqual(await seenBy(t, cache, [sequence], [[30]], [2]), [39 / 4])
    t.deepEqual(await seenBy(t, cache, [sequence], [[11]]), [10])
    const child = draft.begin()
    t.deepEqual(await seenBy(t, cache, [sequence], [[4, 10]], [-1, -1]), [9, 10])
    child.commit()
    draft.commitPath([1, 2, 4, 5, 7])
    t.deepEqual(await seenBy(t, cache, [sequence], [[3]]), [9])
  })
}

for (const name of ['paged cache', 'model'] as const) {
  test(`${name}: sequences with trees of their own, chains and plain tokens are one step`, async t => {
    using cache = KINDS[name]()
    const [one, two, three] = [open(cache), open(cache), open(cache)]
    one.begin()
    two.begin()
    three.begin()
    t.deepEqual(
      await seenBy(
        t,
        cache,
        [one, two],
        [
          [1, 2, 3],
          [4, 5],
        ],
        [-1, -1, 1, -1, 0],
      ),
      [1, 2, 2.5, 4, 4.5],
    )
    t.deepEqual(await seenBy(t, cache, [two, three, one], [[6], [7], [9, 1]], [1, -1, 0, 2]), [5, 7, 5, 2])
    t.deepEqual(await seenBy(t, cache, [one, two], [[4], [1]]), [2.5, 4])
  })
}

test('attention over sequences outside a step knows their trees, and a call may say another', t => {
  using cache = KINDS['paged cache']()
  const sequence = cache.openSequence()
  const draft = sequence.begin()
  draft.append({ k: all([0, 0, 0]), v: all([1, 3, 5]), parents: [-1, -1, 1] })
  const kv = { cache, layer: 0, sequences: [sequence] }
  t.deepEqual(numbers(attend(queries(1), kv)), [4])
  t.deepEqual(numbers(attend(queries(3), kv, { qOffsets: [0, 3] })), [1, 3, 4])
  t.deepEqual(numbers(attend(queries(1), kv, { tree: [-1, -1, 0], treeOffsets: [0, 3] })), [3])
  t.deepEqual(numbers(attend(queries(2), kv, { tree: [-1, 0], qOffsets: [0, 2] })), [2, 3])
  t.deepEqual(numbers(attend(queries(3), kv, { tree: [-1], treeOffsets: [0, 1], qOffsets: [0, 3] })), [1, 2, 3])
  t.deepEqual(numbers(attend(queries(1), kv, { mask: { data: new Float32Array(3), shape: [1, 3] } })), [3])
  for (const treeOffsets of [[0], [0, 2], [0, 4, 3], [1, 3]]) {
    const error = throwsCode(t, treeOffsets.length === 2 ? 'INVALID_ARGUMENT' : 'SHAPE_MISMATCH', () =>
      attend(queries(1), kv, { tree: [-1, -1, 0], treeOffsets }),
    )
    t.is(error.details.argument, 'treeOffsets')
  }
  throwsCode(t, 'INVALID_ARGUMENT', () => attend(queries(1), kv, { treeOffsets: [0, 3] }))
  throwsCode(t, 'SHAPE_MISMATCH', () => attend(queries(1), kv, { tree: [-1, 0, 1, 2], treeOffsets: [0, 4] }))
})

test('masks and positions of a transaction are refused while a step is open', t => {
  for (const make of Object.values(KINDS)) {
    using cache = make()
    const sequence = open(cache)
    const draft = sequence.begin()
    {
      using step = cache.beginStep({ sequences: [sequence as never], offsets: [0, 2], parents: [-1, -1] })
      throwsCode(t, 'TRANSACTION_OPEN', () => draft.treeMask())
      throwsCode(t, 'TRANSACTION_OPEN', () => draft.treePositions())
      t.is(step.length, 2)
    }
    t.deepEqual(draft.treeMask().shape, [0, 0])
  }
})

for (const [name, make] of Object.entries(KINDS)) {
  test(`${name}: a tree's step brings no tokens of a sequence without a transaction, or is refused`, t => {
    using cache = make()
    const [tree, idle] = [open(cache), open(cache)]
    const first = { k: all([0]), v: all([1]) }
    for (const sequence of [tree, idle]) {
      sequence.append(first)
    }
    const begin = (sequences: readonly Sequence[], offsets: readonly number[], parents: readonly number[]): Step =>
      cache.beginStep({ sequences, offsets, parents })
    throwsCode(t, 'INVALID_ARGUMENT', () => begin([idle], [0, 1], [-1]))
    const none = begin([idle], [0, 0], [])
    none.commit()
    using draft = tree.begin()
    if (name !== 'model in tensors') {
      // Its own tokens, and none of the other.
      const step = begin([tree, idle], [0, 2, 2], [-1, -1])
      step.write(0, zeros([2, 3]), rows([2, 3]))
      t.deepEqual(numbers(step.attend(0, queries(2))), [1.5, 2])
      step.commit()
      t.deepEqual([draft.length, idle.length], [2, 1])
    }
  })
}
