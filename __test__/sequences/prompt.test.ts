// Prompts: what they find, what keeps them apart, how long it stays.
import test from 'ava'

import { attendAsync, PagedKvCache, type UniformCacheOptions, type Sequence } from '../../index.js'
import { layered } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 16, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, ...options })

function feed(seq: Sequence, tokens: readonly number[]): void {
  const [k, v] = layered(tokens)
  seq.append({ k, v, tokens })
}

/** The number of tokens of a prompt that are found. */
function found(cache: PagedKvCache, tokens: readonly number[], options = {}): number {
  using match = cache.match(tokens, options)
  return match.length
}

test('what is asked wrongly is refused by name', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, span(0, 8))
  for (const tokens of [[-1], [0.5], [2 ** 32], 'abc', null, 5, new Int32Array(2), [1, undefined]])
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.match(tokens as never))
  for (const salt of [1, null, {}, new Float32Array(1), '\ud800', new Uint8Array(new SharedArrayBuffer(4))])
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.match([1], { salt: salt as never }))
  const key = Uint8Array.of(1)
  for (const extra of [
    1,
    {},
    [1],
    [{}],
    [{ start: 0, end: 0, key }],
    [{ start: 2, end: 1, key }],
    [{ start: 0, end: 1, key: 'a' }],
    [{ start: -1, end: 1, key }],
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.match([1], { extra: extra as never }))
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.createSequence({ extra: extra as never }))
  }
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.match([1], { partial: 1 as never }))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.match([1], { extra: [{ start: 3, end: 3, key }] }), {
    argument: 'extra[0].start',
    value: 3,
    expected: 'below its end, 3',
  })
  using match = cache.match(span(0, 9))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.createSequence({ prefix: match, salt: 'a' }), {
    argument: 'salt',
    value: 'a string (not shown)',
    expected: 'no value together with prefix: a match has its own',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.createSequence({ prefix: match, extra: [] }))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.createSequence({ prefix: seq as never }))
  t.is(match.length, 8)
  for (const prefixKey of [new Uint8Array(31), new Uint8Array(33), 'x', new Float32Array(8), null])
    throwsCode(t, 'INVALID_ARGUMENT', () => cacheOf({ prefixKey: prefixKey as never }))
  for (const namespace of [1, null, '\udc00'])
    throwsCode(t, 'INVALID_ARGUMENT', () => cacheOf({ namespace: namespace as never }))
  t.deepEqual(cache.sequenceIds(), [0])
})

test('a prompt finds whole blocks, and never its last token', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, span(0, 10))
  t.deepEqual(
    [
      found(cache, span(0, 12)),
      found(cache, span(0, 9)),
      found(cache, span(0, 8)),
      found(cache, span(0, 4)),
      found(cache, []),
    ],
    [8, 8, 4, 0, 0],
  )
  t.is(found(cache, [0, 1, 2, 3, 9, 9, 9, 9, 9]), 4)
  t.is(found(cache, [0, 1, 2, 3, 4, 5, 9, 9, 9], { partial: true }), 6)
  using match = cache.match(Uint32Array.from(span(0, 12)))
  seq.drop()
  const other = cache.openSequence({ prefix: match })
  t.is(other.length, 8)
  t.deepEqual(Array.from(cache.gather(other, 0).k.toArray()), [...span(0, 8), ...span(0, 8).map(token => token + 0.5)])
  feed(other, [8, 9])
  t.is(found(cache, span(0, 13)), 8)
  const { hitTokens, promptTokens, hitRate } = cache.stats()
  t.deepEqual(
    [hitTokens, promptTokens, hitRate],
    [8 + 8 + 4 + 4 + 6 + 8 + 8, 12 + 9 + 8 + 4 + 9 + 9 + 12 + 13, hitTokens / promptTokens],
  )
  cache.checkInvariants()
})

test('tokens of several sequences are named in one call', t => {
  using cache = cacheOf()
  const sequences = [cache.openSequence(), cache.openSequence({ salt: 'a' })]
  const [k, v] = layered([...span(0, 5), ...span(10, 14)])
  for (const tokens of [span(0, 8), [], 'x', null])
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.append(sequences, k, v, [0, 5, 9], { tokens: tokens as never }))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.append(sequences, k, v, [0, 5, 9], null as never))
  cache.append(sequences, k, v, [0, 5, 9], { tokens: [...span(0, 5), ...span(10, 14)] })
  t.deepEqual(
    [found(cache, span(0, 5)), found(cache, span(10, 15)), found(cache, span(10, 15), { salt: 'a' })],
    [4, 0, 4],
  )
})

