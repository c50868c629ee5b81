import { VALUES } from './values.js'

/** What a value ends in: a code, `ok`, or the name of an error of the language. */
export type Outcome = string

/** A kind of parameter: what it makes of every value, and the fields that it reads of an object. */
export interface Kind {
  /** What differs from a refusal with `INVALID_ARGUMENT`. */
  readonly legal: Readonly<Record<string, Outcome>>
  /** Fields with a kind of their own, each in an object that is otherwise right. */
  readonly fields?: readonly Field[]
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
export const but = (kind: Kind, legal: Readonly<Record<string, Outcome>>): Kind => ({ ...kind, legal: { ...kind.legal, ...legal } })

/** The same outcome for all values of which `pick` is true. */
export const all = (outcomeOf: Outcome, pick: (value: unknown) => boolean = () => true): Record<string, Outcome> =>
  Object.fromEntries(Object.entries(VALUES).flatMap(([name, value]) => (pick(value) ? [[name, outcomeOf]] : [])))

/** A number of tokens, slots, blocks or layers, from 0 to 2^31 - 1. */
export const count: Kind = { legal: {} }

/** An id or an absolute count, up to 2^53 - 1; `large` is what numbers end in that nothing has. */
export const whole = (large: Outcome): Kind => ({ legal: { '2^31': large, '2^32 + 5': large } })

/** May be left out. */
export const optional = (kind: Kind): Kind => but(kind, { nothing: 'ok' })

export const text: Kind = { legal: {} }
export const flag: Kind = { legal: { true: 'ok' } }
/** Anything goes. */
export const anything: Kind = { legal: all('ok') }
/** Nothing goes: constructors that only this package may call. */
export const never: Kind = { legal: {} }

const LIKE_FOUR = {
  'an array with a length of its own': 'ok',
  'an array of another realm': 'ok',
}

/** The elements of a tensor of four. */
export const data: Kind = { legal: { ...LIKE_FOUR, 'a Float32Array of 3': 'SHAPE_MISMATCH', 'a Uint8Array': 'ok' } }

/** An array of four floats to write to. */
export const out = (short: Outcome): Kind => ({ legal: { ...LIKE_FOUR, 'a Float32Array of 3': short } })

export const shape: Kind = { legal: { 'an empty array': 'SHAPE_MISMATCH' } }

const host = (): object => ({ data: new Float32Array(4), shape: [1, 1, 2, 2] })

/** Everything that can be wrong with memory of the caller's own. */
const hostFields: readonly Field[] = [
  { name: 'data', kind: but(data, { 'a Uint8Array': 'DTYPE_MISMATCH' }), rest: host },
  { name: 'shape', kind: shape, rest: host },
  { name: 'dims', kind: shape, rest: () => ({ data: new Float32Array(4) }) },
  { name: 'dtype', kind: optional(text), rest: host },
  { name: 'type', kind: optional(text), rest: host },
  { name: 'range', kind: optional(count), rest: host },
  { name: 'layout', kind: optional(text), rest: host },
]

/** `[1, 1, 2, 2]` floats for a cache that holds such tokens. */
export const tensor: Kind = {
  legal: {
    'a Tensor of another shape': 'SHAPE_MISMATCH',
    'a Tensor of another dtype': 'DTYPE_MISMATCH',
    'a disposed Tensor': 'DISPOSED',
    'a Tensor that looks like a Snapshot': 'ok',
  },
  fields: hostFields.map(field => (field.name === 'shape' || field.name === 'dims' ? { ...field, kind: but(field.kind, { nothing: 'INVALID_ARGUMENT' }) } : field)),
}

/** One token's key or value, four floats in any shape. */
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

/** A snapshot of one class; those of other caches are refused with their reason. */
export const snapshot = (owner: string, foreign: Outcome): Kind => ({
  legal: {
    [`a ${owner}`]: foreign,
    [`a disposed ${owner}`]: 'DISPOSED',
    ...(owner === 'Snapshot' ? { 'a Snapshot that looks like a Tensor': foreign, 'a Snapshot of a Sequence': foreign } : {}),
  },
})

/** An object of options, each of its own kind. */
export function options(rest: () => object, fields: Readonly<Record<string, Kind>>, legal: Readonly<Record<string, Outcome>> = {}): Kind {
  return { legal, fields: Object.entries(fields).map(([name, kind]) => ({ name, kind, rest })) }
}

/** An object that may have been meant as a snapshot: any but the empty one that another thread receives. */
function isMeant(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  try {
    return Object.getPrototypeOf(value) !== Object.prototype || Object.keys(value).length > 0
  } catch {
    return false
  }
}

/** A mark of a RollbackCache, which refuses all other objects as one. */
export const mark = (): Kind => ({
  legal: { ...all('SNAPSHOT_INVALID', isMeant), ...snapshot('RollbackMark', 'SNAPSHOT_INVALID').legal },
})

/** A sequence of a cache, by its number or its object. */
export const seq = (large: Outcome): Kind => but(whole(large), { 'a disposed Sequence': 'DISPOSED' })

/** Ids of tokens. */
export const tokenIds: Kind = { legal: { 'an empty array': 'ok', 'a Uint32Array': 'ok', 'a BigInt64Array': 'ok' } }

/** Ids of other tokens, or of more or fewer than there are: those that are right as arrays. */
export const otherIds: Readonly<Record<string, Outcome>> = { 'a Uint32Array': 'INVALID_ARGUMENT', 'a BigInt64Array': 'INVALID_ARGUMENT' }

/** Whose tokens a prompt's are. */
export const prompt: Readonly<Record<string, Kind>> = {
  salt: optional({ legal: { '"3"': 'ok', 'a Uint8Array': 'ok' } }),
  saltFrom: optional(count),
  extra: optional({ legal: { 'an empty array': 'ok' } }),
}

/** A number of milliseconds. */
export const milliseconds: Kind = { legal: { '1.5': 'ok', '2^31': 'ok', '2^32 + 5': 'ok' } }
