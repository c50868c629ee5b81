// Sequence: what it refuses, what it shares, and how it ends.
import test from 'ava'

import { attend, attendAsync, PagedKvCache, type UniformCacheOptions, type Sequence } from '../../index.js'
import { collected } from '../support/garbage.js'
import { layered } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 16, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, ...options })

/** The tokens that a sequence shows, all of its layers and heads alike. */
function shown(cache: PagedKvCache, seq: Sequence): number[] {
  cache.checkInvariants()
  const { k, v } = cache.gather(seq, 1)
  const [keys, values] = [Array.from(k.toArray()), Array.from(v.toArray())]
  const { length } = seq
  if (values.some((value, place) => value !== -(keys[place] as number)))
    throw new Error('K and V are not of the same tokens')
  if (keys.slice(length).some((key, place) => key !== (keys[place] as number) + 0.5))
    throw new Error('the heads differ')
  return keys.slice(0, length)
}

test('an object that is no sequence, or one of another cache, is refused', t => {
  using cache = cacheOf()
  using other = cacheOf()
  const seq = cache.openSequence()
  throwsCode(t, 'SEQUENCE_NOT_FOUND', () => cache.sequence(7), { seq: 7 })
  for (const id of [-1, 0.5, '0', null, undefined, {}])
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.sequence(id as never))
  for (const call of [
    () => other.dropSequence(seq),
    () => other.ensureCapacity(seq, 1),
    () => other.append([seq], ...layered([1])),
    () => other.gather(seq, 0),
    () => other.beginStep({ sequences: [seq] }),
    () => attend(layered([1])[0], { cache: other, layer: 0, sequences: [seq] }),
  ]) {
    const error = throwsCode(t, 'INVALID_ARGUMENT', call)
    t.is(error.details.expected, 'a sequence of this cache')
  }
  throwsCode(t, 'INVALID_ARGUMENT', () =>
    cache.dropSequence(Object.create(Object.getPrototypeOf(seq) as object) as never),
  )
})

test('what is appended wrongly changes nothing', t => {
  using cache = cacheOf()
  using seq = cache.openSequence()
  const [k, v] = layered([1, 2, 3])
  seq.append({ k, v })
  for (const input of [null, undefined, 3, {}, { k }, { v }, { k: 1, v }])
    throwsCode(t, 'INVALID_ARGUMENT', () => seq.append(input as never))
  throwsCode(t, 'SHAPE_MISMATCH', () => seq.append({ k, v: layered([1])[1] }))
  for (const tokens of [
    [1, 2],
    [1, 2, 3, 4],
    [1, 2, -1],
    [1, 2, 2 ** 32],
    [1, 2, 0.5],
    [1, 2, '3'],
    Float32Array.of(1, 2, 3),
    'abc',
    null,
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => seq.append({ k, v, tokens: tokens as never }))
  }
  throwsCode(t, 'OUT_OF_BLOCKS', () => seq.append({ k: layered(span(0, 70))[0], v: layered(span(0, 70))[1] }), {
    needed: 18,
    free: 15,
    sequences: 1,
    held: 1,
  })
  t.deepEqual([seq.length, seq.committedLength, seq.capacity], [3, 3, 4])
  t.deepEqual(shown(cache, seq), [1, 2, 3])
})

test('a fork shares all blocks, and the first write copies one', t => {
  using cache = cacheOf()
  const one = cache.openSequence()
  one.append({ k: layered(span(0, 10))[0], v: layered(span(0, 10))[1] })
  const { freeCount } = cache
  const other = one.fork()
  t.is(cache.freeCount, freeCount)
  t.deepEqual(shown(cache, other), span(0, 10))
  const [k, v] = layered([100])
  other.append({ k, v })
  t.is(cache.freeCount, freeCount - 1)
  t.is(cache.stats().copiesOnWrite, 1)
  t.deepEqual(shown(cache, one), span(0, 10))
  t.deepEqual(shown(cache, other), [...span(0, 10), 100])
  one.drop()
  t.deepEqual(shown(cache, other), [...span(0, 10), 100])
  other.truncate(4)
  t.is(cache.freeCount, 15)
  throwsCode(t, 'CANNOT_ROLL_BACK', () => other.truncate(5))
})

test('a snapshot restores what it saw, in any sequence of its cache', t => {
  using cache = cacheOf()
  using other = cacheOf()
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  cache.append([one, two], ...layered(span(0, 9)), [0, 6, 9])
  using snapshot = one.snapshot()
  t.is(snapshot.length, 6)
  one.truncate(2)
  one.append({ k: layered([50])[0], v: layered([50])[1] })
  one.restore(snapshot)
  t.deepEqual(shown(cache, one), span(0, 6))
  two.restore(snapshot)
  t.deepEqual(shown(cache, two), span(0, 6))
  const error = throwsCode(t, 'SNAPSHOT_INVALID', () => other.openSequence().restore(snapshot))
  t.regex(error.message, /another cache/)
  for (const wrong of [null, {}, one, 3]) throwsCode(t, 'INVALID_ARGUMENT', () => one.restore(wrong as never))
  snapshot.dispose()
  throwsCode(t, 'DISPOSED', () => one.restore(snapshot), { object: 'Snapshot' })
  throwsCode(t, 'DISPOSED', () => snapshot.length)
  one.drop()
  two.drop()
  t.is(cache.freeCount, 16)
})

