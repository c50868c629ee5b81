// Formats values for errors: always one short line, and never a secret. A secret is recognised by the name of its option, anywhere in the path of an
// argument (`tiers.store.secret`, `prefixKey[3]`). A URL is shown without its user and the values of its query. Formatting never throws, for any value.
import { types } from 'node:util'

import { arrayKind, intrinsic } from './intrinsic.js'

/** The maximum number of characters of a text, a name or an option's value. */
const SHOWN_MAX = 80
/** The maximum number of characters of a message from outside this package. */
const MESSAGE_MAX = 4000

/** Names whose values are never shown, in lower case letters and digits. `roots` are certificates, but a private key may be passed by mistake. */
const SECRETS =
  /^(?:salt|roots)$|secret|passw|passphrase|^pwd$|^pass$|credential|authorization|bearer|cookie|token$|signature$|(?:api|access|account|prefix|private|shared|storage)key/
/** Names of options that take a URL. If the value is not a URL, any part of it may be a password. */
const URLS = /ur[li]s?$|endpoint$/
/** The user and password of a URL: everything before the last `@`, up to the next space. */
const USER = /([a-z][a-z\d+.-]{1,30}:\/*)[^\s"'`<>]*@/gi
/** The values of a query. */
const QUERY = /([?&][\w.~-]+=)[^\s&#"'`<>]+/g
/** Characters that end a line or change how the rest of it is printed. */
// oxlint-disable-next-line no-control-regex
const UNPRINTED = /[\u0000-\u001F\u007F-\u009F\u2028\u2029\u202A-\u202E\u2066-\u2069]|\p{Surrogate}/gu

const HIDDEN = '(not shown)'

const plainName = (name: string): string => name.toLowerCase().replaceAll(/[^a-z\d]/g, '')

/** The names of a path: `tiers.store.secret`, `prefixKey[3]`. */
const namesOf = (argument: string): string[] =>
  argument.split('.').map(name => plainName(name.replaceAll(/\[\d+\]/g, '')))

/** @internal True for an argument whose value is a secret. */
export function isSecret(argument: string): boolean {
  const names = namesOf(argument)
  // Tensors may also have names that begin with `key`, so only the last name is compared with it.
  return names.at(-1) === 'key' || names.some(name => SECRETS.test(name))
}

/** @internal Removes users, passwords and query values from the URLs in a text, and cuts the text to the maximum length of a message. */
export function withoutCredentials(text: string): string {
  const head = text.length > MESSAGE_MAX ? `${text.slice(0, MESSAGE_MAX)}…` : text
  return head.replaceAll(USER, '$1…@').replaceAll(QUERY, '$1…')
}

/** @internal A text as one line of at most `most` characters, without credentials. */
export function line(text: string, most = SHOWN_MAX): string {
  // Only this much of the text is looked at, so that a very long text does not take long.
  const head = withoutCredentials(text.slice(0, 4 * most))
  const cut = head.length > most || text.length > 4 * most ? `${head.slice(0, most)}…` : head
  return cut.replaceAll(UNPRINTED, escaped)
}

function escaped(character: string): string {
  const [, short = ''] = /^"(.{2,})"$/.exec(JSON.stringify(character)) ?? []
  return short === '' ? `\\u${(character.codePointAt(0) as number).toString(16).padStart(4, '0')}` : short
}

/** The value of an option that takes a URL, as the URL's host and path; `undefined` if it is not a URL. */
function urlLine(text: string): string | undefined {
  // Without a host it is not the intended URL, and its path may be a password.
  const url = /^[a-z][a-z\d+.-]*:\/\//i.test(text) && URL.canParse(text) ? new URL(text) : undefined
  if (url !== undefined)
    return line(
      `${url.protocol}//${url.username + url.password === '' ? '' : '…@'}${url.host}${url.pathname}${url.search === '' ? '' : '?…'}`,
    )
  return /^[\w.-]+(?::\d+)?$/.test(text) && /[.:]/.test(text) ? line(text) : undefined
}

const byteLength: (array: unknown) => number = intrinsic('byteLength')

/** The kind and the size of a value, without its content. */
function kindOf(value: unknown): string {
  switch (typeof value) {
    case 'function':
      return 'a function'
    case 'object':
      return value === null ? 'null' : kindOfObject(value)
    case 'undefined':
      return 'undefined'
    default:
      return `a ${typeof value}`
  }
}

function kindOfObject(value: object): string {
  const kind = arrayKind(value)
  if (kind !== undefined) return `${kind} of ${byteLength(value)} bytes`
  if (types.isPromise(value)) return 'a promise'
  try {
    if (Array.isArray(value)) return types.isProxy(value) ? 'an array' : `an array of ${value.length}`
  } catch {
    // A revoked proxy.
  }
  return 'an object'
}

/** @internal A value for `details`: a number, a boolean or a short text itself; for anything else its kind, in one line. */
export function described(argument: string, value: unknown, isHidden: boolean): unknown {
  if (value === undefined || value === null) return value
  if (isHidden) return `${kindOf(value)} ${HIDDEN}`
  switch (typeof value) {
    case 'number':
    case 'boolean':
      return value
    case 'bigint':
      return value > -(2n ** 256n) && value < 2n ** 256n ? value : 'a bigint of more than 256 bits'
    case 'string':
      return URLS.test(namesOf(argument).at(-1) as string)
        ? (urlLine(value) ?? `a string that is not a URL ${HIDDEN}`)
        : line(value)
    case 'symbol':
      return line(String(value))
    default:
      return kindOf(value)
  }
}

/** @internal A value for a message; `about` is its form in `details`. */
export function shown(value: unknown, about: unknown): string {
  if (typeof about === 'string')
    return typeof value === 'string' && !about.endsWith(HIDDEN) ? `"${about.replaceAll('"', '\\"')}"` : about
  if (typeof about === 'bigint') return `${about}n`
  return Object.is(about, -0) ? '-0' : String(about)
}

/** @internal A name from a caller, as a part of a path. */
export function nameLine(name: string): string {
  return /^[\w$-]{1,80}$/.test(name) ? name : `"${line(name)}"`
}

/** @internal The known name that is most similar to a name, if any: another spelling, a part of it, or a few letters away. */
export function nearest(name: string, known: readonly string[]): string | undefined {
  const given = plainName(name.slice(0, SHOWN_MAX))
  const far = (other: string): number => {
    if (other === given) return 0
    const [short, long] = given.length < other.length ? [given, other] : [other, given]
    if (short.length >= 3 && (long.startsWith(short) || long.endsWith(short))) return 1
    return distance(given, other)
  }
  const most = Math.max(1, Math.floor(given.length / 3))
  const found = known.map(other => ({ other, far: far(plainName(other)) })).filter(({ far: steps }) => steps <= most)
  return found.toSorted((one, other) => one.far - other.far)[0]?.other
}

/** The number of letters to change, add, remove or swap with their neighbours. O(product of the two lengths). */
function distance(one: string, other: string): number {
  let [before, last] = [[] as number[], Array.from({ length: other.length + 1 }, (_, place) => place)]
  for (let row = 1; row <= one.length; row++) {
    const next = [row]
    for (let column = 1; column <= other.length; column++) {
      const isSame = one[row - 1] === other[column - 1]
      let least = Math.min(
        (last[column] as number) + 1,
        (next[column - 1] as number) + 1,
        (last[column - 1] as number) + (isSame ? 0 : 1),
      )
      const isSwapped =
        row > 1 && column > 1 && one[row - 1] === other[column - 2] && one[row - 2] === other[column - 1]
      if (isSwapped) least = Math.min(least, (before[column - 2] as number) + 1)
      next.push(least)
    }
    ;[before, last] = [last, next]
  }
  return last[other.length] as number
}
