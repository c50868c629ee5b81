import { type BlockStore, ObjectStore, PagedKvCache, RedisStore } from '../../../index.js'
import { all, but, count, duration, flag, optional, options, prompt, text, tokenIds, whole } from './kinds.js'
import { free, Members, param, type Row } from './row.js'
import { ANY } from './rows-contiguous.js'

/** A store of one's own, in which there is nothing. */
const nothing: BlockStore = {
  getMany: keys => Promise.resolve(keys.map(() => undefined)),
  putMany: () => Promise.resolve(),
  hasMany: keys => Promise.resolve(keys.map(() => false)),
}

const tiers = (): object => ({ memory: { limitBytes: 1000 } })
const cacheOptions = (): object => ({
  capacity: 3,
  blockSize: 2,
  numLayers: 1,
  numKvHeads: 1,
  headDim: 2,
  events: 4,
  prefixKey: new Uint8Array(32),
  tiers: tiers(),
})
const cache = (): PagedKvCache => new PagedKvCache(cacheOptions() as never)
const ids = (): number[] => [7, 8]

const policy = optional(text)
const bytes = whole('ok')

/** Any bare object is one that names no tier. */
const tierKind = optional(
  options(
    tiers,
    {
      memory: optional(options(() => ({ limitBytes: 1 }), { limitBytes: bytes, policy })),
      disk: optional(
        options(() => ({ path: '3' }), { path: but(text, { '"3"': 'ok' }), limitBytes: optional(bytes), policy }),
      ),
      store: optional(
        options(() => ({ store: nothing }), {
          store: { legal: {} },
          policy,
          secret: optional({ legal: {} }),
          compress: optional(flag),
          onChange: optional({ legal: { 'a function': 'ok' } }),
        }),
      ),
      pendingBytes: optional(bytes),
    },
    ANY,
  ),
)

const tiered = new Members('PagedKvCache', cache)
  .method(
    'flush',
    param('milliseconds', optional(duration), () => 100),
  )
  .method(
    'match',
    param('tokens', tokenIds, ids),
    param(
      'options',
      options(
        () => ({ tiers: 'all' }),
        {
          ...prompt,
          partial: optional(flag),
          tiers: optional({ legal: { 'an empty array': 'ok' } }),
          deadline: optional(duration),
          signal: optional({ legal: {} }),
        },
        ANY,
      ),
      () => ({ tiers: ['memory'], deadline: 10 }),
    ),
  )

const name = optional(but(text, { '"3"': 'ok' }))
const redisOptions = (): object => ({ url: 'redis://127.0.0.1:1' })
const objectOptions = (): object => ({ url: 's3://bucket/prefix', options: { region: 'here' } })

const redis = new Members('RedisStore', () => new RedisStore(redisOptions() as never)).disposable()
const objects = new Members('ObjectStore', () => new ObjectStore(objectOptions() as never)).disposable()

/** Every row of what lies below a cache. */
export const storeRows: readonly Row[] = [
  free('new PagedKvCache', param('options', options(cacheOptions, { tiers: tierKind }), cacheOptions)),
  ...tiered.rows,
  free(
    'new RedisStore',
    param(
      'options',
      options(redisOptions, {
        url: text,
        cluster: optional(flag),
        username: name,
        password: name,
        database: optional(count),
        prefix: name,
        ttl: optional(count),
        connections: optional(count),
        roots: optional(text),
      }),
      redisOptions,
    ),
  ),
  ...redis.rows,
  free(
    'new ObjectStore',
    param(
      'options',
      options(objectOptions, {
        url: text,
        // What has no fields of its own says nothing.
        options: optional(
          but(
            { legal: {} },
            all('ok', value => typeof value === 'object' && value !== null && isBare(value)),
          ),
        ),
        roots: optional(text),
      }),
      objectOptions,
    ),
  ),
  ...objects.rows,
]

function isBare(value: object): boolean {
  try {
    return Object.keys(value).length === 0
  } catch {
    return false
  }
}
