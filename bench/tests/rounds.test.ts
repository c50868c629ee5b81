// The order in which lanes run and what is timed of them, by a clock that the lanes wind themselves.
import test from 'ava'

import { lane, measure, readWaiting, type Clocks } from '../../lib/cli/rounds.js'

interface Clockwork extends Clocks {
  /** So many milliseconds go by, of which this thread has waited so many nanoseconds. */
  readonly pass: (milliseconds: number, waiting?: number) => void
}

function clockwork(): Clockwork {
  let [time, waiting] = [0, 0]
  const pass = (milliseconds: number, nanoseconds = 0): void => {
    time += milliseconds
    waiting += nanoseconds
  }
  return { now: () => time, waited: () => waiting, pass }
}

test('lanes run in turn and each round starts with another', async t => {
  let seen = ''
  await measure(
    ['a', 'b', 'c'].map(name => lane('ours', name, 1, () => void (seen += name))),
    1,
    clockwork(),
  )
  t.is(seen, 'abcbcacababcbcacab')
})

test('a time is per operation, without what is done before and after, and without the first rounds', async t => {
  const clocks = clockwork()
  const { pass } = clocks
  let round = 0
  const timed = lane('limit', 'clockwork', 4, () => pass(++round), {
    before: () => pass(1000),
    after: () => pass(1000),
  })
  const [measured] = await measure([timed], 3, clocks)
  t.is(measured?.name, 'clockwork')
  t.deepEqual(measured?.nanoseconds.map(Math.round), [1_500_000, 1_750_000, 2_000_000])
})

test('what a round waited for a processor is taken off', async t => {
  const clocks = clockwork()
  const crowded = lane('ours', 'crowded', 1, () => clocks.pass(3, 1e6), { before: () => clocks.pass(5, 5e6) })
  t.deepEqual((await measure([crowded], 1, clocks))[0]?.nanoseconds.map(Math.round), [2_000_000])
  t.deepEqual((await measure([{ ...crowded, shared: true }], 1, clocks))[0]?.nanoseconds.map(Math.round), [3_000_000])
})

test('rounds that are promises are waited for, one after the other', async t => {
  const clocks = clockwork()
  let seen = ''
  const waiting = (name: string) =>
    lane('peer', name, 2, async () => {
      seen += name
      await Promise.resolve()
      clocks.pass(4)
      seen += name
    })
  const measured = await measure(['a', 'b'].map(waiting), 1, clocks)
  t.is(seen, 'aabbbbaaaabbbbaaaabbbbaa')
  t.deepEqual(
    measured.map(({ nanoseconds }) => nanoseconds.map(Math.round)),
    [[2_000_000], [2_000_000]],
  )
  t.deepEqual(
    (await measure([lane('peer', 'elsewhere', 2, () => Promise.resolve(600))], 1, clocks))[0]?.nanoseconds,
    [300],
  )
})

test('the second number of three is the waiting', t => {
  t.deepEqual(['1234 567 8\n', '', 'none of it'].map(readWaiting), [567, 0, 0])
})

test('a lane that fails ends the run', async t => {
  const broken = lane('peer', 'broken', 1, () => {
    throw new Error('no room')
  })
  await t.throwsAsync(measure([broken], 1, clockwork()), { message: /no room/ })
})
