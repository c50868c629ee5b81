import { KvCache, RollbackCache, RotatingCache, RotatingKvCache, type Sequence, Tensor } from '../../../index.js'
import {
  all,
  but,
  count,
  flag,
  type Kind,
  milliseconds,
  never,
  optional,
  options,
  snapshot,
  tensor,
  text,
  whole,
  mark,
} from './kinds.js'
import { fileOptions, path, source } from './files.js'
import { free, Members, param, type Param, type Row } from './row.js'

/** Two tokens `[1, 1, 2, 2]`. */
const pair = (): Tensor => Tensor.from(Float32Array.from([1, 2, 3, 4]), [1, 1, 2, 2])
const host = (): object => ({ data: Float32Array.from([5, 6, 7, 8]), shape: [1, 1, 2, 2] })
const memoryLimitBytes = optional(whole('ok'))

export const GETTERS: readonly string[] = [
  'a disposed Tensor',
  'a proxy of a Tensor',
  'what looks like a Tensor',
  'a Snapshot that looks like a Tensor',
]

/** True for an object without fields of its own, so without unknown options. */
function isBare(value: object): boolean {
  try {
    return Object.keys(value).length === 0
  } catch {
    return false
  }
}

/** Options that are all optional: any object without fields is valid, unless it has a getter for `dtype` or `device` that throws. */
export const NO_OPTIONS: Readonly<Record<string, string>> = but(
  { legal: all('ok', value => value === undefined || (typeof value === 'object' && value !== null && isBare(value))) },
  { ...Object.fromEntries(GETTERS.map(name => [name, 'INVALID_ARGUMENT'])), 'a revoked proxy': 'INVALID_ARGUMENT' },
).legal

/** Any object is valid. */
export const ANY: Kind['legal'] = { ...NO_OPTIONS, ...Object.fromEntries(GETTERS.map(name => [name, 'ok'])) }

/** Options of which any object is valid, with these fields. */
export const some = (fields: Record<string, Kind>, rest: () => object = () => ({})): Param =>
  param('options', options(rest, fields, ANY), rest)

/** The options that open a transaction. */
export const begin: Param = param(
  'options',
  options(() => ({}), { maxTokens: optional(count) }, ANY),
  () => ({ maxTokens: 2 }),
)

/** The snapshot that a sequence is restored to. */
export const restored: Param = param<Sequence>('snapshot', snapshot('Snapshot', 'SNAPSHOT_INVALID'), self =>
  self.snapshot(),
)

/** The options of `retain` of a sequence. */
export const retained = (valid: () => object): Param =>
  param(
    'options',
    options(() => ({ priority: 5 }), {
      from: optional(count),
      to: optional(count),
      priority: count,
      forMs: optional(milliseconds),
      until: optional(milliseconds),
    }),
    valid,
  )

const place = { device: optional(text), memoryLimitBytes: optional(whole('ok')) }

/** A load reads `device`, so a getter for it is called. */
const load = (name: string, saved: Uint8Array): Row =>
  free(name, source(saved), fileOptions({ ...NO_OPTIONS, 'a disposed Tensor': 'DISPOSED' }, place))

const kvOptions = (): object => ({ batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 9, headDim: 2 })

function kvCache(): KvCache {
  const cache = new KvCache(kvOptions() as never)
  cache.update(pair(), pair())
  return cache
}

const kv = new Members('KvCache', kvCache)
  .plain('seqLen', 'capacity', 'isEmpty', 'kCacheRaw', 'vCacheRaw', 'getKv', 'reset', 'snapshot', 'stats')
  .method('update', param('k', tensor, pair), param('v', tensor, host))
  .method('updateFused', param('k', tensor, host), param('v', tensor, pair))
  .method(
    'incrementSeqLen',
    param('n', optional(count), () => 1),
  )
  .method(
    'truncate',
    param('len', whole('CANNOT_ROLL_BACK'), () => 1),
  )
  .method('begin', begin)
  .method(
    'restore',
    param<KvCache>('snapshot', snapshot('Snapshot', 'SNAPSHOT_INVALID'), cache => cache.snapshot()),
  )
  .method('save', path, fileOptions(ANY))
  .method('saveBytes', fileOptions(ANY))
  .disposable()

