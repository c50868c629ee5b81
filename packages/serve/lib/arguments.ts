// Checks of arguments. A wrong one is refused with an error of kvtide that names the argument, its value and what was expected, before anything has changed.
import { types } from 'node:util'

import { KvTideError } from 'kvtide'

import { nearest } from './nearest.js'

/** The longest text that is shown. */
const SHOWN_MAX = 80

/** The value itself if it is a number, a boolean or a short text; otherwise its kind. A hidden value may be a secret. */
function described(value: unknown, isHidden: boolean): unknown {
  if (value === undefined || value === null) return value
  if (typeof value === 'object') {
    if (types.isTypedArray(value)) return 'a typed array'
    return isList(value) ? 'an array' : 'an object'
  }
  if (isHidden || typeof value === 'function' || typeof value === 'symbol') return `a ${typeof value}`
  if (typeof value !== 'string') return value
  // JSON has no line breaks. The quotes are not part of the value.
  const line = JSON.stringify(value).slice(1, -1)
  return line.length <= SHOWN_MAX ? line : `${line.slice(0, SHOWN_MAX - 1)}…`
}

/** Returns the error of a wrong argument. With `isHidden`, only the kind of its value is shown. */
export function invalid(
  argument: string,
  value: unknown,
  expected: string,
  { isHidden = false, cause }: { readonly isHidden?: boolean; readonly cause?: unknown } = {},
): KvTideError<'INVALID_ARGUMENT'> {
  const about = described(value, isHidden)
  const shown = typeof value === 'string' && !isHidden ? `"${String(about)}"` : String(about)
  return new KvTideError(
    'INVALID_ARGUMENT',
    `${argument} is ${shown}, expected ${expected}`,
    { argument, value: about, expected },
    cause === undefined ? undefined : { cause },
  )
}

/** True for an object, but not for a revoked proxy: every operation on one throws. */
export function isObject(value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false
  try {
    Array.isArray(value)
    return true
  } catch {
    return false
  }
}

function isList(value: unknown): value is readonly unknown[] {
  return isObject(value) && Array.isArray(value)
}

/** The names of all options of a type. */
export type Names<T> = { readonly [K in keyof Required<T>]: 0 }

/** Reads options, each once, and refuses names that are no option: a misspelled one would be ignored silently. */
export function known<T extends object>(
  argument: string,
  value: unknown,
  names: Names<T>,
): { readonly [K in keyof T]?: unknown } {
  if (!isObject(value)) throw invalid(argument, value, 'an object', { isHidden: typeof value === 'string' })
  const given = value as Readonly<Record<string, unknown>>
  const all = Object.keys(names)
  for (const name of Object.keys(given)) {
    if (Object.hasOwn(names, name) || given[name] === undefined) continue
    const meant = nearest(name, all)
    const expected = meant === undefined ? `one of ${all.join(', ')}` : `${meant}, or another known option`
    const shown = /^[\w$-]{1,80}$/.test(name) ? name : 'a name'
    throw new KvTideError('INVALID_ARGUMENT', `${argument}.${shown} is an unknown option, expected ${expected}`, {
      argument: `${argument}.${shown}`,
      value: 'an unknown option',
      expected,
    })
  }
  return Object.fromEntries(all.map(name => [name, given[name]])) as { readonly [K in keyof T]?: unknown }
}

/** Checks a value unless it is `undefined`. */
export function optional<T>(
  check: (argument: string, value: unknown) => T,
  argument: string,
  value: unknown,
): T | undefined {
  return value === undefined ? undefined : check(argument, value)
}

/** Checks a whole number. */
export const whole =
  (least: number, most: number = Number.MAX_SAFE_INTEGER) =>
  (argument: string, value: unknown): number => {
    if (typeof value === 'number' && Number.isSafeInteger(value) && value >= least && value <= most) return value
    throw invalid(argument, value, `a whole number from ${least} to ${most}`)
  }

/** Checks a time in seconds; `Infinity` is none. */
export function seconds(argument: string, value: unknown): number {
  if (typeof value === 'number' && value > 0) return value
  throw invalid(argument, value, 'seconds, a number above 0')
}

export function flag(argument: string, value: unknown): boolean {
  if (typeof value === 'boolean') return value
  throw invalid(argument, value, 'true or false')
}

export function text(argument: string, value: unknown): string {
  if (typeof value === 'string') return value
  throw invalid(argument, value, 'a string')
}

/** Checks a text that is not empty. */
export function nonEmpty(argument: string, value: unknown): string {
  if (typeof value === 'string' && value !== '') return value
  throw invalid(argument, value, 'a string that is not empty')
}

/** The most entries of a list. */
const ENTRIES_MAX = 2 ** 20

/** Checks the entries of an array. */
export function list<T>(argument: string, value: unknown, check: (argument: string, value: unknown) => T): T[] {
  if (!isList(value)) throw invalid(argument, value, 'an array', { isHidden: true })
  const length = whole(0, ENTRIES_MAX)(`${argument}.length`, value.length)
  return Array.from({ length }, (_, place) => check(`${argument}[${place}]`, value[place]))
}

/** Returns the place of the first text that an earlier place has too, or -1. */
export function repeated(texts: readonly string[]): number {
  const seen = new Set<string>()
  return texts.findIndex(entry => seen.size === seen.add(entry).size)
}

/** Refuses a `this` that is not an object of the class: `isOwn` looks for one of its private fields. */
export function checkThis(self: unknown, isOwn: (value: object) => boolean, expected: string): void {
  if (typeof self !== 'object' || self === null || !isOwn(self)) throw invalid('this', self, expected)
}
