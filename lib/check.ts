import { types } from 'node:util'

import { invalid } from './errors.js'

/** The largest number of tokens, slots, blocks or lengths. */
const COUNT_MAX = 2 ** 31 - 1

/** The most dimensions of a tensor. */
export const RANK_MAX = 8

/** A number of tokens, slots or blocks, from `min` to 2^31 - 1. */
export function count(argument: string, value: unknown, min = 0): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= min && value <= COUNT_MAX) return value
  throw invalid(argument, value, `a whole number from ${min} to ${COUNT_MAX}`)
}

/** A whole number from 0 to 2^53 - 1: an id, an absolute count, a number of bytes. */
export function whole(argument: string, value: unknown): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value
  throw invalid(argument, value, `a whole number from 0 to ${Number.MAX_SAFE_INTEGER}`)
}

/** A value that may be left out; `null` is not the same as that. */
export function optional<T>(check: (argument: string, value: unknown) => T, argument: string, value: unknown): T | undefined {
  return value === undefined ? undefined : check(argument, value)
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
  if (typeof value === 'object' && value !== null) return value as { readonly [K in keyof T]?: unknown }
  throw invalid(argument, value, 'an object')
}

/** Sizes of a tensor: whole numbers, at most 8 of them. */
export function sizes(argument: string, value: unknown): number[] {
  if (!Array.isArray(value)) throw invalid(argument, value, 'an array of sizes')
  if (value.length > RANK_MAX) throw invalid(argument, value, `at most ${RANK_MAX} sizes`)
  return Array.from(value, (size, axis) => whole(`${argument}[${axis}]`, size))
}

const kindOf = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag)?.get as (
  this: unknown,
) => string | undefined

/** The kind of a typed array, of whichever realm; nothing for other values. */
export function arrayKind(value: unknown): string | undefined {
  return kindOf.call(value)
}

/** A typed array of one of these kinds, over memory that no other thread can change. */
export function typedArray<T extends ArrayBufferView>(argument: string, value: unknown, kinds: readonly string[]): T {
  const kind = arrayKind(value)
  if (kind === undefined || !kinds.includes(kind)) throw invalid(argument, value, kinds.join(' or '))
  const array = value as T
  if (types.isSharedArrayBuffer(array.buffer)) {
    throw invalid(argument, value, 'an array over an ArrayBuffer: a SharedArrayBuffer may change while it is read')
  }
  return array
}

/** Whole numbers as an `Int32Array`, given as one or as an array. */
export function int32Array(argument: string, value: unknown, min: number): Int32Array {
  if (arrayKind(value) === 'Int32Array') return typedArray<Int32Array>(argument, value, ['Int32Array'])
  if (!Array.isArray(value)) throw invalid(argument, value, 'an Int32Array or an array of whole numbers')
  return Int32Array.from(value, (entry, place) => {
    if (typeof entry === 'number' && Number.isInteger(entry) && entry >= min && entry <= COUNT_MAX) return entry
    throw invalid(`${argument}[${place}]`, entry, `a whole number from ${min} to ${COUNT_MAX}`)
  })
}
