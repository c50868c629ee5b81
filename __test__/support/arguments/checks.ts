import { inspect } from 'node:util'

import type { ExecutionContext } from 'ava'

import { digest } from './digest.js'
import { outcome, type Kind, type Outcome } from './kinds.js'
import { callOf, errorOf, type Param, type Row } from './row.js'
import { VALUES } from './values.js'

/** The outcome of a call: `ok`, an error code, or the name of an error without a code. */
export async function ending(call: () => unknown, row?: Row): Promise<Outcome> {
  try {
    await call()
    return 'ok'
  } catch (thrown) {
    const error = (row?.entry?.errorOf ?? errorOf)(thrown)
    if (error === undefined) return thrown instanceof Error ? thrown.name : `a thrown ${typeof thrown}`
    const whole =
      error.message !== '' &&
      typeof error.details === 'object' &&
      error.stack?.startsWith(`KvTideError [${error.code}]: `)
    const { value } = error.details as { readonly value?: unknown }
    const line = inspect(value, { breakLength: Infinity })
    if (
      line.length > 300 ||
      /\n/.test(line) ||
      (typeof value === 'object' && value !== null && !Array.isArray(value)) ||
      typeof value === 'function'
    )
      return `${error.code} with a value of more than a line`
    return whole ? error.code : `an incomplete ${error.code}`
  }
}

/** Runs checks, and records every result that differs from the table. */
export class Checks {
  count = 0
  readonly wrong: string[] = []

  /** Checks one call on `self`, and that a refused call leaves `self` unchanged. */
  async call(row: Row, what: string, self: unknown, expected: Outcome, call: () => unknown): Promise<void> {
    this.count += 1
    const before = digest(self)
    let made: unknown
    const found = await ending(async () => (made = await call()), row)
    // Models with caches of the default size: the garbage collector frees them too late.
    if (row.name.endsWith('.of')) (made as Partial<Disposable> | undefined)?.[Symbol.dispose]?.()
    if (found !== expected) this.wrong.push(`${what}: ${found}, expected ${expected}`)
    if (found !== 'ok' && digest(self) !== before)
      this.wrong.push(`${what}: it was refused with ${found}, and has changed something`)
  }
}

/** Every value for one parameter, and for every field that is read from it. */
function* candidates(kind: Kind, what: string): Generator<{ what: string; expected: Outcome; value: unknown }> {
  for (const [name, value] of Object.entries(VALUES))
    yield { what: `${what} = ${name}`, expected: outcome(kind, name), value }
  for (const field of kind.fields ?? []) {
    for (const { what: deeper, expected, value } of candidates(field.kind, `${what}.${field.name}`)) {
      yield { what: deeper, expected, value: { ...field.rest(), [field.name]: value } }
    }
  }
  for (const entry of kind.entries ?? []) {
    for (const { what: deeper, expected, value } of candidates(entry, `${what}[0]`))
      yield { what: deeper, expected, value: [value] }
  }
}

async function checkParam(checks: Checks, row: Row, place: number, parameter: Param): Promise<void> {
  const run = callOf(row)
  let self = await row.self()
  for (const { what, expected, value } of candidates(parameter.kind, `${row.name}: ${parameter.name}`)) {
    const args = row.params.map((other, at) => (at === place ? value : other.valid(self as never)))
    await checks.call(row, what, self, expected, () => run(self, args))
    if (expected === 'ok') self = await row.self()
  }
}

/** Checks that no result differs from the table. */
export function passed(t: ExecutionContext, { count, wrong }: Checks): void {
  t.log(`${count} checks`)
  t.deepEqual(wrong, [])
}

/** Checks that every row works with the values that it calls right, apart from the constructors that only the package may call. */
export async function works(
  t: ExecutionContext,
  rows: readonly Row[],
  isRefused: (name: string) => boolean,
): Promise<void> {
  for (const row of rows) {
    const self = await row.self()
    const args = row.params.map(parameter => parameter.valid(self as never))
    const found = await ending(() => callOf(row)(self, args), row)
    t.is(found, isRefused(row.name) ? 'INVALID_ARGUMENT' : 'ok', row.name)
  }
}

