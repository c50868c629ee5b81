// The border between callers, TypeScript and the addon. Callers may pass anything, so each value is read once, checked and passed on in a form that the
// addon can trust. This file checks arguments; the others of this folder have errors. Native objects (owner) and tensors (host-array, tensor,
// tensor-storage) are in border. A check that fails throws `INVALID_ARGUMENT` before anything has changed. On the hot path checks allocate nothing.
import { types } from 'node:util'

import { invalid, unknownOption } from './errors.js'
import { arrayKind, at, intrinsic } from './intrinsic.js'

/** The maximum number of tokens, slots, blocks or lengths. */
const COUNT_MAX = 2 ** 31 - 1

export const RANK_MAX = 8

/** Checks a number of tokens, slots or blocks, from `min` to 2^31 - 1. */
export function count(argument: string, value: unknown, min = 0, max: number = COUNT_MAX): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= min && value <= max) return value
  throw invalid(argument, value, `a whole number from ${min} to ${max}`)
}

function isWhole(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0
}

/** Checks a whole number from 0 to 2^53 - 1: an id, an absolute count, a number of bytes. */
export function whole(argument: string, value: unknown): number {
  if (isWhole(value)) return value
  throw invalid(argument, value, `a whole number from 0 to ${Number.MAX_SAFE_INTEGER}`)
}

/** Checks a value unless it is `undefined`. `null` does not count as omitted. */
export function optional<T>(
  check: (argument: string, value: unknown) => T,
  argument: string,
  value: unknown,
): T | undefined {
  return value === undefined ? undefined : check(argument, value)
}

/** Checks a number that fits a 32-bit float and passes `fits`. */
export function float(
  argument: string,
  value: unknown,
  fits: (value: number) => boolean = () => true,
  expected = 'a finite number',
): number {
  if (typeof value === 'number' && Number.isFinite(Math.fround(value)) && fits(Math.fround(value))) return value
  throw invalid(argument, value, expected)
}

export function flag(argument: string, value: unknown): boolean {
  if (typeof value === 'boolean') return value
  throw invalid(argument, value, 'true or false')
}

export function text(argument: string, value: unknown): string {
  if (typeof value === 'string') return value
  throw invalid(argument, value, 'a string')
}

/** Checks that a value is an object, whose fields are then read by name. */
export function fields<T extends object>(argument: string, value: unknown): { readonly [K in keyof T]?: unknown } {
  if (isObject(value)) return value as { readonly [K in keyof T]?: unknown }
  // A string in place of options may be one of the secrets in them.
  throw invalid(argument, value, 'an object', typeof value === 'string' || undefined)
}

/** The names of all options of a type. */
export type Names<T> = { readonly [K in keyof Required<T>]: 0 }

