// Redis and Valkey as a tier. The addon makes all requests; this file checks the options.
import { count, flag, isArray, known, list, type Names, optional, text } from '../errors/check.js'
import { INTERNAL } from '../border/owner.js'
import { binding } from '../loading/binding.js'
import { needsNet } from '../loading/net.js'
import { certificates, SharedStore } from './shared-store.js'

/** The location and the settings of Redis or Valkey. */
export interface RedisStoreOptions {
  /** `redis://` or, with TLS, `rediss://`, with user, password and database number if there are any. For a Cluster, some of its nodes. */
  readonly url: string | readonly string[]
  /** True for a Cluster; `false` by default. */
  readonly cluster?: boolean
  /** The user, unless the URL has one. */
  readonly username?: string
  /** The password, unless the URL has one. */
  readonly password?: string
  /** The number of the database, unless the URL has one. */
  readonly database?: number
  /** The start of every key, `'kvtide:'` by default. */
  readonly prefix?: string
  /** The lifetime of values in milliseconds; by default, the server keeps them until it needs the memory. */
  readonly ttl?: number
  /** The number of connections to each server, 2 by default. Many calls share one. */
  readonly connections?: number
  /** Certificates in PEM, one of which must have signed a server's certificate, in place of the system's. */
  readonly roots?: string
}

const OPTIONS: Names<RedisStoreOptions> = {
  url: 0,
  cluster: 0,
  username: 0,
  password: 0,
  database: 0,
  prefix: 0,
  ttl: 0,
  connections: 0,
  roots: 0,
}

/**
 * Redis or Valkey, single or as a Cluster: a store that machines share. Connects when the first block is offloaded to it or looked up in it. While it is down,
 * slow or full, blocks in it are misses, and no call waits.
 *
 * @example
 * ```ts
 * import { PagedKvCache, RedisStore } from 'kvtide'
 *
 * using store = new RedisStore({ url: 'redis://127.0.0.1:6379', ttl: 3_600_000 })
 * const sizes = { capacity: 8, numLayers: 2, numKvHeads: 1, headDim: 4 }
 * const prefixKey = new Uint8Array(32) // 32 secret bytes that all machines have
 * using cache = new PagedKvCache({ ...sizes, prefixKey, tiers: { store: { store } } })
 * using match = await cache.match([1, 2, 3], { tiers: 'all', deadline: 50 })
 * console.log(match.length) // 0
 * ```
 */
export class RedisStore extends SharedStore {
  constructor(options: RedisStoreOptions) {
    const { url, cluster, username, password, database, prefix, ttl, connections, roots } = known<RedisStoreOptions>(
      'options',
      options,
      OPTIONS,
    )
    const urls = isArray(url) ? list('url', url, text) : [text('url', url)]
    needsNet('RedisStore', binding.NativeStore.redis)
    const native = binding.NativeStore.redis({
      urls,
      isCluster: optional(flag, 'cluster', cluster) ?? false,
      username: optional(text, 'username', username),
      password: optional(text, 'password', password),
      database: optional(count, 'database', database),
      prefix: optional(text, 'prefix', prefix) ?? 'kvtide:',
      ttl: optional((argument, value) => count(argument, value, 1), 'ttl', ttl),
      connections: optional((argument, value) => count(argument, value, 1), 'connections', connections) ?? 2,
      roots: optional(certificates, 'roots', roots),
    })
    super(INTERNAL, native, RedisStore)
  }
}
