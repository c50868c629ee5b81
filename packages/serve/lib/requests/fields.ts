// Readers of single fields of a request body: each returns a value of the right kind, or throws an error that names the field.
import { Refusal, shown, wrong } from '../refusal.js'

/** The fields of a JSON object. */
export type Fields = Readonly<Record<string, unknown>>

/** Returns the fields of a value if it is an object and not a list. */
export function record(value: unknown): Fields | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Fields) : undefined
}

/** Returns a field's own value; `undefined` if it is missing or null, which OpenAI treats alike. */
export function given(fields: Fields, name: string): unknown {
  return Object.hasOwn(fields, name) ? (fields[name] ?? undefined) : undefined
}

/** Returns a field that is an object, or `undefined`. */
export function group(fields: Fields, name: string, param: string = name): Fields | undefined {
  const value = given(fields, name)
  if (value === undefined) return undefined
  const found = record(value)
  if (found === undefined) throw wrong(param, value, 'an object')
  return found
}

/** Returns a field that is true or false; false by default. */
export function flag(fields: Fields, name: string, param: string = name): boolean {
  const value = given(fields, name) ?? false
  if (typeof value !== 'boolean') throw wrong(param, value, 'true or false')
  return value
}

/** Returns a field that is a text, or `undefined`. */
export function words(fields: Fields, name: string, param: string = name): string | undefined {
  const value = given(fields, name)
  if (value === undefined) return undefined
  if (typeof value !== 'string') throw wrong(param, value, 'a text')
  if (/\p{Surrogate}/u.test(value)) throw new Refusal(400, `${param} contains half a character`, param, 'invalid_value')
  return value
}

/** The numbers that a field may have. */
export interface Range {
  readonly least?: number
  /** Instead of `least`: more than this. */
  readonly over?: number
  readonly most: number
  readonly whole?: boolean
}

/** Returns a field that is a number within a range, or `undefined`. */
export function number(fields: Fields, name: string, range: Range): number | undefined {
  const value = given(fields, name)
  if (value === undefined) return undefined
  const { least = -Infinity, over = -Infinity, most, whole = false } = range
  const isWithin = typeof value === 'number' && value >= least && value > over && value <= most
  if (isWithin && (!whole || Number.isInteger(value))) return value
  const from = over === -Infinity ? `from ${least} to ${most}` : `over ${over} and at most ${most}`
  throw wrong(name, value, `${whole ? 'an integer' : 'a number'} ${from}`)
}

/** Token ids of every model are below this number. */
const IDS = 2 ** 32

/** True for a token id below `most`. */
export function isId(value: unknown, most: number = IDS): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < most
}

/** Returns the stop texts of a request: one, or a list of at most four. */
export function stops(fields: Fields): readonly string[] {
  const value = given(fields, 'stop')
  if (value === undefined) return []
  const list: readonly unknown[] = Array.isArray(value) ? value : [value]
  if (list.length <= 4 && list.every(text => typeof text === 'string' && text !== '')) return list as string[]
  throw wrong('stop', value, 'a text or up to four of them, none of them empty')
}

/** Returns a field that is a list of token ids, or `undefined`. */
export function ids(fields: Fields, name: string, most: number | undefined): readonly number[] | undefined {
  const value = given(fields, name)
  if (value === undefined) return undefined
  if (Array.isArray(value) && value.length <= 64 && value.every(id => isId(id, most))) return value as number[]
  throw wrong(name, value, `a list of at most 64 token ids${most === undefined ? '' : ` below ${most}`}`)
}

/** Returns `logit_bias`: token ids with numbers from -100 to 100. */
export function bias(fields: Fields, most: number = IDS): Readonly<Record<number, number>> | undefined {
  const found = group(fields, 'logit_bias')
  if (found === undefined) return undefined
  for (const [id, by] of Object.entries(found)) {
    const isKnown = String(Number(id) >>> 0) === id && Number(id) < most
    if (isKnown && typeof by === 'number' && by >= -100 && by <= 100) continue
    throw new Refusal(
      400,
      `logit_bias must map token ids below ${most} to numbers from -100 to 100, got ${shown(by)} for ${shown(id)}`,
      'logit_bias',
      'invalid_value',
    )
  }
  return found as Record<number, number>
}

/** The fields of `T` without those that are undefined. */
export type Defined<T> = { [Name in keyof T]?: Exclude<T[Name], undefined> }

/** Returns the fields that are not undefined. */
export function defined<T extends object>(fields: T): Defined<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Defined<T>
}
