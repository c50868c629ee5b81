import { types } from 'node:util'

import { invalid } from './errors.js'

/** The largest number of tokens, slots, blocks or lengths. */
const COUNT_MAX = 2 ** 31 - 1

export const RANK_MAX = 8

/** A number of tokens, slots or blocks, from `min` to 2^31 - 1. */
export function count(argument: string, value: unknown, min = 0, max: number = COUNT_MAX): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= min && value <= max) return value
  throw invalid(argument, value, `a whole number from ${min} to ${max}`)
}

function isWhole(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0
}

/** A whole number from 0 to 2^53 - 1: an id, an absolute count, a number of bytes. */
export function whole(argument: string, value: unknown): number {
  if (isWhole(value)) return value
  throw invalid(argument, value, `a whole number from 0 to ${Number.MAX_SAFE_INTEGER}`)
}

/** Checks a value unless it was left out. `null` does not count as left out. */
export function optional<T>(check: (argument: string, value: unknown) => T, argument: string, value: unknown): T | undefined {
  return value === undefined ? undefined : check(argument, value)
}

/** A number that a 32-bit float can hold, and that passes `fits`. */
export function float(argument: string, value: unknown, fits: (value: number) => boolean = () => true, expected = 'a finite number'): number {
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

/** An object whose fields are read by name. */
export function fields<T extends object>(argument: string, value: unknown): { readonly [K in keyof T]?: unknown } {
  if (typeof value === 'object' && value !== null && !isRevoked(value)) return value as { readonly [K in keyof T]?: unknown }
  throw invalid(argument, value, 'an object')
}

/** The names of all options of a type. */
export type Names<T> = { readonly [K in keyof Required<T>]: 0 }

/** Options, read by name. An unknown name is refused: a misspelled option would be ignored silently. */
export function known<T extends object>(argument: string, value: unknown, names: Names<T>): { readonly [K in keyof T]?: unknown } {
  const given = fields<T>(argument, value)
  for (const name of Object.keys(given)) {
    if (Object.hasOwn(names, name)) continue
    const unknown = (given as Readonly<Record<string, unknown>>)[name]
    if (unknown !== undefined) throw invalid(`${argument}.${name}`, unknown, `nothing of this name: there are ${Object.keys(names).join(', ')}`)
  }
  return given
}

/** True for a revoked proxy: every operation on one throws. */
function isRevoked(value: object): boolean {
  try {
    Array.isArray(value)
    return false
  } catch {
    return true
  }
}

export function isArray(value: unknown): value is readonly unknown[] {
  return typeof value === 'object' && value !== null && !isRevoked(value) && Array.isArray(value)
}

/** The entries of an array, each read once and checked. A hole is checked as `undefined`. */
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

/** Sizes of a tensor: at most 8 whole numbers, whose product is below 2^53. */
export function sizes(argument: string, value: unknown): number[] {
  if (!isArray(value)) throw invalid(argument, value, 'an array of sizes')
  // Every append runs this: the name of an entry is only built when it is refused.
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

const typedArrays = Object.getPrototypeOf(Uint8Array.prototype) as object

/** A getter of typed arrays of any realm. Own properties of an array cannot shadow it. */
function intrinsic<T>(name: string | symbol): (value: unknown) => T {
  const get = Object.getOwnPropertyDescriptor(typedArrays, name)?.get as (this: unknown) => T
  return value => get.call(value)
}

/** The kind of a typed array; `undefined` for other values. */
export const arrayKind: (value: unknown) => string | undefined = intrinsic(Symbol.toStringTag)

export const arrayLength: (array: ArrayBufferView) => number = intrinsic('length')

const bufferOf = intrinsic<ArrayBufferLike>('buffer')
const offsetOf = intrinsic<number>('byteOffset')
const at = Reflect.get(typedArrays, 'at') as (this: ArrayBufferView, place: number) => unknown

/** True when a typed array has lost its memory: the buffer was detached, or shrunk under it. */
function isGone(array: ArrayBufferView): boolean {
  if (arrayLength(array) > 0) return false
  try {
    at.call(array, 0)
    return false
  } catch {
    return true
  }
}

/** A typed array of one of these kinds, over memory that still exists and that no other thread can change. */
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

/** The same memory, as the bits of half floats. */
export function asBits(array: ArrayBufferView): Uint16Array {
  return new Uint16Array(bufferOf(array) as ArrayBuffer, offsetOf(array), arrayLength(array))
}

/** A time or a duration in whole milliseconds; a fraction is cut off. */
export function milliseconds(argument: string, value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value <= Number.MAX_SAFE_INTEGER) return Math.floor(value)
  throw invalid(argument, value, `milliseconds from 0 to ${Number.MAX_SAFE_INTEGER}`)
}

/** Whole numbers of 32 bits: an `Int32Array` as it is, or a copy of an array. */
export function integers(argument: string, value: unknown): Int32Array {
  if (arrayKind(value) !== undefined) return typedArray(argument, value, ['Int32Array'])
  return Int32Array.from(numbers(argument, value, ['Int32Array'], (name, entry) => count(name, entry, -(2 ** 31))))
}

/** 32-bit floats, each checked: a `Float32Array` as it is, or a copy of an array of numbers. */
export function floats(argument: string, value: unknown, check: (argument: string, value: unknown) => number): Float32Array {
  if (isArray(value)) return Float32Array.from(list(argument, value, check))
  const array = typedArray<Float32Array>(argument, value, ['Float32Array'])
  const length = arrayLength(array)
  for (let place = 0; place < length; place++) check(`${argument}[${place}]`, array[place])
  return array
}

/** A copy of numbers, each checked, from an array or from a typed array of one of these kinds. */
export function numbers(
  argument: string,
  value: unknown,
  kinds: readonly string[],
  check: (argument: string, value: unknown) => number,
): number[] {
  if (isArray(value)) return list(argument, value, check)
  if (arrayKind(value) === undefined) throw invalid(argument, value, `an array of whole numbers, or ${kinds.join(' or ')}`)
  const array = typedArray<Int32Array>(argument, value, kinds)
  const length = arrayLength(array)
  return list(argument, Array.from({ length }, (_, place) => array[place]), check)
}
