import { VALUES } from './values.js'

/** The outcome of a value: `ok`, an error code, or the name of a JavaScript error. */
export type Outcome = string

/** A kind of parameter: the outcome of every value, and the fields that are read from an object. */
export interface Kind {
  /** Outcomes other than `INVALID_ARGUMENT`. */
  readonly legal: Readonly<Record<string, Outcome>>
  /** Fields with their own kinds. Each is tested in an object whose other fields are valid. */
  readonly fields?: readonly Field[]
  /** The kinds of an array's entries, one for each form. Each entry is tested in an array of its own. */
  readonly entries?: readonly Kind[]
}

export interface Field {
  readonly name: string
  readonly kind: Kind
  /** The rest of the object. */
  readonly rest: () => object
}

export function outcome(kind: Kind, value: string): Outcome {
  return kind.legal[value] ?? 'INVALID_ARGUMENT'
}

/** A kind with more legal values. */
export const but = (kind: Kind, legal: Readonly<Record<string, Outcome>>): Kind => ({
  ...kind,
  legal: { ...kind.legal, ...legal },
})

/** Gives the same outcome to all values for which `pick` returns true. */
export const all = (outcomeOf: Outcome, pick: (value: unknown) => boolean = () => true): Record<string, Outcome> =>
  Object.fromEntries(Object.entries(VALUES).flatMap(([name, value]) => (pick(value) ? [[name, outcomeOf]] : [])))

/** A number of tokens, slots, blocks or layers, from 0 to 2^31 - 1. */
export const count: Kind = { legal: {} }

/** An id or an absolute count, up to 2^53 - 1; `large` is the outcome for numbers too large to exist. */
export const whole = (large: Outcome): Kind => ({ legal: { '2^31': large, '2^32 + 5': large } })

/** A parameter that may be left out. */
export const optional = (kind: Kind): Kind => but(kind, { nothing: 'ok' })

export const text: Kind = { legal: {} }
export const flag: Kind = { legal: { true: 'ok' } }
/** Any value is valid. */
export const anything: Kind = { legal: all('ok') }
/** No value is valid: a constructor that only this package may call. */
export const never: Kind = { legal: {} }

const LIKE_FOUR = { 'an array with a length of its own': 'ok', 'an array of another realm': 'ok' }

/** The elements of a tensor with four elements. */
export const data: Kind = { legal: { ...LIKE_FOUR, 'a Float32Array of 3': 'SHAPE_MISMATCH', 'a Uint8Array': 'ok' } }

/** An array of four floats to write to. */
export const out = (short: Outcome): Kind => ({ legal: { ...LIKE_FOUR, 'a Float32Array of 3': short } })

export const shape: Kind = { legal: { 'an empty array': 'SHAPE_MISMATCH' } }

const host = (): object => ({ data: new Float32Array(4), shape: [1, 1, 2, 2] })

/** All fields that can be wrong in a host tensor. */
const hostFields: readonly Field[] = [
  { name: 'data', kind: but(data, { 'a Uint8Array': 'DTYPE_MISMATCH' }), rest: host },
  { name: 'shape', kind: shape, rest: host },
  { name: 'dims', kind: shape, rest: () => ({ data: new Float32Array(4) }) },
  { name: 'dtype', kind: optional(text), rest: host },
  { name: 'type', kind: optional(text), rest: host },
  { name: 'range', kind: optional(count), rest: host },
  { name: 'layout', kind: optional(text), rest: host },
]

/** `[1, 1, 2, 2]` floats, for a cache with tokens of this shape. */
export const tensor: Kind = {
  legal: {
    'a Tensor of another shape': 'SHAPE_MISMATCH',
    'a Tensor of another dtype': 'DTYPE_MISMATCH',
    'a disposed Tensor': 'DISPOSED',
    'a Tensor that looks like a Snapshot': 'ok',
  },
  fields: hostFields.map(field =>
    field.name === 'shape' || field.name === 'dims'
      ? { ...field, kind: but(field.kind, { nothing: 'INVALID_ARGUMENT' }) }
      : field,
  ),
}

/** One token's key or value: four floats in any shape. */
export const vector: Kind = {
  ...tensor,
  legal: {
    ...tensor.legal,
    ...LIKE_FOUR,
    'a Tensor of another shape': 'DIM_MISMATCH',
    'a Float32Array of 3': 'DIM_MISMATCH',
    'a Float64Array': 'DTYPE_MISMATCH',
    'a Uint16Array': 'DTYPE_MISMATCH',
    'a Uint8Array': 'DTYPE_MISMATCH',
    'a Uint32Array': 'DTYPE_MISMATCH',
    'a BigInt64Array': 'DTYPE_MISMATCH',
    'a detached Int32Array': 'DTYPE_MISMATCH',
  },
}

/** A snapshot of one class. Snapshots of other classes are refused with their own reasons. */
export const snapshot = (owner: string, foreign: Outcome): Kind => ({
  legal: {
    [`a ${owner}`]: foreign,
    [`a disposed ${owner}`]: 'DISPOSED',
    ...(owner === 'Snapshot'
      ? { 'a Snapshot that looks like a Tensor': foreign, 'a Snapshot of a Sequence': foreign }
      : {}),
  },
})

/** An options object, each of whose fields has its own kind. */
export function options(
  rest: () => object,
  fields: Readonly<Record<string, Kind>>,
  legal: Readonly<Record<string, Outcome>> = {},
): Kind {
  return { legal, fields: Object.entries(fields).map(([name, kind]) => ({ name, kind, rest })) }
}

/** True for an object that may have been meant as a snapshot: any object except the empty one that another thread receives. */
function isMeant(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  try {
    return Object.getPrototypeOf(value) !== Object.prototype || Object.keys(value).length > 0
  } catch {
    return false
  }
}

/** A mark of a RollbackCache, which refuses all other objects as marks. */
export const mark = (): Kind => ({
  legal: { ...all('SNAPSHOT_INVALID', isMeant), ...snapshot('RollbackMark', 'SNAPSHOT_INVALID').legal },
})

/** A sequence, by its number or its object. */
export const seq = (large: Outcome): Kind => but(whole(large), { 'a disposed Sequence': 'DISPOSED' })

/** Ids of tokens. */
export const tokenIds: Kind = { legal: { 'an empty array': 'ok', 'a Uint32Array': 'ok', 'a BigInt64Array': 'ok' } }

/** Ids of other tokens, or a wrong number of ids: outcomes of values that are valid as arrays of ids. */
export const otherIds: Readonly<Record<string, Outcome>> = {
  'a Uint32Array': 'INVALID_ARGUMENT',
  'a BigInt64Array': 'INVALID_ARGUMENT',
}

/** The salt and the extras of a prompt. */
export const prompt: Readonly<Record<string, Kind>> = {
  salt: optional({ legal: { '"3"': 'ok', 'a Uint8Array': 'ok' } }),
  saltFrom: optional(count),
  extra: optional({ legal: { 'an empty array': 'ok' } }),
}

/** A duration in milliseconds. */
export const duration: Kind = { legal: { '1.5': 'ok', '2^31': 'ok', '2^32 + 5': 'ok', '2^53': 'ok' } }

/** A number of milliseconds. */
export const milliseconds: Kind = { legal: { '1.5': 'ok', '2^31': 'ok', '2^32 + 5': 'ok' } }
