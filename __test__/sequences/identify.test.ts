// Sequence.identify: ids of tokens that were appended without.
import test from 'ava'

import { PagedKvCache, type Sequence } from '../../index.js'
import { layered } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const cacheOf = (events = 0): PagedKvCache =>
  new PagedKvCache({ capacity: 64, blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, events })

function feed(seq: Sequence, tokens: readonly number[], known: boolean): void {
  const [k, v] = layered(tokens)
  seq.append({ k, v, ...(known && { tokens }) })
}

test('tokens that are named later are found, and told to routers', t => {
  using cache = cacheOf(16)
  const seq = cache.openSequence()
  feed(seq, span(0, 3), true)
  feed(seq, span(3, 10), false)
  t.is(cache.match(span(0, 20)).length, 0)
  t.is(seq.identify(span(0, 2)), 3, 'fewer than are known changes nothing')
  t.is(seq.identify(span(0, 6)), 6)
  t.is(cache.match(span(0, 20)).length, 4)
  t.is(seq.identify(Uint32Array.from(span(0, 10))), 10)
  t.is(cache.match(span(0, 20)).length, 8)
  t.deepEqual([...cache.indexedKeys().keys].toSorted(), cache.keys(span(0, 10)).toSorted())
  feed(seq, [10, 11], true)
  t.is(cache.match(span(0, 20)).length, 12)
  cache.checkInvariants()
})

test('what others hold is not named over, and what was forgotten stays so', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, span(0, 6), false)
  {
    using fork = seq.fork()
    t.is(seq.identify(span(0, 6)), 0)
    t.is(fork.identify(span(50, 56)), 0)
  }
  t.is(seq.identify(span(0, 6)), 6)
  cache.forgetPrefixes()
  t.is(seq.identify(span(0, 6)), 0)
  t.is(cache.match(span(0, 20)).length, 0)
})

test('ids that cannot be are refused, and change nothing', t => {
  using cache = cacheOf()
  const seq = cache.openSequence()
  feed(seq, span(0, 5), true)
  feed(seq, [5, 6, 7], false)
  throwsCode(t, 'INVALID_ARGUMENT', () => seq.identify([0, 1, 9, 3, 4, 5, 6, 7]), {
    argument: 'tokens',
    value: 9,
    expected: 'the ids of the sequence: another one is known at position 2, or behind it in its window',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => seq.identify(span(0, 9)), {
    argument: 'tokens.length',
    value: 9,
    expected: 'at most 8, the length of the sequence',
  })
  {
    using _ = seq.begin()
    throwsCode(t, 'TRANSACTION_OPEN', () => seq.identify(span(0, 8)))
  }
  t.is(cache.match(span(0, 20)).length, 4)
  t.is(seq.identify(span(0, 8)), 8)
})
