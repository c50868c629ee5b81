// The tenant of a request, by its API key.
import { createHash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'

import { Refusal } from './refusal.js'

/** The scheme in upper or lower case, then a key: visible ASCII without a comma, because proxies join headers with commas. */
const CREDENTIALS = /^bearer[ \t]+([!-+\--~]+)$/i

const unauthorized = (message: string): Refusal =>
  new Refusal(401, message, null, 'invalid_api_key', { 'www-authenticate': 'Bearer' })

const digest = (key: string): string => createHash('sha256').update(key).digest('hex')

/** The keys that the server accepts. */
export class Tenants {
  /** Digests of the keys, so that the time of a look-up reveals nothing about a key. */
  readonly #keys: ReadonlySet<string> | undefined

  /** With `keys`, only these are accepted. Without `keys`, every key is a tenant of its own, and all requests without a key are one tenant. */
  constructor(keys: Iterable<string> | undefined) {
    this.#keys = keys === undefined ? undefined : new Set(Array.from(keys, digest))
  }

  /** Returns the tenant of a request; `undefined` is the tenant of all requests without a key. */
  of(request: IncomingMessage): string | undefined {
    const given = request.headersDistinct['authorization'] ?? []
    if (given.length === 0 && this.#keys === undefined) return undefined
    if (given.length === 0) throw unauthorized('an API key is needed: send the header Authorization: Bearer KEY')
    const key = given.length === 1 ? CREDENTIALS.exec((given[0] as string).trim())?.[1] : undefined
    if (key === undefined)
      throw unauthorized(
        'the API key cannot be read: send the header Authorization: Bearer KEY once, with a key of visible ASCII characters and no comma',
      )
    if (this.#keys?.has(digest(key)) === false) throw unauthorized('the API key is not known here')
    return key
  }
}