const rotatingOptions = {
  maxSeqLen: count,
  capacitySeqLen: optional(count),
  sinks: optional(count),
  slack: optional(count),
  device: optional(text),
  memoryLimitBytes,
}
const pairOptions = (): object => ({ maxSeqLen: 3, sinks: 1, slack: 1 })
const windowOptions = (): object => ({ dim: 2, ...pairOptions() })

function rotatingCache(): RotatingCache {
  const cache = new RotatingCache(windowOptions() as never)
  for (let round = 0; round < 2; round++) cache.append(pair())
  return cache
}

function rotatingKvCache(): RotatingKvCache {
  const cache = new RotatingKvCache(pairOptions() as never)
  for (let round = 0; round < 2; round++) cache.append(pair(), pair())
  return cache
}

/** A snapshot for its own cache; `foreign` is the outcome for a snapshot of another RotatingCache. */
const own = (foreign: string): ReturnType<typeof param> =>
  param<RotatingCache>('snapshot', snapshot('RotatingSnapshot', foreign), cache => cache.snapshot())

/** The members that both rotating caches inherit. */
const base = {
  ...Object.fromEntries(
    ['currentSeqLen', 'capacitySeqLen', 'retainedLen', 'dtype', 'reset', 'snapshot', 'stats', 'save', 'saveBytes'].map(
      name => [name, 'ok'],
    ),
  ),
  ...Object.fromEntries(['trySetLen', 'setLen', 'dispose', '[dispose]'].map(name => [name, 'ok'])),
  // These calls use a snapshot of the other kind.
  ...Object.fromEntries(['restore', 'canAppendFromSnapshot'].map(name => [name, 'SNAPSHOT_INVALID'])),
}

/** The members of both rotating caches; `foreign` is the outcome for a snapshot of another cache. */
function rotating(members: Members, other: string, foreign: (otherwise: string) => string): Members {
  return members
    .plain(
      'currentSeqLen',
      'capacitySeqLen',
      'retainedLen',
      'dtype',
      'currentData',
      'lastAppendResult',
      'allData',
      'reset',
      'snapshot',
      'stats',
    )
    .method(
      'trySetLen',
      param('len', whole('CANNOT_ROLL_BACK'), () => 4),
    )
    .method(
      'setLen',
      param('len', whole('CANNOT_ROLL_BACK'), () => 4),
    )
    .method('restore', own(foreign('SNAPSHOT_INVALID')))
    .method(
      'canAppendFromSnapshot',
      own(foreign('ok')),
      param('n', count, () => 1),
    )
    .method(
      'acceptedAppendFromBatchedAppend',
      own(foreign('INVALID_ARGUMENT')),
      param('keepLen', whole('INVALID_ARGUMENT'), () => 5),
      param('rowIdx', whole('INVALID_ARGUMENT'), () => 0),
      param('batchLen', whole('INVALID_ARGUMENT'), () => 1),
    )
    .method('save', path, fileOptions(ANY))
    .method('saveBytes', fileOptions(ANY))
    .disposable()
    .kin(other, base)
}

const single = rotating(new Members('RotatingCache', rotatingCache), 'RotatingKvCache', otherwise => otherwise).method(
  'append',
  param('src', tensor, pair),
)
const double = rotating(new Members('RotatingKvCache', rotatingKvCache), 'RotatingCache', () => 'SNAPSHOT_INVALID')
  .method('append', param('k', tensor, pair), param('v', tensor, host))
  .method('begin', begin)

function rollbackCache(): RollbackCache {
  const cache = new RollbackCache()
  cache.append(pair(), pair())
  cache.commit()
  cache.append(pair(), pair(), { parents: [-1, 0] })
  return cache
}

