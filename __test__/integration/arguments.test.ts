// Every export and every member with every wrong value: a coded error, and nothing has changed.
import test from 'ava'

import * as kvtide from '../../index.js'
import { digest } from '../support/arguments/digest.js'
import { outcome, type Kind, type Outcome } from '../support/arguments/kinds.js'
import { callOf, everything, type Param, type Row } from '../support/arguments/row.js'
import { attendRows } from '../support/arguments/rows-attend.js'
import { contiguousRows } from '../support/arguments/rows-contiguous.js'
import { modelRows } from '../support/arguments/rows-model.js'
import { otherRows } from '../support/arguments/rows-others.js'
import { pagedRows } from '../support/arguments/rows-paged.js'
import { VALUES } from '../support/arguments/values.js'

const rows = [...contiguousRows, ...attendRows, ...pagedRows, ...modelRows, ...otherRows]
const { limitBytes } = kvtide.memoryStats()

/** What a call ends in: `ok`, a code, or the name of an error that has none. */
async function ending(call: () => unknown): Promise<Outcome> {
  try {
    await call()
    return 'ok'
  } catch (error) {
    if (!kvtide.isKvTideError(error)) return error instanceof Error ? error.name : `a thrown ${typeof error}`
    const whole = error.message !== '' && typeof error.details === 'object' && error.stack?.startsWith(`KvTideError [${error.code}]: `)
    return whole ? error.code : `an incomplete ${error.code}`
  }
}

/** Runs checks, and keeps what is not as the table says. */
class Checks {
  count = 0
  readonly wrong: string[] = []

  /** One call on `self`, which is as before when it was refused. */
  async call(what: string, self: unknown, expected: Outcome, call: () => unknown): Promise<void> {
    this.count += 1
    const before = digest(self)
    const found = await ending(call)
    if (found !== expected) this.wrong.push(`${what}: ${found}, expected ${expected}`)
    if (found !== 'ok' && digest(self) !== before) this.wrong.push(`${what}: it was refused with ${found}, and has changed something`)
  }
}

/** Every value for one parameter, and for every field that is read of it. */
function* candidates(kind: Kind, what: string): Generator<{ what: string; expected: Outcome; value: unknown }> {
  for (const [name, value] of Object.entries(VALUES)) yield { what: `${what} = ${name}`, expected: outcome(kind, name), value }
  for (const field of kind.fields ?? []) {
    for (const { what: deeper, expected, value } of candidates(field.kind, `${what}.${field.name}`)) {
      yield { what: deeper, expected, value: { ...field.rest(), [field.name]: value } }
    }
  }
}

async function checkParam(checks: Checks, row: Row, place: number, parameter: Param): Promise<void> {
  const run = callOf(row.name)
  let self = row.self()
  for (const { what, expected, value } of candidates(parameter.kind, `${row.name}: ${parameter.name}`)) {
    const args = row.params.map((other, at) => (at === place ? value : other.valid(self as never)))
    await checks.call(what, self, expected, () => run(self, args))
    if (expected === 'ok') self = row.self()
  }
}

test.serial('the table has a row for every export and every member, and no other', async t => {
  // A call that takes arguments of several forms has a row for each.
  t.deepEqual([...new Set(rows.map(row => row.name))].toSorted(), everything().toSorted())
})

test.serial('every row works with the values that it calls right', async t => {
  for (const row of rows) {
    const self = row.self()
    const args = row.params.map(parameter => parameter.valid(self as never))
    t.is(row.name.startsWith('new ') && /Tensor|Snapshot|Mark|Sequence|Step|PrefixMatch/.test(row.name) ? 'INVALID_ARGUMENT' : 'ok', await ending(() => callOf(row.name)(self, args)), row.name)
  }
  kvtide.setMemoryLimit(limitBytes)
})

test.serial('a wrong argument is refused with its code, and nothing has changed', async t => {
  const checks = new Checks()
  for (const row of rows) {
    for (const [place, parameter] of row.params.entries()) await checkParam(checks, row, place, parameter)
  }
  kvtide.setMemoryLimit(limitBytes)
  t.log(`${checks.count} checks`)
  t.deepEqual(checks.wrong, [])
  t.true(checks.count > 5000)
})

test.serial('a missing argument is a wrong one', async t => {
  const checks = new Checks()
  for (const row of rows.filter(({ params, name }) => params.length > 0 && !name.endsWith('KvTideError'))) {
    const self = row.self()
    const optional = row.params.every(({ kind }) => outcome(kind, 'nothing') === 'ok')
    await checks.call(`${row.name} without arguments`, self, optional ? 'ok' : 'INVALID_ARGUMENT', () => callOf(row.name)(self, []))
  }
  t.log(`${checks.count} checks`)
  t.deepEqual(checks.wrong, [])
})

