// The flags of `kvtide-serve`, and their values.
import { readFileSync } from 'node:fs'
import { type ParseArgsConfig, parseArgs } from 'node:util'

import { shown } from '../refusal.js'
import { nearest } from '../nearest.js'

/** A wrong command line: the message, without a stack. */
export class WrongFlag extends Error {}

/** The values of flags. */
export type Flags = Readonly<Record<string, string | boolean | readonly string[] | undefined>>

/** @internal Flags of loading a model, for `serve`, `chat` and `demo`. */
export const MODEL_FLAGS = {
  dtype: { type: 'string' },
  'accuracy-level': { type: 'string' },
  offline: { type: 'boolean' },
  revision: { type: 'string' },
  'cache-folder': { type: 'string' },
  config: { type: 'string' },
  template: { type: 'string' },
  memory: { type: 'string' },
  threads: { type: 'string' },
  backend: { type: 'string' },
  draft: { type: 'boolean' },
} as const

/** @internal Flags of listening, for `serve`, `demo` and `router`. */
export const LISTEN_FLAGS = {
  host: { type: 'string' },
  port: { type: 'string' },
  log: { type: 'boolean' },
  'max-body': { type: 'string' },
  'drain-timeout': { type: 'string' },
} as const

/** @internal Flags of a server. */
export const SERVE_FLAGS = {
  ...MODEL_FLAGS,
  ...LISTEN_FLAGS,
  name: { type: 'string' },
  keys: { type: 'string' },
  'public-prompt': { type: 'string' },
  'max-running': { type: 'string' },
  'max-waiting': { type: 'string' },
  'max-tokens': { type: 'string' },
  timeout: { type: 'string' },
  'first-token-timeout': { type: 'string' },
  'write-timeout': { type: 'string' },
  disk: { type: 'string' },
  'disk-limit': { type: 'string' },
  redis: { type: 'string' },
  events: { type: 'string' },
  'no-inspector': { type: 'boolean' },
} as const

type Options = NonNullable<ParseArgsConfig['options']>

/** Parses a command line. */
export function flagsOf(
  args: readonly string[],
  known: Options,
): { readonly flags: Flags; readonly names: readonly string[] } {
  const options: Options = { ...known, help: { type: 'boolean', short: 'h' } }
  try {
    const { values, positionals } = parseArgs({ args: [...args], options, allowPositionals: true })
    return { flags: values as Flags, names: positionals }
  } catch (error) {
    throw new WrongFlag(mistake(args, options) ?? (error instanceof Error ? error.message : String(error)))
  }
}

/** Returns the first mistake of a command line that `parseArgs` refuses. */
function mistake(args: readonly string[], options: Options): string | undefined {
  const { tokens } = parseArgs({ args: [...args], options, allowPositionals: true, strict: false, tokens: true })
  for (const token of tokens) {
    if (token.kind !== 'option') continue
    const { name, rawName, value, inlineValue: isInline } = token
    if (!Object.hasOwn(options, name)) {
      const meant = nearest(name, Object.keys(options))
      return `unknown option ${rawName.slice(0, 80)}${meant === undefined ? '' : `, did you mean --${meant}?`}`
    }
    if (options[name]?.type === 'boolean') {
      if (value !== undefined) return `${rawName} takes no value, got ${shown(value)}`
    } else if (value === undefined) return `${rawName} needs a value`
    else if (!isInline && value.startsWith('-'))
      return `${rawName} needs a value, got ${shown(value)}: write ${rawName}=${value.slice(0, 80)} if it is one`
  }
  return undefined
}

/** Returns a text, or `undefined`. */
export function text(flags: Flags, name: string): string | undefined {
  const value = flags[name]
  return typeof value === 'string' ? value : undefined
}

/** The reason for which the file system refused a path. */
export function reasonOf(error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException
  return REASONS[code ?? ''] ?? message
}

const REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file',
  EEXIST: 'it is a file',
  EISDIR: 'it is a folder',
  ENOTDIR: 'a part of the path is a file',
  EACCES: 'permission is denied',
  EPERM: 'permission is denied',
  EROFS: 'its file system is read-only',
}

/** Returns the text of the file that a flag names, or `undefined`. */
export function fileText(flags: Flags, name: string): string | undefined {
  const path = text(flags, name)
  if (path === undefined) return undefined
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    throw new WrongFlag(`--${name} must be a file that can be read, got ${shown(path)}: ${reasonOf(error)}`)
  }
}

/** Returns a number from `least` to `most`, or `undefined`. */
export function number(
  flags: Flags,
  name: string,
  least: number,
  isWhole: boolean = false,
  most: number = Infinity,
): number | undefined {
  const value = text(flags, name)
  if (value === undefined) return undefined
  const read = value.trim() === '' ? Number.NaN : Number(value)
  if (read >= least && read <= most && Number.isFinite(read) && (!isWhole || Number.isInteger(read))) return read
  const range = most === Infinity ? `of at least ${least}` : `from ${least} to ${most}`
  throw new WrongFlag(`--${name} must be ${isWhole ? 'a whole number' : 'a number'} ${range}, got ${shown(value)}`)
}

/** Returns the only name of a command line. */
export function only(names: readonly string[], what: string): string {
  const [name, ...others] = names
  if (name !== undefined && others.length === 0) return name
  throw new WrongFlag(`expected ${what}, got ${names.length} names`)
}
