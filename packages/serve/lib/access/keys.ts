// API keys: which tenant a request belongs to. Only digests of keys are kept, and they are compared in constant time, so neither a time nor a message, a log or
// a metric reveals a key.
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto'

import { KvTideError } from 'kvtide'

import { invalid, known, list, nonEmpty, type Names, optional, repeated } from '../arguments.js'
import { Refusal } from '../refusal.js'

/** A tenant: its cached prompts are found by its own requests alone. */
export interface Tenant {
  /** The name for logs: the one in the file of keys, or a number. */
  readonly name: string
  /** The salt of its prompts; `undefined` for the only tenant of a server without keys. */
  readonly salt: string | undefined
  /** True if it may open the inspector, which shows the prompts of all tenants. */
  readonly isAdmin: boolean
}

/** A key, with the name of its tenant. */
export interface KeyEntry {
  /** Keys with the same name belong to one tenant. `admin` may open the inspector. By default, each key is a tenant of its own. */
  readonly name?: string
  readonly key: string
}

/** The tenant of all requests to a server without keys. */
const ONLY: Tenant = { name: 'all', salt: undefined, isAdmin: true }

/** Visible ASCII without a comma, because proxies join headers with commas. */
const KEY = /^[!-+\--~]+$/
const CREDENTIALS = /^bearer[ \t]+([!-+\--~]+)$/i
const BASIC = /^basic[ \t]+([A-Za-z0-9+/]+=*)$/i

const unauthorized = (message: string, scheme = 'Bearer'): Refusal =>
  new Refusal(401, message, null, 'invalid_api_key', { 'www-authenticate': scheme })

const ENTRY: Names<KeyEntry> = { name: 0, key: 0 }
const EXPECTED = 'a key of visible ASCII characters and no comma'

/** Reads the option `keys`. An error never shows a key. */
export function readKeys(argument: string, value: unknown): KeyEntry[] {
  const entries = list(argument, value, (place, entry) => {
    const given = known<KeyEntry>(place, entry, ENTRY)
    const { key } = given
    if (typeof key !== 'string' || !KEY.test(key)) throw invalid(`${place}.key`, key, EXPECTED, { isHidden: true })
    const named = optional(nonEmpty, `${place}.name`, given.name)
    return named === undefined ? { key } : { name: named, key }
  })
  const twice = repeated(entries.map(({ key }) => key))
  if (twice >= 0) throw invalid(`${argument}[${twice}].key`, 'a key', 'each key once', { isHidden: true })
  return entries
}

/** The salt of a tenant. It depends on the name or the key alone, so that it is the same after a restart and in every worker. */
function saltOf({ name, key }: KeyEntry): string {
  const named = name === undefined ? `key\0${key}` : `name\0${name}`
  return createHash('sha256').update(`kvtide-serve tenant\0${named}`).digest('base64url')
}

/** The headers of a request that may have a key. */
export interface KeyHeaders {
  readonly authorization: readonly string[]
  /** The key without a scheme, as Azure's and Anthropic's clients send it. */
  readonly apiKey?: string | undefined
}

/** The keys that a server accepts. */
export class Keys {
  /** The number of tenants; 1 without keys. */
  readonly tenants: number
  readonly #entries: readonly { readonly digest: Buffer; readonly tenant: Tenant }[] | undefined
  /** Digests are keyed with bytes of this process. */
  readonly #secret: Buffer = randomBytes(32)

