// A salt that begins behind a start that all tenants share.
import test from 'ava'

import { PagedKvCache, PrefixNamer, type PromptOptions } from '../../index.js'
import { layered } from '../support/layered.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'

const OPTIONS = { blockSize: 4, numLayers: 2, numKvHeads: 2, headDim: 1, prefixKey: new Uint8Array(32).fill(5) }

function fed(cache: PagedKvCache, tokens: readonly number[], prompt: PromptOptions): void {
  using prefix = cache.match(tokens, prompt)
  const { length } = prefix
  using seq = cache.openSequence({ prefix })
  const [k, v] = layered(tokens.slice(length))
  seq.append({ k, v, tokens: tokens.slice(length) })
}

test('the start is found by all, and what follows by its tenant alone', t => {
  using cache = new PagedKvCache({ ...OPTIONS, capacity: 64 })
  const system = span(0, 10)
  const of = (salt: string): PromptOptions => ({ salt, saltFrom: system.length })
  fed(cache, [...system, ...span(50, 60)], of('one'))
  t.is(cache.match([...system, ...span(50, 61)], of('one')).length, 20)
  // The block with the first token of the tenant's own is the tenant's.
  t.is(cache.match([...system, ...span(50, 61)], of('two')).length, 8)
  t.is(cache.match([...system, ...span(50, 61)]).length, 8)
  t.is(
    cache.match([...system, ...span(50, 61)], { salt: 'one' }).length,
    0,
    'a salt from the first token on is another one',
  )
  t.is(cache.match([...system, ...span(50, 61)], { salt: 'one', saltFrom: 8 }).length, 8)
  t.deepEqual(cache.explain([...system, ...span(50, 61)], of('two')).missing, { block: 2, reason: 'other-salt' })
  fed(cache, [...system, ...span(50, 60)], of('two'))
  t.is(cache.match([...system, ...span(50, 61)], of('two')).length, 20)
  t.is(cache.admit([...system, 1], of('three')).sequence?.length, 8)
  cache.checkInvariants()
})

test('a salt is no extra that another user could name', t => {
  using namer = new PrefixNamer(OPTIONS)
  const tokens = span(0, 12)
  const names = namer.keys(tokens, { salt: 'one', saltFrom: 4 })
  t.is(names[0], namer.keys(tokens)[0])
  const key = new TextEncoder().encode('one')
  for (const other of [
    { salt: 'two', saltFrom: 4 },
    { salt: 'one', saltFrom: 5 },
    { salt: 'one' },
    { extra: [{ start: 4, end: 2 ** 31 - 1, key }] },
    {},
  ]) {
    t.not(namer.keys(tokens, other)[1], names[1])
  }
  t.deepEqual(namer.keys(tokens, { salt: 'one', saltFrom: 0 }), namer.keys(tokens, { salt: 'one' }))
  const extra = [{ start: 0, end: 2, key }]
  t.not(namer.keys(tokens, { salt: 'one', saltFrom: 4, extra })[0], names[0])
})

test('sequences take what is theirs alone', t => {
  using cache = new PagedKvCache({ ...OPTIONS, capacity: 64 })
  const [one, two] = [
    cache.openSequence({ salt: 'one', saltFrom: 4 }),
    cache.openSequence({ salt: 'two', saltFrom: 4 }),
  ]
  throwsCode(t, 'SNAPSHOT_INVALID', () => two.restore(one.snapshot()))
  one.restore(cache.openSequence({ salt: 'one', saltFrom: 4 }).snapshot())
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.openSequence({ saltFrom: 4 }), {
    argument: 'saltFrom',
    value: 4,
    expected: 'no saltFrom without a salt',
  })
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.match([1], { salt: '', saltFrom: 4 }))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.openSequence({ prefix: cache.match([1]), saltFrom: 4 }))
  throwsCode(t, 'INVALID_ARGUMENT', () => cache.canAllocate(4, { saltFrom: 4 } as never))
})
