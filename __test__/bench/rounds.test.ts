// The order in which lanes run and what is timed of them, by a clock that the lanes wind themselves.
import test from 'ava'

import { measure, type Contestant } from '../../bench/rounds.js'

function clockwork(): { now: () => number; pass: (milliseconds: number) => void } {
  let time = 0
  return { now: () => time, pass: milliseconds => void (time += milliseconds) }
}

test('lanes run in turn and each round starts with another', t => {
  let seen = ''
  const lane = (name: string): Contestant => ({ name, role: 'ours', operations: 1, round: () => void (seen += name) })
  measure(['a', 'b', 'c'].map(lane), 1, clockwork().now)
  t.is(seen, 'abcbcacababcbcacab')
})

test('a time is per operation, without what is done before and after, and without the first rounds', t => {
  const { now, pass } = clockwork()
  let round = 0
  const lane: Contestant = {
    name: 'clockwork',
    role: 'limit',
    operations: 4,
    before: () => pass(1000),
    round: () => pass(++round),
    after: () => pass(1000),
  }
  const [measured] = measure([lane], 3, now)
  t.is(measured?.name, 'clockwork')
  t.deepEqual(measured?.nanoseconds.map(Math.round), [1_500_000, 1_750_000, 2_000_000])
})

test('a lane that fails ends the run', t => {
  const lane: Contestant = {
    name: 'broken',
    role: 'peer',
    operations: 1,
    round() {
      throw new Error('no room')
    },
  }
  t.throws(() => measure([lane], 1, clockwork().now), { message: /no room/ })
})
