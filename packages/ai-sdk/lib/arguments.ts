// Checks of arguments. A wrong one is refused with the error class of the AI SDK, whose cause is an error of kvtide with the argument, its value and what was
// expected.
import { InvalidArgumentError, InvalidPromptError } from '@ai-sdk/provider'
import { KvTideError } from 'kvtide'

/** Passed to constructors that only this package may call. */
export const INTERNAL: unique symbol = Symbol('kvtide-ai-sdk')

/** A number or a boolean itself; for anything else its kind, because it may be a prompt or a secret. */
function described(value: unknown): unknown {
  if (value === undefined || value === null || typeof value === 'number' || typeof value === 'boolean') return value
  if (typeof value === 'object') return isList(value) ? 'an array' : 'an object'
  return `a ${typeof value}`
}

function refused(argument: string, value: unknown, expected: string): KvTideError {
  const about = described(value)
  const message = `${argument} is ${String(about)}, expected ${expected}`
  return new KvTideError('INVALID_ARGUMENT', message, { argument, value: about, expected })
}

/** Returns the error of a wrong argument. */
export function invalid(argument: string, value: unknown, expected: string): InvalidArgumentError {
  const cause = refused(argument, value, expected)
  return new InvalidArgumentError({ argument, message: cause.message, cause })
}

/** Returns the error of a wrong part of a prompt. */
export function invalidPrompt(prompt: unknown, argument: string, value: unknown, expected: string): InvalidPromptError {
  const cause = refused(argument, value, expected)
  return new InvalidPromptError({ prompt, message: cause.message, cause })
}

/** Returns the error of a name that is no option or setting: a mistyped one would be ignored silently. */
function unknownName(argument: string, name: string, kind: string, names: readonly string[]): InvalidArgumentError {
  const shown = /^[\w$-]{1,80}$/.test(name) ? name : '…'
  const message = `${argument}: unknown ${kind} '${shown}'; the ${kind}s are ${names.join(', ')}`
  const details = {
    argument: `${argument}.${shown}`,
    value: `an unknown ${kind}`,
    expected: `one of ${names.join(', ')}`,
  }
  return new InvalidArgumentError({ argument, message, cause: new KvTideError('INVALID_ARGUMENT', message, details) })
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

/** The most entries of a list. Reading all of a longer one could take hours. */
const ENTRIES_MAX = 2 ** 20

/** True for an array of at most a million entries. */
export function isList(value: unknown): value is readonly unknown[] {
  return isObject(value) && Array.isArray(value) && value.length <= ENTRIES_MAX
}

/** Copies an object whose names are all known, each field read once. */
export function known(argument: string, value: unknown, names: object, kind: string): Record<string, unknown> {
  if (!isObject(value)) throw invalid(argument, value, `an object of ${kind}s`)
  const given = { ...value } as Record<string, unknown>
  const wrong = Object.keys(given).find(name => !Object.hasOwn(names, name) && given[name] !== undefined)
  if (wrong !== undefined) throw unknownName(argument, wrong, kind, Object.keys(names))
  return given
}

/** Checks an object with a type of this list. */
export function typed(argument: string, value: unknown, types: readonly string[]): void {
  if (value === undefined) return
  if (!isObject(value)) throw invalid(argument, value, `an object of the type ${types.join(', ')}`)
  const { type } = value as { readonly type?: unknown }
  if (!types.includes(type as string)) throw invalid(`${argument}.type`, type, types.join(', '))
}
