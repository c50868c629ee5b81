// What the pools of a PagedKvCache hold, together and group by group: events, counts, room, and whose refusal it is.
import test from 'ava'

import { PagedKvCache, type Sequence } from '../../index.js'
import { HYBRID, layersOf } from '../support/model-rows.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const paged = (more: object = {}): PagedKvCache => new PagedKvCache({ model: HYBRID, blockSize: 4, capacity: 32, ...more })
const feed = (sequence: Sequence, tokens: readonly number[]): void => sequence.append({ layers: layersOf(tokens), tokens })

test('events are those of layers that keep everything', async t => {
  using cache = paged({ events: 64, capacity: [64, 5] })
  const prompt = span(0, 16)
  const first = cache.openSequence()
  feed(first, prompt)
  first.drop()
  feed(cache.openSequence(), span(20, 32))
  t.true(cache.match([...prompt, 99]).length < 16)
  using events = cache.events()
  const types: string[] = []
  for (let count = 0; count < 9; count++) types.push((await events.next()).value?.type ?? 'none')
  t.deepEqual([types.filter(type => type === 'stored').length, types.filter(type => type === 'removed').length], [7, 2])
  t.is(cache.indexedKeys().keys.length, 5)
})

test('prompts are counted once for all groups', t => {
  using cache = paged()
  feed(cache.openSequence(), span(0, 9))
  cache.match(span(0, 16)).dispose()
  const { promptTokens, hitTokens, hitRate, tierBytes, bufferBytes, pools } = cache.stats()
  t.deepEqual([promptTokens, hitTokens, hitRate, tierBytes], [16, 8, 0.5, { cpu: bufferBytes }])
  t.true(pools.length === 2 && pools.every(pool => !('promptTokens' in pool) && !('hitTokens' in pool) && pool.totalBlocks === 32))
  t.deepEqual([cache.stats().totalBlocks, cache.capacity, cache.blockSize], [64, 64, 4])
})

test('a refusal names the group, and the layer', t => {
  using cache = paged({ capacity: [16, 3] })
  const sequence = cache.openSequence()
  const error = throwsCode(t, 'OUT_OF_BLOCKS', () => feed(sequence, span(0, 16)), { needed: 4, free: 3, group: 1 })
  t.is(error.message, '4 blocks are needed in group 1 of the layers, 3 are free')
  const layers = [...layersOf([7])]
  layers[1] = { ...layers[1], v: { data: new Float32Array(2), shape: [1, 1, 2] } } as never
  const wrong = throwsCode(t, 'SHAPE_MISMATCH', () => sequence.append({ layers }))
  t.is((wrong.details as { argument?: string }).argument, 'layers[1].v', wrong.message)
  t.true(wrong.message.startsWith('layers[1].v '))
})

const room = (more: object): PagedKvCache => paged({ capacity: undefined, memoryBytes: 1 << 17, maxSequences: 1, ...more })

test('windows have room for a prompt that is appended at once', t => {
  using cache = room({})
  feed(cache.openSequence(), span(0, 400))
  using small = room({ maxPrefillTokens: 8 })
  t.true((small.stats().pools[0]?.totalBlocks ?? 0) < (cache.stats().pools[0]?.totalBlocks ?? 0))
  throwsCode(t, 'OUT_OF_BLOCKS', () => feed(small.openSequence(), span(0, 400)))
  for (const maxPrefillTokens of [-1, 0.5, null]) throwsCode(t, 'INVALID_ARGUMENT', () => room({ maxPrefillTokens }))
  throwsCode(t, 'INVALID_ARGUMENT', () => paged({ maxPrefillTokens: 4 }), { argument: 'maxPrefillTokens', value: 4, expected: 'none without memoryBytes' })
})
