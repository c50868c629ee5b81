// PagedKvCache.admit: room for a prompt and its answer, or what is lacking.
import test from 'ava'

import { PagedKvCache, type Sequence, type UniformCacheOptions } from '../../index.js'
import { layered } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ capacity: 8, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, ...options })

function feed(seq: Sequence, tokens: readonly number[]): void {
  const [k, v] = layered(tokens)
  seq.append({ k, v, tokens })
}

test('who is admitted has room to the end, and its prompt counts once', t => {
  using cache = cacheOf()
  const prompt = span(0, 10)
  const { sequence: one, lacking } = cache.admit(prompt, { answerTokens: 7 })
  t.is(lacking, undefined)
  t.deepEqual([one?.length, one?.capacity, cache.freeCount], [0, 20, 3])
  feed(one as Sequence, prompt)
  for (let turn = 0; turn < 3; turn++) {
    t.deepEqual(cache.admit([...span(0, 8), 90, 91], { answerTokens: 15 }).lacking, {
      group: 0,
      needed: 5,
      free: 3,
      total: 8,
    })
    t.deepEqual(cache.admit([7], { answerTokens: 12, watermark: 3 }).lacking, {
      group: 0,
      needed: 7,
      free: 3,
      total: 8,
    })
  }
  t.deepEqual([cache.sequenceIds().length, cache.freeCount], [1, 3])
  const { sequence: two } = cache.admit([...span(0, 8), 90, 91], { answerTokens: 7 })
  t.is(two?.length, 8, 'what is there is not computed')
  t.is(cache.stats().hitTokens, 8)
  t.is(cache.stats().hitRate, 8 / 20)
  feed(two as Sequence, [90, 91])
  for (const id of span(200, 207)) for (const seq of [one, two]) feed(seq as Sequence, [id])
  t.is(cache.freeCount, 0)
  cache.checkInvariants()
})

const rows = (n: number): { data: Float32Array; shape: number[] } => ({ data: new Float32Array(n), shape: [1, n, 1] })

test('layers with a window take what they have at once', t => {
  const sizes = { numKvHeads: 1, headDim: 1 }
  const model = {
    layers: [
      { kind: 'sliding', window: 8, ...sizes },
      { kind: 'full', ...sizes },
    ],
  } as const
  using cache = new PagedKvCache({ model, blockSize: 4, capacity: [6, 64] })
  t.deepEqual(cache.admit(span(0, 40), { answerTokens: 100 }).lacking, { group: 0, needed: 13, free: 6, total: 6 })
  const { sequence } = cache.admit(span(0, 40), { answerTokens: 100, stepTokens: 8 })
  t.is(sequence?.length, 0)
  const chat = sequence as Sequence
  for (let at = 0; at < 40; at += 8)
    chat.append({
      layers: [
        { k: rows(8), v: rows(8) },
        { k: rows(8), v: rows(8) },
      ],
      tokens: span(at, at + 8),
    })
  for (let at = 40; at < 140; at++)
    chat.append({
      layers: [
        { k: rows(1), v: rows(1) },
        { k: rows(1), v: rows(1) },
      ],
      tokens: [at],
    })
  t.is(chat.length, 140)
  t.deepEqual(cache.admit([1], { answerTokens: 200 }).lacking?.group, 1)
  cache.checkInvariants()
})

test('salt and extras keep prompts apart, as ever', t => {
  using cache = cacheOf({ capacity: 32 })
  feed(cache.openSequence({ salt: 'one' }), span(0, 10))
  t.is(cache.admit(span(0, 12), { salt: 'one' }).sequence?.length, 8)
  t.is(cache.admit(span(0, 12), { salt: 'two' }).sequence?.length, 0)
  t.is(cache.admit([]).sequence?.length, 0)
})

test('what is wrong is refused, and changes nothing', t => {
  using cache = cacheOf()
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.admit([1], { answerTokens: -1 }))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.admit([1], { stepTokens: 0 }))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.admit([1], { partial: true } as never))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.admit(5 as never))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.admit([1], { answerTokens: 2 ** 31 - 1 }))
  t.deepEqual([cache.sequenceIds(), cache.freeCount], [[], 8])
})