/** Calls everything with every wrong value for every parameter. */
export async function wrongArguments(rows: readonly Row[]): Promise<Checks> {
  const checks = new Checks()
  for (const row of rows) {
    for (const [place, parameter] of row.params.entries()) await checkParam(checks, row, place, parameter)
  }
  return checks
}

/** Calls everything without arguments. */
export async function missingArguments(rows: readonly Row[]): Promise<Checks> {
  const checks = new Checks()
  for (const row of rows.filter(({ params, name }) => params.length > 0 && !name.endsWith('KvTideError'))) {
    const self = await row.self()
    const optional = row.params.every(({ kind }) => outcome(kind, 'nothing') === 'ok')
    await checks.call(row, `${row.name} without arguments`, self, optional ? 'ok' : 'INVALID_ARGUMENT', () =>
      callOf(row)(self, []),
    )
  }
  return checks
}

/** A copy of an object's own fields, without those that cannot be cloned. */
function cloneOf(self: object): object {
  try {
    return structuredClone({ ...self })
  } catch {
    return { ...self }
  }
}

/** Calls every member on a wrong `this`. With `haveOneBase`, all objects inherit `dispose` from the same base class. */
export async function strangeThis(rows: readonly Row[], haveOneBase = true): Promise<Checks> {
  const checks = new Checks()
  const instances = rows.filter(row => row.name.includes('#'))
  const others = Object.fromEntries(
    instances.map((row): [string, () => unknown] => [row.name.split('#')[0] as string, row.self]),
  )
  for (const row of instances) {
    const [owner] = row.name.split('#') as [string]
    const self = (await row.self()) as object
    const prototype = Object.getPrototypeOf(self) as object
    const strangers: [string, unknown][] = []
    for (const [name, make] of Object.entries(others).filter(([known]) => known !== owner)) {
      strangers.push([`a ${name}`, await make()])
      strangers.push([`a ${name} in disguise`, Object.setPrototypeOf(await make(), prototype)])
    }
    strangers.push(
      ['an object', {}],
      ['its prototype', prototype],
      ['an object that looks like it', Object.create(prototype)],
      ['a proxy of it', new Proxy(self, {})],
      ['a clone of it', cloneOf(self)],
      ['nothing', undefined],
      ['null', null],
      ['a number', 5],
      ['a string', 'KvCache'],
    )
    for (const [what, stranger] of strangers) {
      const args = row.params.map(parameter => parameter.valid(self as never))
      const [, kin] = Object.entries(row.kin ?? {}).find(([name]) => what.startsWith(`a ${name}`)) ?? []
      // All objects have the same `dispose`, so calling that of one class on an object of another works.
      const ends = haveOneBase && /#(dispose|\[dispose\])$/.test(row.name) && /^a (?!KvTideError)[A-Z]/.test(what)
      const expected = ends
        ? 'ok'
        : row.name === 'KvTideError#toString' && (stranger === null || stranger === undefined)
          ? 'TypeError'
          : (kin ?? row.foreign)
      await checks.call(row, `${row.name} on ${what}`, self, expected, () => callOf(row)(stranger, args))
    }
  }
  return checks
}

/** Calls every member on an object that was disposed of. */
export async function disposedThis(rows: readonly Row[]): Promise<Checks> {
  const checks = new Checks()
  for (const row of rows.filter(({ name }) => name.includes('#') && !name.startsWith('KvTideError'))) {
    const self = (await row.self()) as Disposable
    const args = row.params.map(parameter => parameter.valid(self as never))
    // A vocabulary has nothing to dispose of.
    ;(self as Partial<Disposable>)[Symbol.dispose]?.()
    await checks.call(row, `${row.name} after dispose`, undefined, row.disposed, () => callOf(row)(self, args))
  }
  return checks
}

/** Checks that every option is read exactly once, also through a proxy. */
export async function readOnce(t: ExecutionContext, rows: readonly Row[]): Promise<void> {
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
      const self = await row.self()
      const args = row.params.map((other, at) => (at === place ? given : other.valid(self as never)))
      t.is(typeof valid, 'function')
      t.is(await ending(() => callOf(row)(self, args), row), 'ok', `${row.name}: ${name}`)
      t.deepEqual(asked, [...new Set(asked)], `${row.name}: ${name}`)
      t.true(
        kind.fields.every(known => asked.includes(known.name)),
        `${row.name}: ${name}`,
      )
    }
  }
}