test('a match is used up by the sequence that starts with it, and by nothing else', async t => {
  using cache = cacheOf()
  using other = cacheOf()
  const seq = cache.openSequence()
  feed(seq, span(0, 8))
  const match = cache.match(span(0, 9))
  throwsCode(t, 'SNAPSHOT_INVALID', () => other.createSequence({ prefix: match }))
  const q = { data: new Float32Array(2), shape: [1, 2, 1] }
  const work = attendAsync(q, { cache, layer: 0, sequences: [seq] })
  throwsCode(t, 'BUSY', () => cache.createSequence({ prefix: match }))
  await work
  t.is(match.length, 8)
  const id = cache.createSequence({ prefix: match })
  t.is(cache.sequenceLength(id), 8)
  t.is(match.length, 8, 'it says still what was found')
  for (const call of [() => cache.createSequence({ prefix: match }), () => cache.openSequence({ prefix: match })]) {
    throwsCode(t, 'DISPOSED', call, { object: 'PrefixMatch' })
  }
  match.dispose()
  t.is(cache.sequenceLength(id), 8)
})

test('salts, extras, namespaces and tokens without ids keep prompts apart', t => {
  using cache = cacheOf({ capacity: 64 })
  const image = { start: 1, end: 2, key: Uint8Array.of(1, 2, 3) }
  const prompt = span(0, 5)
  const kinds = [
    {},
    { salt: 'a' },
    { salt: 'b' },
    { extra: [image] },
    { salt: 'a', extra: [image] },
    { extra: [{ ...image, key: Uint8Array.of(9) }] },
  ]
  for (const kind of kinds) {
    for (const other of kinds) t.is(found(cache, prompt, other), kinds.indexOf(other) < kinds.indexOf(kind) ? 4 : 0)
    feed(cache.openSequence(kind), prompt)
  }
  t.is(found(cache, prompt, { salt: Uint8Array.from(Buffer.from('a')) }), 4, 'a string stands for its UTF-8')
  t.is(found(cache, prompt, { salt: '', extra: [] }), 4, 'nothing is none')
  t.is(found(cache, prompt, { extra: [{ ...image, start: 4, end: 9 }] }), 4, 'behind the block')
  const nameless = cache.openSequence({ salt: 'c' })
  const [k, v] = layered(span(0, 2))
  nameless.append({ k, v })
  feed(nameless, span(2, 12))
  t.is(found(cache, span(0, 12), { salt: 'c' }), 0)
})

test('nothing drafted is found before it is committed, and nothing that was dropped', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, [0, 1])
  const open = seq.begin()
  const [k, v] = layered([2, 3, 4, 5, 6, 7])
  open.append({ k, v, tokens: Uint32Array.from([2, 3, 4, 5, 6, 7]) })
  t.is(found(cache, span(0, 9)), 0)
  t.deepEqual(cache.explain(span(0, 9)), { matched: 0, missing: { block: 0, reason: 'not-committed' } })
  t.deepEqual(cache.explain([0, 1, 2, 4, 5]), { matched: 0, missing: { block: 0, reason: 'never-seen' } })
  throwsCode(t, 'INVALID_ARGUMENT', () => open.append({ k: layered([8])[0], v: layered([8])[1], tokens: [8, 9] }))
  open.commit(3)
  t.deepEqual([found(cache, span(0, 9)), seq.length], [4, 5])
  using step = cache.beginStep({ sequences: [seq], offsets: [0, 3], tokens: [5, 6, 7] })
  const rows = { data: new Float32Array(6), shape: [2, 3, 1] }
  step.write(0, rows, rows)
  step.write(1, rows, rows)
  t.is(found(cache, span(0, 9)), 4)
  step.commit()
  t.is(found(cache, span(0, 9)), 8)
})

test('explain says why a prompt is found no further', t => {
  using cache = cacheOf({ capacity: 3 })
  const seq = cache.openSequence({ salt: 'a' })
  feed(seq, span(0, 9))
  t.deepEqual(cache.explain(span(0, 9), { salt: 'a' }), { matched: 8 })
  t.deepEqual(cache.explain(span(0, 13), { salt: 'a' }), { matched: 8, missing: { block: 2, reason: 'never-seen' } })
  t.deepEqual(cache.explain(span(0, 9)), { matched: 0, missing: { block: 0, reason: 'other-salt' } })
  seq.drop()
  t.deepEqual([cache.stats().cachedBlocks, cache.stats().freeBlocks, cache.freeCount], [2, 1, 3])
  cache.ensureCapacity(cache.openSequence(), 8)
  t.deepEqual(cache.explain(span(0, 9), { salt: 'a' }), { matched: 4, missing: { block: 1, reason: 'evicted' } })
  t.is(cache.stats().evictions, 1)
  for (const tokens of [null, 5, ['a']]) throwsCode(t, 'INVALID_ARGUMENT', () => cache.explain(tokens as never))
})