/** Parents of two tokens, in an array or an `Int32Array`. */
const parents = { legal: {} }
const rollback = new Members('RollbackCache', rollbackCache)
  .plain('totalLen', 'committedLen', 'snapshot', 'current', 'stats')
  .method(
    'append',
    param('k', tensor, pair),
    param('v', tensor, host),
    param(
      'options',
      options(() => ({}), { parents: optional(parents) }, ANY),
      () => ({ parents: [-1, 2] }),
    ),
  )
  .method('begin', begin)
  .method(
    'commit',
    param('len', optional(whole('INVALID_ARGUMENT')), () => 3),
  )
  .method(
    'rollback',
    param<RollbackCache>('snapshot', mark(), cache => cache.snapshot()),
  )
  .method(
    'acceptPath',
    param('indices', { legal: { 'an empty array': 'ok', 'a Uint32Array': 'INVALID_PATH' } }, () => [0, 1]),
  )
  .method(
    'treeMask',
    param('parents', { legal: { 'an empty array': 'ok' } }, () => [-1, 0]),
  )
  .method(
    'treePositions',
    param('parents', { legal: { 'an empty array': 'ok' } }, () => [-1, 0]),
  )
  .method('save', path, fileOptions(ANY))
  .method('saveBytes', fileOptions(ANY))
  .disposable()

const accepted = but(tensor, { null: 'INVALID_ARGUMENT' })
const snapshotOf = (cache: () => { snapshot(): unknown }, foreign: string): ReturnType<typeof param> =>
  param('snapshot', snapshot('RotatingSnapshot', foreign), () => cache().snapshot())

/** Every row of the contiguous caches. */
export const contiguousRows: readonly Row[] = [
  load('KvCache.load', await kvCache().saveBytes()),
  load('RotatingCache.load', await rotatingCache().saveBytes()),
  load('RotatingKvCache.load', await rotatingKvCache().saveBytes()),
  load('RollbackCache.load', await rollbackCache().saveBytes()),
  free(
    'new KvCache',
    param(
      'options',
      options(kvOptions, {
        batchSize: count,
        numKvHeads: count,
        initialCapacity: count,
        maxSeqLen: count,
        headDim: count,
        dtype: optional(text),
        device: optional(text),
        stableAddresses: optional(flag),
        memoryLimitBytes,
      }),
      kvOptions,
    ),
  ),
  ...kv.rows,
  free(
    'new RotatingCache',
    param(
      'options',
      options(
        windowOptions,
        { dim: count, ...rotatingOptions },
        { 'a RotatingSnapshot': 'ok', 'a disposed RotatingSnapshot': 'DISPOSED' },
      ),
      windowOptions,
    ),
  ),
  free(
    'RotatingCache.restoreFromSnapshot',
    snapshotOf(rotatingCache, 'INVALID_ARGUMENT'),
    param('accepted', accepted, pair),
    param('keepLen', whole('INVALID_ARGUMENT'), () => 6),
  ),
  ...single.rows,
  free(
    'new RotatingKvCache',
    param(
      'options',
      options(pairOptions, rotatingOptions, { 'a RotatingSnapshot': 'ok', 'a disposed RotatingSnapshot': 'DISPOSED' }),
      pairOptions,
    ),
  ),
  free(
    'RotatingKvCache.restoreFromSnapshot',
    snapshotOf(rotatingKvCache, 'SNAPSHOT_INVALID'),
    param(
      'accepted',
      options(() => ({ k: pair(), v: host() }), { k: tensor, v: tensor }),
      () => ({ k: pair(), v: host() }),
    ),
    param('keepLen', whole('INVALID_ARGUMENT'), () => 6),
  ),
  ...double.rows,
  free(
    'new RollbackCache',
    param(
      'options',
      options(
        () => ({}),
        { device: optional(text), memoryLimitBytes },
        { ...NO_OPTIONS, 'a disposed Tensor': 'DISPOSED' },
      ),
      () => ({}),
    ),
  ),
  ...rollback.rows,
  ...(['Snapshot', 'RotatingSnapshot', 'RollbackMark'] as const).map(name =>
    free(
      `new ${name}`,
      param('token', never, () => undefined),
      param('native', never, () => undefined),
    ),
  ),
  ...new Members('Snapshot', () => kvCache().snapshot()).plain('length').disposable().rows,
  ...new Members('RotatingSnapshot', () => rotatingCache().snapshot())
    .plain('currentSeqLen', 'maxSeqLen', 'retainedLen', 'sinks', 'dim')
    .disposable().rows,
  ...new Members('RollbackMark', () => rollbackCache().snapshot()).plain('committedLen').disposable().rows,
]
