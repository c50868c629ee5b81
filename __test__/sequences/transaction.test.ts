// Transaction: what is its own beside that of every transaction: room in every layer, and masks of each.
import test from 'ava'

import type { Transaction } from '../../index.js'
import { feed, KINDS, layersOf, paged } from '../support/model-rows.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

/** The keys that each drafted token sees in a layer: a word for each token, 1 for a key that it sees. */
const sees = (draft: Transaction, layer?: number): string => {
  const mask = draft.treeMask(layer)
  const keys = mask.shape.at(-1) as number
  const bits = Array.from(mask.toArray(), value => (value === 0 ? '1' : '0')).join('')
  return bits.match(new RegExp(`.{${keys}}`, 'g'))?.join(' ') ?? ''
}

for (const [kind, make] of KINDS) {
  test(`${kind}: a mask is of one layer, and a window counts positions in it`, t => {
    using cache = make()
    const sequence = cache.openSequence()
    feed(sequence, span(0, 4))
    using draft = sequence.begin()
    draft.append({ layers: layersOf([50, 51, 52]), parents: [-1, -1, 1] })
    t.deepEqual(draft.treePositions(), Int32Array.of(4, 4, 5))
    // Node 2 stands at 5: of a window of 4 it sees 2 and 3, and the sink.
    t.is(sees(draft, 1), '1111100 1111010 1111011')
    t.is(sees(draft), '1111100 1111010 1011011')
    t.deepEqual([sees(draft, 2), sees(draft, 3)], [sees(draft, 1), sees(draft, 0)])
    for (const layer of [4, -1, 0.5, null]) throwsCode(t, 'INVALID_ARGUMENT', () => draft.treeMask(layer as never))
    const step = cache.beginStep({ sequences: [sequence] })
    for (const call of [() => draft.treeMask(1), () => draft.treePositions()]) throwsCode(t, 'TRANSACTION_OPEN', call)
    step.rollback()
    draft.commitPath([1, 2])
    t.is(sequence.length, 6)
  })

  test(`${kind}: nodes of a step follow any of its transaction`, t => {
    using cache = make()
    const sequence = cache.openSequence()
    feed(sequence, span(0, 3))
    using draft = sequence.begin()
    draft.append({ layers: layersOf([50, 51]), parents: [-1, -1] })
    for (const parents of [[2, 2], [-2, 0], [-1]])
      throwsCode(t, 'INVALID_ARGUMENT', () => draft.append({ layers: layersOf([52, 53]), parents }))
    draft.append({ layers: layersOf([52, 53, 54]), parents: [0, 1, 2] })
    t.deepEqual(draft.treePositions(), Int32Array.of(3, 3, 4, 4, 5))
    throwsCode(t, 'INVALID_PATH', () => draft.commitPath([0, 3]))
    draft.commitPath([0, 2, 4])
    t.is(sequence.length, 6)
  })
}

test('room for a draft is taken in every group, or in none', t => {
  for (const capacity of [
    [8, 3],
    [3, 8],
  ]) {
    using cache = paged({ capacity })
    const [sequence, other] = [cache.openSequence(), cache.openSequence()]
    feed(sequence, span(0, 4))
    const before = cache.stats().pools
    throwsCode(t, 'OUT_OF_BLOCKS', () => sequence.begin({ maxTokens: 12 }), {
      needed: 3,
      free: 2,
      group: capacity.indexOf(3),
      sequences: 2,
      held: 1,
    })
    for (const maxTokens of [-1, 0.5, 2 ** 31, '1', null])
      throwsCode(t, 'INVALID_ARGUMENT', () => sequence.begin({ maxTokens: maxTokens as never }))
    t.deepEqual(cache.stats().pools, before)
    using outer = sequence.begin()
    throwsCode(t, 'OUT_OF_BLOCKS', () => outer.begin({ maxTokens: 12 }))
    t.deepEqual(cache.stats().pools, before)
    using inner = outer.begin({ maxTokens: 8 })
    throwsCode(t, 'OUT_OF_BLOCKS', () => feed(other, [9]))
    inner.append({ layers: layersOf(span(50, 58)) })
    inner.commit(4)
    outer.commit()
    t.deepEqual([sequence.length, sequence.committedLength], [8, 8])
    feed(other, [9])
    cache.checkInvariants()
  }
})

test('room for tokens is taken in every group, or in none', t => {
  for (const capacity of [
    [8, 3],
    [3, 8],
  ]) {
    using cache = paged({ capacity })
    const [one, two] = [cache.openSequence(), cache.openSequence()]
    feed(one, span(0, 4))
    const before = cache.stats().pools
    throwsCode(t, 'OUT_OF_BLOCKS', () => cache.ensureCapacity([one, two], [8, 8]), {
      needed: 3,
      free: 2,
      group: capacity.indexOf(3),
      sequences: 2,
      held: 1,
    })
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.ensureCapacity([one, one], [8, 8]))
    throwsCode(t, 'SEQUENCE_NOT_FOUND', () => cache.ensureCapacity([one, 9], [8, 8]))
    using open = cache.beginStep({ sequences: [two], offsets: [0, 0] })
    open.rollback()
    t.deepEqual(cache.stats().pools, before)
    cache.ensureCapacity([one, two], [8, 4])
    t.deepEqual(
      cache.stats().pools.map(pool => pool.activeBlocks),
      [3, 3],
    )
    throwsCode(t, 'OUT_OF_BLOCKS', () => feed(cache.openSequence(), [1]))
    feed(one, span(4, 8))
    feed(two, span(0, 4))
    cache.checkInvariants()
  }
})

test('room is told for tokens and for prompts, by the scarcest group', t => {
  for (const capacity of [
    [8, 5],
    [5, 8],
  ]) {
    using cache = paged({ capacity })
    const first = cache.openSequence()
    const prompt = span(0, 16)
    feed(first, prompt.slice(0, 8))
    t.deepEqual(
      [cache.canAllocate(12), cache.canAllocate(13), cache.canAllocate(12, { watermark: 1 })],
      [true, false, false],
    )
    // Two blocks of four are there, and they are held.
    t.deepEqual(
      [
        cache.canAllocate(prompt),
        cache.canAllocate(prompt, { watermark: 1 }),
        cache.canAllocate(prompt, { watermark: 2 }),
      ],
      [true, true, false],
    )
    t.deepEqual(
      [
        cache.canAllocate(Uint32Array.from(prompt), { salt: 'a' }),
        cache.canAllocate(prompt.slice(0, 12), { salt: 'a' }),
      ],
      [false, true],
    )
    // Whether there is room is whether it can be appended.
    const second = cache.openSequence({ prefix: cache.match(prompt) })
    feed(second, prompt.slice(8))
    t.deepEqual(
      [second.length, cache.canAllocate(prompt), cache.canAllocate(span(0, 20)), cache.canAllocate(span(0, 28))],
      [16, true, true, false],
    )
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.canAllocate(3, { salt: 'a' }), {
      argument: 'salt',
      value: 'a string (not shown)',
      expected: 'no value together with a number of tokens',
    })
    for (const watermark of [-1, 0.5, null])
      throwsCode(t, 'INVALID_ARGUMENT', () => cache.canAllocate(3, { watermark: watermark as never }))
  }
})