test.serial('a member called on something else is refused', async t => {
  const checks = new Checks()
  const instances = rows.filter(row => row.name.includes('#'))
  const others = Object.fromEntries(instances.map((row): [string, () => unknown] => [row.name.split('#')[0] as string, row.self]))
  for (const row of instances) {
    const [owner] = row.name.split('#') as [string]
    const self = row.self() as object
    const prototype = Object.getPrototypeOf(self) as object
    const strangers: [string, unknown][] = [
      ...Object.entries(others).filter(([name]) => name !== owner).map(([name, make]): [string, unknown] => [`a ${name}`, make()]),
      ...Object.entries(others).filter(([name]) => name !== owner).map(([name, make]): [string, unknown] => [`a ${name} in disguise`, Object.setPrototypeOf(make(), prototype)]),
      ['an object', {}],
      ['its prototype', prototype],
      ['an object that looks like it', Object.create(prototype)],
      ['a proxy of it', new Proxy(self, {})],
      ['a clone of it', structuredClone({ ...self })],
      ['nothing', undefined],
      ['null', null],
      ['a number', 5],
      ['a string', 'KvCache'],
    ]
    for (const [what, stranger] of strangers) {
      const args = row.params.map(parameter => parameter.valid(self as never))
      const [, kin] = Object.entries(row.kin ?? {}).find(([name]) => what.startsWith(`a ${name}`)) ?? []
      // Every object ends in the same way, so that the call of one is that of any other.
      const ends = /#(dispose|\[dispose\])$/.test(row.name) && /^a (?!KvTideError)[A-Z]/.test(what)
      const expected = ends ? 'ok' : row.name === 'KvTideError#toString' && (stranger === null || stranger === undefined) ? 'TypeError' : (kin ?? row.foreign)
      await checks.call(`${row.name} on ${what}`, self, expected, () => callOf(row.name)(stranger, args))
    }
  }
  t.log(`${checks.count} checks`)
  t.deepEqual(checks.wrong, [])
})

test.serial('a member called on an object that was disposed of is refused', async t => {
  const checks = new Checks()
  for (const row of rows.filter(({ name }) => name.includes('#') && !name.startsWith('KvTideError'))) {
    const self = row.self() as Disposable
    const args = row.params.map(parameter => parameter.valid(self as never))
    self[Symbol.dispose]()
    await checks.call(`${row.name} after dispose`, undefined, row.disposed, () => callOf(row.name)(self, args))
  }
  t.log(`${checks.count} checks`)
  t.deepEqual(checks.wrong, [])
})

test.serial('a class called without new throws what the language throws', async t => {
  for (const name of everything().filter(known => known.startsWith('new '))) {
    const [, owner] = name.split(' ') as [string, string]
    const error = t.throws(() => (Reflect.get(kvtide, owner) as () => unknown)(), { instanceOf: TypeError })
    t.false(kvtide.isKvTideError(error))
  }
})

test.serial('nobody else can make an object that passes for one of ours', async t => {
  const base = Object.getPrototypeOf(kvtide.KvCache) as new (...args: unknown[]) => object
  const rotating = Object.getPrototypeOf(kvtide.RotatingCache) as new (...args: unknown[]) => object
  t.is(await ending(() => new base({}, kvtide.KvCache)), 'INVALID_ARGUMENT')
  t.is(await ending(() => new base(Symbol('kvtide'), {}, kvtide.KvCache)), 'INVALID_ARGUMENT')
  t.is(await ending(() => new rotating({}, kvtide.RotatingCache, [{}, {}])), 'INVALID_ARGUMENT')
  t.is(await ending(() => Reflect.construct(base, [{}, kvtide.KvCache], kvtide.KvCache) as object), 'INVALID_ARGUMENT')
  for (const name of everything().filter(known => known.startsWith('new ') && !known.endsWith('Error'))) {
    const [, owner] = name.split(' ') as [string, string]
    const { prototype } = Reflect.get(kvtide, owner) as { prototype: object }
    t.is(await ending(() => Reflect.construct(base, [undefined, {}, prototype.constructor])), 'INVALID_ARGUMENT')
  }
})

test.serial('a class of the user\'s own that extends one of ours works like it', async t => {
  class Mine extends kvtide.KvCache {
    name = 'mine'
  }
  using mine = new Mine({ batchSize: 1, numKvHeads: 1, initialCapacity: 1, maxSeqLen: 2, headDim: 1 })
  t.deepEqual([mine.name, mine.seqLen, mine.maxSeqLen], ['mine', 0, 2])
})

test.serial('every option is read once, also through a proxy', async t => {
  for (const row of rows) {
    for (const [place, { kind, name, valid }] of row.params.entries()) {
      if (kind.fields === undefined || row.name.startsWith('new KvTideError')) continue
      const asked: (string | symbol)[] = []
      const [field] = kind.fields
      const given = new Proxy(field?.rest() ?? {}, {
        get: (target, key) => {
          asked.push(key)
          return Reflect.get(target, key) as unknown
        },
      })
      const self = row.self()
      const args = row.params.map((other, at) => (at === place ? given : other.valid(self as never)))
      t.is(typeof valid, 'function')
      t.is(await ending(() => callOf(row.name)(self, args)), 'ok', `${row.name}: ${name}`)
      t.deepEqual(asked, [...new Set(asked)], `${row.name}: ${name}`)
      t.true(kind.fields.every(known => asked.includes(known.name)), `${row.name}: ${name}`)
    }
  }
})
