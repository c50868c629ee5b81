// Admission: bounds, fairness among tenants, and what is said to those that are refused.
import { setMaxListeners } from 'node:events'

import test from 'ava'
import fc from 'fast-check'

import { Line, type Place } from '../../packages/serve/lib/admission/line.js'
import type { Refusal } from '../../packages/serve/lib/refusal.js'
import { checkAsync } from '../support/seeded.js'

const never = new AbortController().signal
setMaxListeners(0, never)

/** Bytes of one spot. */
const SPOT = 2 ** 18

/** Lets all promises that are settled be handled. */
const settled = (): Promise<void> => new Promise(resolve => setImmediate(resolve))

/** A client of a line: notes the order in which its requests were admitted or refused. */
class Requests {
  readonly line: Line
  readonly order: string[] = []
  readonly refused = new Map<string, Refusal>()
  readonly places = new Map<string, Place>()

  constructor(line: Line) {
    this.line = line
  }

  ask(name: string, places = 1, signal: AbortSignal = never, bytes = 0): void {
    this.line.admit({ tenant: name.slice(0, 1), places, bytes, signal }).then(
      place => {
        this.order.push(name)
        this.places.set(name, place)
      },
      (error: Refusal) => this.refused.set(name, error),
    )
  }

  async end(name: string): Promise<void> {
    this.places.get(name)?.[Symbol.dispose]()
    await settled()
  }
}

test('places go to the tenant with the fewest running answers, and to its oldest request', async t => {
  const requests = new Requests(new Line(2, 10, 3))
  for (const name of ['a1', 'a2', 'a3', 'a4', 'b1', 'b2', 'c1']) requests.ask(name)
  await settled()
  t.deepEqual(requests.order, ['a1', 'a2'])
  t.deepEqual([requests.line.running, requests.line.waiting], [2, 5])
  for (const name of ['a1', 'a2']) await requests.end(name)
  t.deepEqual(requests.order, ['a1', 'a2', 'b1', 'c1'])
  for (const name of ['b1', 'c1']) await requests.end(name)
  t.deepEqual(requests.order.slice(4), ['a3', 'b2'])
  // The tenant that was served longest ago has two running answers, the other one none.
  const uneven = new Requests(new Line(3, 10, 2))
  for (const name of ['a1', 'a2', 'b1', 'a3', 'b2']) uneven.ask(name)
  await settled()
  await uneven.end('b1')
  t.deepEqual(uneven.order, ['a1', 'a2', 'b1', 'b2'])
})

test('a full line refuses a single tenant with 503, and one of several with 429', async t => {
  const single = new Requests(new Line(1, 1))
  for (const name of ['a1', 'a2', 'a3']) single.ask(name)
  await settled()
  t.deepEqual([single.refused.get('a3')?.status, single.refused.get('a3')?.code], [503, 'overloaded'])
  t.regex(single.refused.get('a3')?.headers['retry-after'] ?? '', /^\d+$/)
  const several = new Requests(new Line(1, 2, 2))
  for (const name of ['a1', 'a2', 'a3', 'a4']) several.ask(name)
  await settled()
  t.deepEqual([several.refused.get('a4')?.status, several.refused.get('a4')?.code], [429, 'rate_limit_exceeded'])
  several.ask('b1')
  await settled()
  t.is(several.refused.get('a3')?.status, 429, 'the newest of the tenant with the most made room')
  t.deepEqual([...several.refused.keys()], ['a4', 'a3'])
  several.ask('c1')
  await settled()
  t.is(several.refused.get('c1')?.status, 503, 'no tenant has two more')
})

test('a request that needs several places waits for them, and is not overtaken for good', async t => {
  const requests = new Requests(new Line(3, 10, 2))
  requests.ask('a1', 2)
  requests.ask('b1', 9)
  requests.ask('a2', 1)
  requests.ask('a3', 1)
  await settled()
  t.deepEqual(requests.order, ['a1'])
  await requests.end('a1')
  t.deepEqual(requests.order, ['a1', 'b1'])
  t.is(requests.line.running, 3)
  await requests.end('b1')
  t.deepEqual(requests.order, ['a1', 'b1', 'a2', 'a3'])
})