test('a prompt that two computed side by side is found while one of them has it', t => {
  using cache = cacheOf({ capacity: 5 })
  const [first, second] = [cache.openSequence(), cache.openSequence()]
  for (const seq of [first, second]) feed(seq, span(0, 8))
  first.drop()
  cache.ensureCapacity(cache.openSequence(), 12)
  t.is(cache.stats().evictions, 2)
  t.deepEqual(cache.explain(span(0, 9)), { matched: 8 })
  second.drop()
  t.deepEqual([found(cache, span(0, 9)), cache.stats().cachedBlocks], [8, 2])
  cache.checkInvariants()
})

test('room is told for tokens and for prompts, those that others hold for nothing', t => {
  using cache = cacheOf({ capacity: 4 })
  const seq = cache.openSequence()
  feed(seq, span(0, 8))
  t.deepEqual(
    [cache.canAllocate(8), cache.canAllocate(9), cache.canAllocate(8, { watermark: 1 })],
    [true, false, false],
  )
  const prompt = span(0, 16)
  t.deepEqual(
    [cache.canAllocate(prompt), cache.canAllocate(prompt, { watermark: 1 }), cache.canAllocate(prompt, { salt: 'a' })],
    [true, false, false],
  )
  t.true(cache.canAllocate(Uint32Array.from(prompt)))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.canAllocate(3, { salt: 'a' }), {
    argument: 'salt',
    value: 'a string (not shown)',
    expected: 'no value together with a number of tokens',
  })
  for (const watermark of [-1, 0.5, null])
    throwsCode(t, 'INVALID_ARGUMENT', () => cache.canAllocate(3, { watermark: watermark as never }))
})

/** The name of a cache's first block. */
async function keyOf(options: Partial<UniformCacheOptions>): Promise<string> {
  using cache = cacheOf({ events: 4, ...options })
  feed(cache.openSequence(), span(0, 4))
  using events = cache.events()
  const { value } = await events.next()
  return value?.type === 'stored' ? value.key : ''
}

test('caches that are made alike with one key and namespace name prompts alike, and no others do', async t => {
  const prefixKey = new Uint8Array(32).fill(7)
  const keys = await Promise.all(
    [{}, {}, { prefixKey }, { prefixKey }, { prefixKey, namespace: 'llama' }, { prefixKey: new Uint8Array(32) }].map(
      keyOf,
    ),
  )
  t.is(keys[0], keys[1])
  t.is(keys[2], keys[3])
  t.is(new Set(keys).size, 4)
  t.true(keys.every(key => /^[0-9a-f]{64}$/.test(key)))
})

test('what is retained stays longer, for as long as the clock of the cache says', t => {
  let [now, asked] = [1000, 0]
  const clock = (): number => {
    asked += 1
    return now
  }
  using cache = cacheOf({ capacity: 3, now: clock })
  const stays = (first: number): boolean => found(cache, span(first, first + 5)) === 4
  const [limited, better, plain] = [0, 10, 20].map(first => {
    const seq = cache.openSequence()
    feed(seq, span(first, first + 4))
    return seq
  }) as [Sequence, Sequence, Sequence]
  for (const options of [
    null,
    {},
    { priority: 101 },
    { priority: -1 },
    { priority: 0.5 },
    { priority: 1, forMs: -1 },
    { priority: 1, until: NaN },
    { priority: 1, from: 3, to: 2 },
    { priority: 1, forMs: 1, until: 2 },
  ]) {
    throwsCode(t, 'INVALID_ARGUMENT', () => limited.retain(options as never))
  }
  better.retain({ priority: 60 })
  t.is(asked, 0, 'nothing has a limit')
  limited.retain({ priority: 90, forMs: 50.5 })
  for (const seq of [limited, better, plain]) seq.drop()
  const one = cache.openSequence()
  cache.ensureCapacity(one, 4)
  t.deepEqual([stays(0), stays(10), stays(20)], [true, true, false], 'the lowest priority makes room first')
  now = 1050
  cache.ensureCapacity(one, 8)
  t.deepEqual([stays(0), stays(10)], [false, true], 'the highest one is over')
  const before = asked
  cache.createSequence()
  t.is(asked, before, 'no limit is left')
  using broken = cacheOf({ now: () => 'late' as never })
  throwsCode(t, 'INVALID_ARGUMENT', () => broken.openSequence().retain({ priority: 1, forMs: 1 }))
  for (const wrong of [1, null, 'x']) throwsCode(t, 'INVALID_ARGUMENT', () => cacheOf({ now: wrong as never }))
})

