import * as kvtide from '../../../index.js'
import * as onnx from '../../../onnx.js'
import type { Kind, Outcome } from './kinds.js'

/** A module whose exports have rows, and the form of its errors. */
export interface Entry {
  readonly module: object
  /** The error of kvtide in what was thrown; `undefined` if there is none. */
  readonly errorOf: (thrown: unknown) => kvtide.AnyKvTideError | undefined
}

/** A parameter: its kind, and a valid value. */
export interface Param {
  readonly name: string
  readonly kind: Kind
  readonly valid: (self: never) => unknown
}

/** One export, or one member of a class, with its parameters. */
export interface Row {
  readonly name: string
  /** Makes a new object to call it on, or a promise of one; `undefined` for functions, static methods and constructors. */
  readonly self: () => unknown
  readonly params: readonly Param[]
  /** The outcome on an object that was disposed of. */
  readonly disposed: Outcome
  /** The outcome on a wrong `this`. */
  readonly foreign: Outcome
  /** The outcome on an object of another class that inherits it from the same base. */
  readonly kin?: Readonly<Record<string, Outcome>>
  /** The module that exports it; `kvtide` or `kvtide/onnx` if it is missing. */
  readonly entry?: Entry
}

/** The error itself, if the sources threw it. */
export const errorOf: Entry['errorOf'] = thrown => (kvtide.isKvTideError(thrown) ? thrown : undefined)

/** The rows of an entry point of the sources, or of another module. */
export const rowsOf = (module: object, rows: readonly Row[], ofError: Entry['errorOf'] = errorOf): readonly Row[] =>
  rows.map(row => ({ ...row, entry: { module, errorOf: ofError } }))

export const param = <T = unknown>(name: string, kind: Kind, valid: (self: T) => unknown): Param => ({
  name,
  kind,
  valid: valid as Param['valid'],
})

/** A function, a static method (`Class.name`), a constructor (`new Class`). */
export const free = (name: string, ...params: Param[]): Row => ({
  name,
  self: () => undefined,
  params,
  disposed: 'ok',
  foreign: 'ok',
})

/** The members of one class. */
export class Members {
  readonly rows: Row[] = []
  readonly #owner: string
  readonly #self: () => object

  constructor(owner: string, self: () => object) {
    this.#owner = owner
    this.#self = self
  }

  /** Names the class that inherits some of these members from the same base, and their outcomes there. */
  kin(other: string, ends: Readonly<Record<string, Outcome>>): this {
    for (const [place, row] of this.rows.entries()) {
      const end = ends[row.name.split('#')[1] as string]
      if (end !== undefined) this.rows[place] = { ...row, kin: { [other]: end } }
    }
    return this
  }

  /** Getters and methods without parameters. */
  plain(...names: string[]): this {
    for (const name of names) this.method(name)
    return this
  }

  method(name: string, ...params: Param[]): this {
    return this.special(name, { disposed: 'DISPOSED', foreign: 'INVALID_ARGUMENT' }, ...params)
  }

  /** A member whose refusals differ from the others'. */
  special(name: string, ends: { disposed: Outcome; foreign: Outcome }, ...params: Param[]): this {
    this.rows.push({ name: `${this.#owner}#${name}`, self: this.#self, params, ...ends })
    return this
  }

  /** The members of every class that holds memory. */
  disposable(): this {
    const ends = { disposed: 'ok', foreign: 'INVALID_ARGUMENT' }
    return this.special('dispose', ends).special('[dispose]', ends)
  }
}

type Callable = (...args: unknown[]) => unknown

/** Returns the call of a row, as a function of `self` and arguments. */
export function callOf({ name, entry }: Row): (self: unknown, args: readonly unknown[]) => unknown {
  const exported = (owner = ''): unknown => Reflect.get(entry?.module ?? (owner in onnx ? onnx : kvtide), owner)
  const made = /^new (\w+)$/.exec(name)
  if (made !== null) return (_, args) => Reflect.construct(exported(made[1]) as Callable, args)
  const [owner, member] = name.split(/[#.]/, 2)
  if (member === undefined) return (_, args) => Reflect.apply(exported(owner) as Callable, undefined, args)
  const home = name.includes('#') ? (exported(owner) as { prototype: object }).prototype : exported(owner)
  const property = descriptor(home as object, member)
  return (self, args) => Reflect.apply((property.get ?? property.value) as Callable, self, args)
}

function descriptor(home: object, member: string): PropertyDescriptor {
  for (let at: object | null = home; at !== null; at = Object.getPrototypeOf(at) as object | null) {
    const key = Reflect.ownKeys(at).find(known => keyName(known) === member)
    if (key !== undefined) return Object.getOwnPropertyDescriptor(at, key) as PropertyDescriptor
  }
  throw new Error(`there is no ${member}`)
}

/** A member's name; symbols in brackets. */
export function keyName(key: string | symbol): string {
  if (typeof key === 'string') return key
  return key === Symbol.dispose ? '[dispose]' : `[${key.description?.split('.').at(-1)}]`
}

/** Lists every export of an entry point, and every member of every class, by the names that rows use. */
export function everything(entry: object = kvtide): string[] {
  return Object.entries(entry as Record<string, unknown>).flatMap(([name, value]) => {
    if (typeof value !== 'function') return []
    if (!Function.prototype.toString.call(value).startsWith('class')) return [name]
    const statics = Reflect.ownKeys(value).filter(key => !['length', 'name', 'prototype'].includes(String(key)))
    return [
      `new ${name}`,
      ...statics.map(key => `${name}.${keyName(key)}`),
      ...members(value.prototype as object).map(member => `${name}#${member}`),
    ]
  })
}

function members(prototype: object): string[] {
  const names = new Set<string>()
  for (
    let at = prototype;
    at !== Object.prototype && at !== Error.prototype;
    at = Object.getPrototypeOf(at) as object
  ) {
    for (const key of Reflect.ownKeys(at)) if (key !== 'constructor') names.add(keyName(key))
  }
  return [...names]
}