test('a sequence ends once, however it is ended', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  const same = cache.sequence(seq.id)
  same.append({ k: layered([1])[0], v: layered([1])[1] })
  const open = seq.begin()
  seq.drop()
  for (const call of [
    () => seq.length,
    () => same.capacity,
    () => same.committedLength,
    () => seq.fork(),
    () => seq.truncate(0),
    () => seq.snapshot(),
    () => seq.drop(),
    () => open.length,
    () => open.commit(),
    () => seq.retain({ priority: 1 }),
  ]) {
    throwsCode(t, 'SEQUENCE_NOT_FOUND', call, { seq: seq.id })
  }
  open.dispose()
  seq.dispose()
  seq.dispose()
  same[Symbol.dispose]()
  throwsCode(t, 'DISPOSED', () => seq.length, { object: 'Sequence' })
  throwsCode(t, 'DISPOSED', () => cache.gather(seq, 0), { object: 'Sequence' })
  t.deepEqual([cache.sequenceIds(), cache.freeCount], [[], 16])
  const last = cache.openSequence()
  cache.dispose()
  throwsCode(t, 'DISPOSED', () => last.length, { object: 'PagedKvCache' })
  t.notThrows(() => last.dispose())
})

test('while someone reads it is not dropped, and disposed of at the next change', async t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  seq.append({ k: layered([1, 2])[0], v: layered([1, 2])[1] })
  const q = { data: new Float32Array(2), shape: [1, 2, 1] }
  const work = attendAsync(q, { cache, layer: 0, sequences: [seq] })
  for (const call of [
    () => seq.drop(),
    () => seq.fork(),
    () => seq.truncate(0),
    () => seq.begin(),
    () => seq.snapshot(),
  ])
    throwsCode(t, 'BUSY', call)
  seq.dispose()
  t.deepEqual((await work).out.shape, [1, 2, 1])
  cache.openSequence()
  t.is(cache.freeCount, 16)
})

test('blocks are ensured for many sequences, or for none', t => {
  using cache = cacheOf({ capacity: 4 })
  const [one, two] = [cache.openSequence(), cache.openSequence()]
  throwsCode(t, 'OUT_OF_BLOCKS', () => cache.ensureCapacity([one, two], [8, 12]), {
    needed: 5,
    free: 4,
    sequences: 2,
    held: 0,
  })
  t.deepEqual([one.capacity, two.capacity], [0, 0])
  cache.ensureCapacity([one, two.id], Int32Array.of(8, 5))
  t.deepEqual([one.capacity, two.capacity], [8, 8])
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.ensureCapacity([one], [1, 2]), {
    argument: 'tokens.length',
    value: 2,
    expected: '1, one for each sequence',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.ensureCapacity([one, one.id], [1, 2]), {
    argument: 'seq[1]',
    value: 0,
    expected: 'each sequence once',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.ensureCapacity([one], 4 as never))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.ensureCapacity(one, [4] as never))
})

test('a window gives back what it has left behind', t => {
  using cache = cacheOf({ window: 4, sinks: 2 })
  throwsCode(t, 'INVALID_ARGUMENT', () => cacheOf({ sinks: 2 }), {
    argument: 'sinks',
    value: 2,
    expected: 'no sinks without a window',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => cacheOf({ window: 0 }))
  const seq = cache.openSequence()
  for (const token of span(0, 32)) seq.append({ k: layered([token])[0], v: layered([token])[1] })
  t.is(cache.stats().activeBlocks, 2, 'the first block, and the one with the last four')
  throwsCode(t, 'CANNOT_ROLL_BACK', () => seq.truncate(10))
  t.deepEqual(Array.from(cache.gather(seq, 0).k.toArray()).slice(0, 8), [...span(0, 4), ...span(28, 32)])
  throwsCode(t, 'POSITION_OUT_OF_RANGE', () => cache.readKv(seq, 0, 10))
})

test('what was forgotten gives its blocks back when it is collected', async t => {
  using cache = cacheOf({ blockSize: 2 })
  const seq = cache.openSequence()
  seq.append({ k: layered(span(0, 6))[0], v: layered(span(0, 6))[1], tokens: span(0, 6) })
  const forget = (): void => {
    seq.snapshot()
    cache.match(span(0, 6))
    cache.beginStep({ sequences: [seq] })
  }
  forget()
  t.is(cache.freeCount, 12)
  t.true(await collected(() => cache.freeCount === 13))
  seq.drop()
  t.is(cache.freeCount, 16)
  cache.checkInvariants()
})
