// Drafts from the tokens so far.
import test from 'ava'

import { PromptLookup } from '../../lib/sampling/prompt-lookup.js'
import { throwsCode } from '../support/throws.js'

test('what came before comes again', t => {
  const lookup = new PromptLookup()
  t.deepEqual(lookup.draft(4), [])
  lookup.push([1, 2, 3, 4, 5, 9, 2, 3])
  t.deepEqual([lookup.draft(2), lookup.draft(0)], [[4, 5], []])
  lookup.push(Uint32Array.of(7))
  t.deepEqual(lookup.draft(2), [])
  lookup.push([8, 7, 8, 7])
  t.deepEqual(lookup.draft(5), [8, 7, 8, 7, 8], 'what repeats goes on')
  lookup.dispose()
  throwsCode(t, 'DISPOSED', () => lookup.draft(1))
})

test('a long prompt is taken in piece by piece', t => {
  const lookup = new PromptLookup({ shortest: 1, longest: 2 })
  const tokens = Uint32Array.from({ length: 50_000 }, (_, place) => place)
  lookup.push(tokens)
  tokens.fill(0)
  lookup.push([123])
  let calls = 1
  for (; lookup.draft(2).length === 0; calls++) t.true(calls < 10)
  t.deepEqual(lookup.draft(3), [124, 125, 126])
  t.is(calls, 4)
})

test('lengths that cannot be are refused', t => {
  throwsCode(t, 'INVALID_ARGUMENT', () => new PromptLookup({ shortest: 0 }))
  throwsCode(t, 'INVALID_ARGUMENT', () => new PromptLookup({ shortest: 5, longest: 4 }))
  throwsCode(t, 'INVALID_ARGUMENT', () => new PromptLookup({ longest: 17 }))
})
