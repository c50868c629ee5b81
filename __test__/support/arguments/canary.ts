import { inspect } from 'node:util'

import { isKvTideError } from '../../../index.js'
import type { Kind } from './kinds.js'
import { callOf, type Param, type Row } from './row.js'

/** A secret that no error may show, as text or as bytes. It must not be part of a file name, because stacks contain those. */
const TEXT = 'hunter2q'
const BYTES = [...Buffer.from(TEXT)]
const NUMBER = 27_182_818_284
const SIGNS = [
  TEXT,
  String(NUMBER),
  BYTES.join(', '),
  BYTES.join(','),
  BYTES.map((byte, place) => `"${place}":${byte}`).join(','),
]

class Canary {
  readonly inner = { deep: [TEXT] }
}

/** Values that contain a secret. No error may show it, whatever the option is called. */
const HOLDERS: Readonly<Record<string, () => unknown>> = {
  'an object': () => ({ password: TEXT, secret: { token: TEXT }, url: `redis://me:${TEXT}@host` }),
  'an array': () => [{ salt: TEXT }, [TEXT]],
  bytes: () => Uint8Array.from(BYTES),
  'a function': () => Object.defineProperty(() => void 'hunter2q', 'name', { value: TEXT }),
  'a class': () => Canary,
  'an object of a class': () => new Canary(),
  'a map': () => new Map([[1, { salt: TEXT }]]),
  'an error': () => new Error(TEXT),
  'a URL': () => new URL(`redis://me:${TEXT}@host`),
  'a proxy': () => new Proxy({ secret: TEXT }, {}),
  'an object that shows itself': () => ({ [inspect.custom]: () => TEXT, toString: () => TEXT, toJSON: () => TEXT }),
  'a text with a URL': () => `https://me:${TEXT}@host:1/path`,
  'a text with a query': () => `https://host:1/path?token=${TEXT}&sig=${TEXT}`,
}

/** Values that are a secret themselves: showing them at all reveals it. */
const SECRETS: Readonly<Record<string, () => unknown>> = {
  'a text': () => TEXT,
  'a list': () => [TEXT],
  'a boxed text': () => Object(TEXT) as unknown,
  'a number': () => NUMBER,
  'a large number': () => BigInt(NUMBER),
  'a symbol': () => Symbol(TEXT),
}

/** Names of options that are secrets, in this test's own judgement. */
const isSecret = (name: string): boolean => /^(prefixKey|secret|password|token|credentials|salt|key|roots)$/.test(name)
const isUrl = (name: string): boolean => /^(url|endpoint|replayEndpoint)$/.test(name)

/** Texts that may be mistaken for a URL. */
const URLS = [
  `redis:/me:${TEXT}@host`,
  `redis://:${TEXT}`,
  `me:${TEXT}@host:6379`,
  `${TEXT}`,
  `tcp://me:${TEXT}@host:1`,
  `http://me:${TEXT}@host/`,
  `redis://me:${TEXT}@host:99999`,
  `://${TEXT}@`,
  `s3://me:${TEXT}@bucket/x`,
]

/** Returns misspelt versions of a name. */
function misspelt(name: string): string[] {
  const middle = Math.floor(name.length / 2)
  return [
    name.slice(1),
    `${name}s`,
    name.toUpperCase(),
    `_${name}`,
    `${name}\n`,
    name.slice(0, middle) + name.slice(middle + 1),
    name.slice(0, middle) + (name[middle] as string) + name.slice(middle),
  ].filter(other => other !== name && other !== '')
}

/**
 * Values with a secret for one parameter, and for every field that is read from it. The first argument of a class that only the package creates has no name.
 */
function* canaries({ fields }: Kind, name: string, what: string): Generator<{ what: string; value: unknown }> {
  for (const [holder, make] of Object.entries(HOLDERS)) yield { what: `${what} = ${holder}`, value: make() }
  if (isSecret(name))
    for (const [secret, make] of Object.entries(SECRETS)) yield { what: `${what} = ${secret}`, value: make() }
  if (isUrl(name)) for (const url of URLS) yield { what: `${what} = ${url}`, value: url }
  // A text in place of the options object may itself be one of their secrets.
  if (name === 'options') yield { what: `${what} = a text`, value: TEXT }
  const names = new Set(fields?.map(field => field.name))
  for (const field of fields ?? []) {
    for (const { what: deeper, value } of canaries(field.kind, field.name, `${what}.${field.name}`))
      yield { what: deeper, value: { ...field.rest(), [field.name]: value } }
    for (const other of misspelt(field.name)) {
      if (names.has(other)) continue
      for (const value of [TEXT, NUMBER, { inner: TEXT }])
        yield { what: `${what}.${other}`, value: { ...field.rest(), [other]: value } }
    }
  }
}

/** Everything that an error shows, in any way. */
function shownBy(error: unknown): string {
  const { message, stack, cause } = error as Error
  const details = isKvTideError(error)
    ? [
        inspect(error.details, { depth: 10, showHidden: true }),
        JSON.stringify(error.details, (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value)),
      ]
    : []
  return [
    message,
    stack,
    String(error),
    inspect(error, { depth: 10, showHidden: true }),
    ...details,
    cause === undefined ? '' : shownBy(cause),
  ].join('\n')
}

/** True if an error shows the secret. */
export function shows(error: unknown): boolean {
  const all = shownBy(error)
  return SIGNS.some(sign => all.includes(sign))
}

async function checkParam(row: Row, place: number, parameter: Param, wrong: string[]): Promise<number> {
  const run = callOf(row)
  let [self, count] = [row.self(), 0]
  for (const { what, value } of canaries(
    parameter.kind,
    row.name.startsWith('new ') && parameter.name === 'token' ? '' : parameter.name,
    `${row.name}: ${parameter.name}`,
  )) {
    count += 1
    try {
      await run(
        self,
        row.params.map((other, at) => (at === place ? value : other.valid(self as never))),
      )
      self = row.self()
    } catch (error) {
      if (shows(error)) wrong.push(`${what}: ${(error as Error).message}`)
    }
  }
  return count
}

/** Calls everything with a secret in each option. Returns the number of calls, and those whose error shows the secret. */
export async function canaryCalls(
  rows: readonly Row[],
): Promise<{ readonly count: number; readonly wrong: readonly string[] }> {
  const wrong: string[] = []
  let count = 0
  for (const row of rows.filter(({ name }) => !name.includes('KvTideError'))) {
    for (const [place, parameter] of row.params.entries()) count += await checkParam(row, place, parameter, wrong)
  }
  return { count, wrong }
}
