// Sequence.resume: what a sequence keeps of the start of a prompt.
import test from 'ava'

import { PagedKvCache, type Sequence, type UniformCacheOptions } from '../../index.js'
import { layered } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 64, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, ...options })

/** Appends tokens whose rows are their ids. */
function feed(seq: Sequence, tokens: readonly number[], known = true): void {
  const [k, v] = layered(tokens)
  seq.append({ k, v, ...(known && { tokens }) })
}

/** The tokens that a sequence shows. */
const shown = (cache: PagedKvCache, seq: Sequence): number[] =>
  Array.from(cache.gather(seq, 1).k.toArray().subarray(0, seq.retainedLength))

test('the common start is kept, and never the last token of the prompt', t => {
  for (const [prompt, kept] of [
    [[...span(0, 10), 90, 91], 10],
    [[...span(0, 6), 90, 91, 92], 6],
    [[...span(0, 8), 90], 8],
    [span(0, 10), 9],
    [span(0, 3), 2],
    [[0], 0],
    [[7, 1, 2], 0],
    [[], 0],
  ] as const) {
    using cache = cacheOf()
    const seq = cache.openSequence()
    feed(seq, span(0, 10))
    t.is(seq.resume(prompt), kept, String(prompt))
    t.is(seq.resume(Uint32Array.from(prompt)), kept)
    t.is(seq.length, kept)
    feed(seq, prompt.slice(kept))
    t.deepEqual(shown(cache, seq), [...prompt])
    cache.checkInvariants()
  }
})

test('tokens without ids are not kept, nor is what follows them', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, [1, 2, 3])
  feed(seq, [4, 5], false)
  feed(seq, [6])
  t.is(seq.resume([1, 2, 3, 4, 5, 6, 7]), 3)
})

test('drafts that were taken back do not count', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, span(0, 5))
  {
    using draft = seq.begin()
    const [k, v] = layered([5, 6, 7])
    draft.append({ k, v, tokens: [5, 6, 7] })
  }
  t.is(seq.resume(span(0, 9)), 5)
  {
    using draft = seq.begin()
    const [k, v] = layered([5, 6, 7])
    draft.append({ k, v, tokens: [5, 6, 7] })
    draft.commit(2)
  }
  t.is(seq.resume(span(0, 9)), 7)
})

test('forks share what they keep, and the others keep theirs', t => {
  using cache = cacheOf()
  const one = cache.openSequence()
  feed(one, span(0, 10))
  const other = one.fork()
  t.is(other.resume([...span(0, 7), 50, 51]), 7)
  feed(other, [50, 51])
  t.deepEqual([shown(cache, one), shown(cache, other)], [span(0, 10), [...span(0, 7), 50, 51]])
  using again = cache.openSequence({ prefix: cache.match([...span(0, 8), 60]) })
  t.is(again.resume([...span(0, 5), 61, 62]), 5)
  t.deepEqual(shown(cache, again), span(0, 5))
})

test('a window goes on where it can, and else with its sinks', t => {
  const all = span(0, 40)
  for (const [prompt, kept] of [
    [[...all, 90, 91], 40], // tokens that left the window are known by name
    [[...span(0, 39), 90, 91], 39],
    [[...span(0, 33), 90, 91], 4], // what 33 would see has gone
    [[...span(0, 30), 90, 91, ...span(32, 41)], 4], // edited where nothing is left
    [[...span(0, 3), 90, ...span(4, 41)], 3],
    [span(0, 20), 4],
    [[90, ...span(1, 41)], 0],
  ] as const) {
    using cache = cacheOf({ window: 8, sinks: 3 })
    const seq = cache.openSequence()
    for (const token of all) feed(seq, [token])
    t.is(seq.resume(prompt), kept, String(prompt))
    t.is(seq.length, kept)
    feed(seq, prompt.slice(kept))
    t.is(seq.length, prompt.length)
    t.deepEqual(shown(cache, seq).slice(-5), prompt.slice(-5))
    cache.checkInvariants()
  }
})

test('any history is resumed as a list of its tokens says', t => {
  let state = 12345
  const random = (below: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
  using cache = cacheOf({ capacity: 256 })
  const kept: { seq: Sequence; tokens: number[] }[] = [{ seq: cache.openSequence(), tokens: [] }]
  for (let turn = 0; turn < 300; turn++) {
    const at = random(kept.length)
    const { seq, tokens } = kept[at] as (typeof kept)[number]
    const cut = random(tokens.length + 1)
    // Few tokens there are, so that histories meet again behind an edit.
    const prompt = [...tokens.slice(0, cut), ...span(0, 1 + random(9)).map(() => random(3))].slice(0, 60)
    const common = tokens.findIndex((token, place) => token !== prompt[place])
    const expected = Math.min(common < 0 ? tokens.length : common, prompt.length - 1)
    t.is(seq.resume(prompt), expected)
    feed(seq, prompt.slice(expected))
    kept[at] = { seq, tokens: prompt }
    t.deepEqual(shown(cache, seq), prompt)
    if (kept.length < 6 && random(4) === 0) kept.push({ seq: seq.fork(), tokens: prompt })
  }
  cache.checkInvariants()
})

test('what is wrong is refused, and changes nothing', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, span(0, 6))
  for (const tokens of [[1, -1], [0.5], ['1'], 'abc', null, undefined, 3, Float32Array.of(1)])
    throwsCode(t, 'INVALID_ARGUMENT', () => seq.resume(tokens as never))
  {
    using open = seq.begin()
    throwsCode(t, 'TRANSACTION_OPEN', () => seq.resume([0, 1, 9]))
    t.is(open.length, 0)
  }
  t.is(seq.length, 6)
  seq.drop()
  throwsCode(t, 'SEQUENCE_NOT_FOUND', () => seq.resume([0, 1]))
})