test('a time limit that passes while background work uses the cache ends after that work', async t => {
  let now = 1000
  using cache = cacheOf({ capacity: 4, now: () => now })
  const stays = (first: number): boolean => found(cache, span(first, first + 5)) === 4
  const [live, limited, plain, better] = [0, 10, 20, 30].map(first => {
    const seq = cache.openSequence()
    feed(seq, span(first, first + 4))
    return seq
  }) as [Sequence, Sequence, Sequence, Sequence]
  limited.retain({ priority: 90, forMs: 100 })
  better.retain({ priority: 60 })
  for (const seq of [limited, plain, better]) seq.drop()
  const reading = attendAsync({ data: new Float32Array(2), shape: [1, 2, 1] }, { cache, layer: 0, sequences: [live] })
  now = 1100
  throwsCode(t, 'BUSY', () => cache.ensureCapacity(live, 8))
  await reading
  cache.ensureCapacity(live, 8)
  t.deepEqual([stays(10), stays(20), stays(30)], [false, true, true], 'the oldest of the others makes room')
  cache.checkInvariants()
})

test('what was forgotten is never found', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, span(0, 8))
  cache.forgetPrefixes()
  t.is(found(cache, span(0, 9)), 0)
  t.is(seq.length, 8)
  cache.checkInvariants()
})

/** The cached tokens of prompts once a block has made room. */
function left(cache: PagedKvCache, prompts: readonly (readonly number[])[]): number[] {
  cache.ensureCapacity(cache.createSequence(), 4)
  cache.checkInvariants()
  return prompts.map(prompt => cache.explain([...prompt, 99]).matched)
}

test('what is cut off hands its priority on to what stays, for no tokens nothing is said, and what is over goes in its turn', t => {
  using cut = cacheOf({ capacity: 2 })
  const seq = cut.openSequence()
  feed(seq, span(0, 8))
  seq.retain({ from: 4, priority: 90 })
  seq.truncate(4)
  seq.drop()
  t.deepEqual(left(cut, [span(0, 8)]), [4])

  let now = 0
  using cache = cacheOf({ capacity: 3, now: () => now })
  const prompts = [0, 10, 20].map(first => span(first, first + 4))
  const [first, second, third] = prompts.map(prompt => {
    const of = cache.openSequence()
    feed(of, prompt)
    return of
  }) as [Sequence, Sequence, Sequence]
  first.retain({ priority: 90, forMs: 5 })
  second.retain({ from: 2, to: 2, priority: 0 })
  third.retain({ priority: 10, forMs: 5 })
  for (const of of [first, second, third]) of.drop()
  now = 5
  t.deepEqual(
    [left(cache, prompts), left(cache, prompts)],
    [
      [0, 4, 4],
      [0, 0, 4],
    ],
    'in the order in which they were dropped',
  )
})

test('a window of the token itself finds what was computed, and goes on from what was cut', t => {
  using cache = cacheOf({ window: 1, blockSize: 2 })
  t.deepEqual(
    [{}, { salt: 'a' }].map(options => found(cache, span(0, 7), options)),
    [0, 0],
  )
  t.deepEqual(cache.explain(span(0, 7)), { matched: 0, missing: { block: 0, reason: 'never-seen' } })
  t.is(cache.stats().hitRate, 0)
  const seq = cache.openSequence()
  feed(seq, span(0, 5))
  seq.truncate(4)
  feed(seq, span(4, 9))
  t.deepEqual([found(cache, span(0, 10)), found(cache, span(0, 10), { salt: 'a' })], [8, 0])
  cache.checkInvariants()
})

test('what follows a truncation is found, where the block before it has left the window', t => {
  using cache = cacheOf({ window: 2, blockSize: 3 })
  const seq = cache.openSequence()
  feed(seq, span(0, 15))
  seq.truncate(14)
  feed(seq, span(14, 30))
  t.deepEqual(cache.explain(span(0, 30)), { matched: 27 })
})