  /** Without `entries`, no key is needed, and all requests are one tenant's. */
  constructor(entries: readonly KeyEntry[] | undefined) {
    this.#entries = entries?.map((entry, index) => ({
      digest: this.#digest(entry.key),
      tenant: { name: entry.name ?? `key ${index + 1}`, salt: saltOf(entry), isAdmin: entry.name === 'admin' },
    }))
    this.tenants = Math.max(1, new Set(this.#entries?.map(({ tenant }) => tenant.salt)).size)
  }

  /** True if requests need a key. */
  get isNeeded(): boolean {
    return this.#entries !== undefined
  }

  /** Returns the tenant of a request. */
  tenantOf({ authorization, apiKey }: KeyHeaders): Tenant {
    if (this.#entries === undefined) return ONLY
    if (authorization.length === 0 && apiKey === undefined)
      throw unauthorized('an API key is needed: send the header Authorization: Bearer KEY')
    const key =
      authorization.length === 0
        ? apiKey
        : authorization.length === 1
          ? CREDENTIALS.exec((authorization[0] as string).trim())?.[1]
          : undefined
    if (key === undefined || !KEY.test(key))
      throw unauthorized(
        'the API key cannot be read: send the header Authorization: Bearer KEY once, with a key of visible ASCII characters and no comma',
      )
    const found = this.#find(key)
    if (found === undefined) throw unauthorized('the API key is not known here')
    return found
  }

  /** Refuses a request that may not open the inspector. A browser asks for the key as the password of any user. */
  checkAdmin(authorization: string | undefined): void {
    if (this.#entries === undefined) return
    const [, basic] = BASIC.exec(authorization?.trim() ?? '') ?? []
    const [, bearer] = CREDENTIALS.exec(authorization?.trim() ?? '') ?? []
    const password =
      basic === undefined
        ? undefined
        : Buffer.from(basic, 'base64')
            .toString('utf8')
            .replace(/^[^:]*:/, '')
    const key = bearer ?? password
    const tenant = key === undefined ? undefined : this.#find(key)
    if (tenant === undefined)
      throw unauthorized(
        'the inspector needs a key of the tenant admin, as a password',
        'Basic realm="kvtide inspector", charset="UTF-8"',
      )
    if (!tenant.isAdmin)
      throw new Refusal(
        403,
        'the inspector shows prompts of all tenants: it needs a key of the tenant admin',
        null,
        'forbidden',
      )
  }

  /** Compares with every key, so that the time does not depend on which one matches. */
  #find(key: string): Tenant | undefined {
    const digest = this.#digest(key)
    let found: Tenant | undefined
    for (const entry of this.#entries ?? []) if (timingSafeEqual(entry.digest, digest)) found = entry.tenant
    return found
  }

  #digest(key: string): Buffer {
    return createHmac('sha256', this.#secret).update(key).digest()
  }
}

/**
 * Reads the text of a file of keys: one key per line, with the tenant's name in front if it has one, separated by a space. Empty lines and lines that begin with
 * `#` are skipped. An error names the line, never its text.
 */
export function keysOf(text: string): KeyEntry[] {
  if (typeof text !== 'string') throw invalid('text', text, 'the text of a file of keys', { isHidden: true })
  const entries = text.split('\n').flatMap((line, index): KeyEntry[] => {
    const parts = line.trim().split(/[ \t]+/)
    if (line.trim() === '' || line.trim().startsWith('#')) return []
    const [tenant, key] = parts.length === 2 ? parts : [undefined, parts[0]]
    if (parts.length > 2 || key === undefined || !KEY.test(key))
      throw wrongKeys(`line ${index + 1} of the keys is not KEY or NAME KEY, with ${EXPECTED}`, `line ${index + 1}`)
    return [tenant === undefined ? { key } : { name: tenant, key }]
  })
  const keys = new Set(entries.map(({ key }) => key))
  if (keys.size < entries.length)
    throw wrongKeys('the keys contain one key twice, expected each key once', 'a key twice')
  return entries
}

function wrongKeys(message: string, value: string): KvTideError {
  const expected = `a line of KEY or NAME KEY for each key, with ${EXPECTED}`
  return new KvTideError('INVALID_ARGUMENT', message, { argument: 'text', value, expected })
}

/** Returns the salt of a request: that of its tenant, and that of the request's own `cache_salt`. */
export function requestSalt({ salt }: Tenant, cacheSalt: string | undefined): string | undefined {
  if (cacheSalt === undefined) return salt
  return createHash('sha256')
    .update(JSON.stringify([salt ?? null, cacheSalt]))
    .digest('base64url')
}