test('a client that hangs up leaves the line; a line that closes refuses all that wait', async t => {
  const requests = new Requests(new Line(1, 10))
  const gone = new AbortController()
  requests.ask('a1')
  requests.ask('a2', 1, gone.signal)
  requests.ask('a3')
  gone.abort()
  await settled()
  t.is(requests.line.waiting, 1)
  requests.line.close()
  requests.ask('a4')
  await settled()
  t.deepEqual([requests.refused.get('a3')?.status, requests.refused.get('a4')?.status], [503, 503])
  await requests.end('a1')
  t.deepEqual([requests.line.running, requests.line.waiting, requests.order.length], [0, 0, 1])
})

test('a large request takes several spots of the line, and displaces none in vain', async t => {
  const single = new Requests(new Line(1, 4))
  single.ask('a0')
  single.ask('a1', 1, never, 2 * SPOT + 1)
  single.ask('a2', 1, never, 2 * SPOT)
  await settled()
  t.is(single.refused.get('a2')?.status, 503, 'three of four spots are taken')
  single.ask('a3', 1, never, SPOT)
  await settled()
  t.deepEqual([single.line.waiting, single.refused.size], [2, 1])
  // A request that is larger than the whole line waits alone.
  const alone = new Requests(new Line(1, 2))
  for (const [name, bytes] of [
    ['a0', 0],
    ['a1', 100 * SPOT],
    ['a2', 0],
  ] as const)
    alone.ask(name, 1, never, bytes)
  await settled()
  t.deepEqual([[...alone.refused.keys()], alone.line.waiting], [['a2'], 1])
  const several = new Requests(new Line(1, 8, 2))
  several.ask('a0')
  for (const name of ['a1', 'a2', 'a3', 'a4']) several.ask(name, 1, never, 2 * SPOT)
  several.ask('b1', 1, never, 5 * SPOT)
  await settled()
  t.deepEqual([[...several.refused.keys()], several.line.waiting], [['b1'], 4], 'tenant a would keep too little')
  several.ask('b2', 1, never, 3 * SPOT)
  await settled()
  t.deepEqual([[...several.refused.keys()], several.line.waiting], [['b1', 'a4', 'a3'], 3], 'the newest requests of a')
})

test('for any requests: bounds hold, none is lost, and each is answered once', async t => {
  const step = fc.oneof(
    fc.record({
      kind: fc.constant('ask' as const),
      tenant: fc.constantFrom('a', 'b', 'c'),
      places: fc.integer({ min: 1, max: 5 }),
      spots: fc.integer({ min: 0, max: 7 }),
    }),
    fc.record({ kind: fc.constant('end' as const), which: fc.nat() }),
    fc.record({ kind: fc.constant('leave' as const), which: fc.nat() }),
  )
  await checkAsync(
    t,
    fc.tuple(fc.integer({ min: 1, max: 4 }), fc.nat(5), fc.array(step, { maxLength: 60 })),
    async ([running, waiting, steps]) => {
      const line = new Line(running, waiting, 3)
      const requests = new Requests(line)
      const leaving = new Map<string, AbortController>()
      const ended = new Set<string>()
      const spots = new Map<string, number>()
      let asked = 0
      for (const each of steps) {
        if (each.kind === 'ask') {
          const [name, controller] = [`${each.tenant}${asked}`, new AbortController()]
          asked += 1
          leaving.set(name, controller)
          spots.set(name, Math.max(1, Math.min(each.spots, waiting)))
          requests.ask(name, each.places, controller.signal, each.spots * SPOT)
        } else if (each.kind === 'end') {
          const open = requests.order.filter(name => !ended.has(name))
          const name = open[each.which % Math.max(1, open.length)]
          if (name !== undefined) {
            ended.add(name)
            await requests.end(name)
          }
        } else [...leaving.values()][each.which % Math.max(1, leaving.size)]?.abort(new Error('left'))
        await settled()
        if (line.running > running || line.waiting > waiting) throw new Error('a bound does not hold')
        if (requests.order.length + requests.refused.size + line.waiting !== asked) throw new Error('a request is lost')
        const kept = [...spots].filter(([name]) => !requests.places.has(name) && !requests.refused.has(name))
        if (kept.reduce((sum, [, own]) => sum + own, 0) > waiting) throw new Error('too many spots are taken')
      }
      for (
        let name = requests.order.find(each => !ended.has(each));
        name !== undefined;
        name = requests.order.find(each => !ended.has(each))
      ) {
        ended.add(name)
        await requests.end(name)
      }
      if (line.running + line.waiting !== 0) throw new Error('places are left')
      if (new Set(requests.order).size + requests.refused.size !== asked)
        throw new Error('a request was not answered once')
    },
  )
  t.pass()
})
