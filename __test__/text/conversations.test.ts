// The memory of conversations: what is found, tenants, the bound.
import test from 'ava'

import { Conversations } from '../../lib/text/conversations.js'
import { Random } from '../support/text/random.js'

const ids = (...all: number[]): Uint32Array => Uint32Array.from(all)

test('the longest start that is known at a place is found', t => {
  const known = new Conversations()
  known.remember('', 'abcdef', ids(1, 2, 3), [
    { text: 2, ids: 1 },
    { text: 6, ids: 3 },
  ])
  t.deepEqual(known.find('', 'abcdefgh', [2, 6, 8]), { length: 6, ids: ids(1, 2, 3) })
  t.deepEqual(known.find('', 'abcdXfgh', [2, 6, 8]), { length: 2, ids: ids(1) })
  t.is(known.find('', 'abcdef', [3, 5]), undefined)
  t.is(known.find('', 'Xbcdef', [2, 6]), undefined)
  t.is(known.find('', 'ab', []), undefined)
})

test('tenants have their own texts, of the same lengths', t => {
  const known = new Conversations()
  known.remember('a', 'text', ids(1), [{ text: 4, ids: 1 }])
  known.remember('b', 'text', ids(2), [{ text: 4, ids: 1 }])
  known.remember('c', 'else', ids(3), [{ text: 4, ids: 1 }])
  t.deepEqual(known.find('a', 'text', [4])?.ids, ids(1))
  t.deepEqual(known.find('b', 'text', [4])?.ids, ids(2))
  t.is(known.find('c', 'text', [4]), undefined)
  t.is(known.find('', 'text', [4]), undefined)
})

test('memory is bounded, and the least recently used is forgotten first', t => {
  const known = new Conversations(10)
  const put = (name: string, count: number): void =>
    known.remember('', name, new Uint32Array(count), [{ text: name.length, ids: count }])
  put('aaaa', 4)
  put('bbbb', 4)
  t.true(known.find('', 'aaaa', [4]) !== undefined)
  put('cccc', 4)
  t.is(known.size, 8)
  t.is(known.find('', 'bbbb', [4]), undefined)
  t.true(known.find('', 'aaaa', [4]) !== undefined)
  put('dddd', 11)
  t.is(known.find('', 'dddd', [4]), undefined)
  t.is(known.size, 8)
})

test('random conversations are those of a memory that keeps everything', t => {
  const random = new Random(9)
  const known = new Conversations()
  const all = new Map<string, Uint32Array>()
  for (let round = 0; round < 2000; round++) {
    const tenant = `${random.below(2)}`
    const text = Array.from({ length: 1 + random.below(8) }, () => 'ab'[random.below(2)]).join('')
    const places = Array.from({ length: text.length }, (_, place) => place + 1)
    const best = places.findLast(place => all.has(tenant + text.slice(0, place)))
    const found = known.find(tenant, text, places)
    t.is(found?.length, best)
    if (best !== undefined) t.deepEqual(found?.ids, all.get(tenant + text.slice(0, best)))
    const given = Uint32Array.from(text, () => random.below(99))
    const at = 1 + random.below(text.length)
    known.remember(tenant, text, given, [{ text: at, ids: at }])
    all.set(tenant + text.slice(0, at), given.slice(0, at))
  }
})
