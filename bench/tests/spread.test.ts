// Medians and spreads.
import test from 'ava'

import { ratioOf, spreadOf } from '../../lib/cli/spread.js'

test('the spread does not depend on the order', t => {
  t.deepEqual(spreadOf([5, 1, 3, 2, 4, 6, 7, 8, 9, 10, 0]), { median: 5, p10: 1, p90: 9 })
})

test('between two numbers it is interpolated', t => {
  const { median, p10, p90 } = spreadOf([10, 20])
  t.is(median, 15)
  t.true(Math.abs(p10 - 11) < 1e-9 && Math.abs(p90 - 19) < 1e-9)
})

test('one round is its own median, and none is refused', t => {
  t.deepEqual(spreadOf([7]), { median: 7, p10: 7, p90: 7 })
  t.throws(() => spreadOf([]), { instanceOf: RangeError })
})

test('the numbers given stay as they are', t => {
  const values = [3, 1, 2]
  spreadOf(values)
  t.deepEqual(values, [3, 1, 2])
})

test('a ratio is of medians and spreads over rounds', t => {
  // A slow moment that hits both sides of a round leaves the spread alone.
  t.deepEqual(ratioOf([20, 20, 2000], [10, 10, 1000]), { median: 2, p10: 2, p90: 2 })
  // One that hits one side alone shows in the spread, not in the ratio.
  const { median, p90 } = ratioOf([20, 20, 2000], [10, 10, 10])
  t.is(median, 2)
  t.true(p90 > 100)
  t.throws(() => ratioOf([1], [1, 2]), { instanceOf: RangeError })
})