/** Checks that options are an object with known names only. Otherwise a misspelled option would be ignored silently. */
export function known<T extends object>(
  argument: string,
  value: unknown,
  names: Names<T>,
): { readonly [K in keyof T]?: unknown } {
  const given = fields<T>(argument, value)
  for (const name of Object.keys(given)) {
    if (Object.hasOwn(names, name) || (given as Readonly<Record<string, unknown>>)[name] === undefined) continue
    throw unknownOption(argument, name, Object.keys(names))
  }
  return given
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

export function isArray(value: unknown): value is readonly unknown[] {
  return isObject(value) && Array.isArray(value)
}

/** Returns the entries of an array, each read once and checked. A hole is checked as `undefined`. */
export function list<T>(
  argument: string,
  value: readonly unknown[],
  check: (argument: string, value: unknown) => T,
  most: number = COUNT_MAX,
): T[] {
  const length = count(`${argument}.length`, value.length, 0, most)
  const entries: T[] = []
  for (let place = 0; place < length; place++) entries.push(check(`${argument}[${place}]`, value[place]))
  return entries
}

/** Checks the sizes of a tensor: at most 8 whole numbers, whose product is below 2^53. */
export function sizes(argument: string, value: unknown): number[] {
  if (!isArray(value)) throw invalid(argument, value, 'an array of sizes')
  // Every append calls this function, so the name of an entry is built only if the entry is refused.
  const length: unknown = value.length
  const rank = isWhole(length) && length <= RANK_MAX ? length : count(`${argument}.length`, length, 0, RANK_MAX)
  const checked: number[] = []
  let product = 1
  for (let place = 0; place < rank; place++) {
    const entry = value[place]
    const size = isWhole(entry) ? entry : whole(`${argument}[${place}]`, entry)
    checked.push(size)
    product *= Math.max(size, 1)
  }
  if (product > Number.MAX_SAFE_INTEGER) throw invalid(argument, value, 'sizes whose product is below 2^53')
  return checked
}

export { arrayKind }

export const arrayLength: (array: ArrayBufferView) => number = intrinsic('length')

const bufferOf = intrinsic<ArrayBufferLike>('buffer')
const offsetOf = intrinsic<number>('byteOffset')

/** True if a typed array has lost its memory: its buffer was detached, or shrunk below the array's start. */
function isGone(array: ArrayBufferView): boolean {
  if (arrayLength(array) > 0) return false
  try {
    at.call(array, 0)
    return false
  } catch {
    return true
  }
}

/** Checks for a typed array of one of these kinds, over memory that still exists and that no other thread can change. */
export function typedArray<T extends ArrayBufferView>(argument: string, value: unknown, kinds: readonly string[]): T {
  const kind = arrayKind(value)
  if (kind === undefined || !kinds.includes(kind)) throw invalid(argument, value, kinds.join(' or '))
  const array = value as T
  if (types.isSharedArrayBuffer(bufferOf(array))) {
    throw invalid(argument, value, 'an array over an ArrayBuffer: a SharedArrayBuffer may change while it is read')
  }
  if (isGone(array)) throw invalid(argument, value, 'an array whose buffer was neither detached nor shrunk')
  return array
}

/** Returns the bits of half floats, over the same memory. */
export function asBits(array: ArrayBufferView): Uint16Array {
  return new Uint16Array(bufferOf(array) as ArrayBuffer, offsetOf(array), arrayLength(array))
}

/** Checks a time or a duration, and rounds it down to whole milliseconds. */
export function milliseconds(argument: string, value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value <= Number.MAX_SAFE_INTEGER) return Math.floor(value)
  throw invalid(argument, value, `milliseconds from 0 to ${Number.MAX_SAFE_INTEGER}`)
}

/** Checks a duration in milliseconds. It may have a fraction. */
export function duration(argument: string, value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value < Infinity) return value
  throw invalid(argument, value, 'milliseconds, 0 or more')
}

/** Checks whole numbers of 32 bits. Returns an `Int32Array` itself, or a copy of an array. */
export function integers(argument: string, value: unknown): Int32Array {
  if (arrayKind(value) !== undefined) return typedArray(argument, value, ['Int32Array'])
  return Int32Array.from(numbers(argument, value, ['Int32Array'], (name, entry) => count(name, entry, -(2 ** 31))))
}

/** Checks 32-bit floats one by one. Returns a `Float32Array` itself, or a copy of an array of numbers. */
export function floats(
  argument: string,
  value: unknown,
  check: (argument: string, value: unknown) => number,
): Float32Array {
  if (isArray(value)) return Float32Array.from(list(argument, value, check))
  const array = typedArray<Float32Array>(argument, value, ['Float32Array'])
  const length = arrayLength(array)
  for (let place = 0; place < length; place++) check(`${argument}[${place}]`, array[place])
  return array
}

/** Returns a copy of the numbers in an array, or in a typed array of one of these kinds, each checked. */
export function numbers(
  argument: string,
  value: unknown,
  kinds: readonly string[],
  check: (argument: string, value: unknown) => number,
): number[] {
  if (isArray(value)) return list(argument, value, check)
  if (arrayKind(value) === undefined)
    throw invalid(argument, value, `an array of whole numbers, or ${kinds.join(' or ')}`)
  const array = typedArray<Int32Array>(argument, value, kinds)
  const length = arrayLength(array)
  return list(
    argument,
    Array.from({ length }, (_, place) => array[place]),
    check,
  )
}
