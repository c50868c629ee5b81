// Measures restoring a prefix from the tiers of a cache, against memcpy, against `cat` of the same bytes, and against computing it.
//
// Each round begins with a cache that holds nothing of the prompt: a sequence without tokens has taken all its blocks. The files were written
// before, and are still in the page cache: no disk is read. The bytes of memcpy were copied just before, too.
import { spawnSync } from 'node:child_process'
import { closeSync, mkdirSync, openSync, readSync, readdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'

import { PagedKvCache, RedisStore, type Sequence, type TierName } from 'kvtide'

import { workloadOf, type Skipped, type Workload } from '../report/report.js'
import { lane, measure, pause, type Contestant } from '../../lib/cli/rounds.js'
import { REPORTS } from '../run/suites.js'
import { computes } from './computing.js'
import { missing, Redis } from '../../scripts/servers/redis.js'

/** Sizes of a model of a billion weights. */
export const SIZES = { numLayers: 16, numKvHeads: 8, headDim: 64, blockSize: 16 } as const

type Float = 'f32' | 'f16'

const ELEMENTS = 2 * SIZES.numLayers * SIZES.numKvHeads * SIZES.headDim

/** Bytes of K and V of one token. */
export const bytesPerToken = (dtype: Float): number => ELEMENTS * (dtype === 'f32' ? 4 : 2)

/** Returns numbers like those of a model: nearly normal, with small differences of scale between channels. */
export function normal(count: number): Float32Array {
  let state = 0x2545f491
  const next = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32 - 0.5
  }
  return Float32Array.from(
    { length: count },
    (_, index) => (next() + next() + next() + next()) * (1 + (index % SIZES.headDim) / SIZES.headDim),
  )
}

/** Returns the bits of half floats, rounded towards zero. Numbers below the normal range become 0; larger ones than a half float can hold are not supported. */
function halves(from: Float32Array): Uint16Array {
  const bits = new Uint32Array(from.buffer)
  return Uint16Array.from(from, (number, index) => {
    const of = bits[index] as number
    return Math.abs(number) < 2 ** -14
      ? 0
      : ((of >>> 16) & 0x8000) | ((((of >>> 23) & 0xff) - 112) << 10) | ((of >>> 13) & 0x3ff)
  })
}

/** The most tokens that are written at a time. */
const AT_ONCE = 500

export function prompt(tokens: number, seed = 0): Uint32Array {
  return Uint32Array.from({ length: tokens + 1 }, (_, at) => seed * 100_003 + at)
}

/** Writes a prompt without its last token, and returns its sequence. */
export function fill(cache: PagedKvCache, tokens: Uint32Array, dtype: Float): Sequence {
  const sequence = cache.openSequence()
  const { numLayers, numKvHeads, headDim } = SIZES
  const atOnce = Math.min(tokens.length - 1, AT_ONCE)
  const numbers = normal((ELEMENTS / 2) * atOnce)
  const part = {
    data: dtype === 'f32' ? numbers : halves(numbers),
    shape: [numLayers, numKvHeads, atOnce, headDim],
    dtype,
  }
  for (let from = 0; from + atOnce < tokens.length; from += atOnce) {
    sequence.append({ tokens: tokens.subarray(from, from + atOnce), k: part, v: part })
  }
  return sequence
}

/** Takes every block, so that nothing stays in the prefix cache. */
function forget(cache: PagedKvCache): void {
  const sequence = cache.openSequence()
  cache.ensureCapacity(sequence, cache.capacity * SIZES.blockSize)
  sequence.drop()
}

/** Returns a cache whose prompt is in all its tiers, and no longer in its pool. */
async function below(
  tokens: number,
  dtype: Float,
  redis: Redis,
  folder: string | undefined,
  compress: boolean,
): Promise<{ cache: PagedKvCache; store: RedisStore }> {
  const store = new RedisStore({ url: redis.url, prefix: `${dtype}-${compress}:` })
  const memory = { limitBytes: 2 * tokens * bytesPerToken(dtype) }
  const tiers = {
    store: { store, compress },
    pendingBytes: 2 ** 30,
    ...(folder === undefined ? {} : { memory, disk: { path: folder } }),
  }
  const cache = new PagedKvCache({
    capacity: tokens / SIZES.blockSize,
    ...SIZES,
    dtype,
    prefixKey: new Uint8Array(32).fill(7),
    tiers,
  })
  fill(cache, prompt(tokens), dtype).drop()
  if (!(await cache.flush(60_000))) throw new Error('not everything was written')
  forget(cache)
  return { cache, store }
}

function brings(name: string, cache: PagedKvCache, tier: TierName, tokens: number): Contestant {
  const wanted = prompt(tokens)
  const blocks = tokens / SIZES.blockSize
  const found = (): number => cache.stats().tiers?.[tier]?.found ?? 0
  let before = 0
  return lane(
    'ours',
    name,
    1,
    async () => cache.match(wanted, { tiers: [tier], deadline: 60_000 }).then(match => match.dispose()),
    {
      shared: true,
      before: () => {
        pause()
        before = found()
      },
      after: () => {
        if (found() !== before + blocks) throw new Error(`${name}: ${found() - before} of ${blocks} blocks came`)
        forget(cache)
      },
    },
  )
}

/** Returns the files of a folder of entries. */
const entries = (folder: string): string[] =>
  readdirSync(folder)
    .filter(name => name.length === 2)
    .flatMap(shard => readdirSync(join(folder, shard)).map(name => join(folder, shard, name)))

/** Reads files, one after the other, into memory that was touched before. */
function readAll(files: readonly string[], into: Uint8Array): void {
  let at = 0
  for (const path of files) {
    const file = openSync(path, 'r')
    at += readSync(file, into, at, into.length - at, null)
    closeSync(file)
  }
}

function shell(command: string): void {
  const { status, stderr } = spawnSync('sh', ['-c', command], { encoding: 'utf8' })
  if (status !== 0) throw new Error(`${command}: ${stderr}`)
}

/** Measures restoring a prefix. With `threads`, also measures computing the prompt. */
export async function bring(
  tokens: number,
  dtype: Float,
  rounds: number,
  threads?: number,
): Promise<Workload | Skipped> {
  const id = `js-tiers-${tokens}-${dtype}`
  if (missing !== undefined) return { id, skipped: missing }
  const folder = join(REPORTS, 'tiers')
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const redis = await Redis.start()
  const plain = await below(tokens, dtype, redis, folder, false)
  const packed = await below(tokens, dtype, redis, undefined, true)
  const bytes = tokens * bytesPerToken(dtype)
  const files = entries(folder)
  const room = files.reduce((sum, file) => sum + statSync(file).size, 0)
  const [from, to] = [new Uint8Array(bytes).fill(1), new Uint8Array(room).fill(2)]
  const computing = threads === undefined ? [] : [await computes(tokens, threads)]
  const measured = await measure(
    [
      lane('limit', 'memcpy', 1, () => to.set(from), { before: () => to.set(from) }),
      lane('limit', 'read of the files', 1, () => readAll(files, to), { before: pause }),
      lane('peer', 'cat of the files to /dev/null', 1, () => shell(`cat ${folder}/??/* > /dev/null`), {
        shared: true,
        before: pause,
      }),
      brings('kvtide, from memory', plain.cache, 'memory', tokens),
      brings('kvtide, from disk', plain.cache, 'disk', tokens),
      brings('kvtide, from Redis', plain.cache, 'store', tokens),
      brings('kvtide, from Redis, compressed', packed.cache, 'store', tokens),
      ...computing,
    ],
    rounds,
    undefined,
    1,
  )
  for (const { cache, store } of [plain, packed]) {
    cache.dispose()
    store.dispose()
  }
  await redis.stop()
  rmSync(folder, { recursive: true })
  // A short prefix is dominated by round trips, so the target is relative to computing it.
  const toReach = tokens < AT_ONCE ? 'more' : ({ atLeast: 0.4 } as const)
  const title = `TypeScript: a restored prefix of ${tokens} tokens, ${(bytes / 1e6).toFixed(0)} MB of ${SIZES.numLayers} layers of ${SIZES.numKvHeads} heads of ${SIZES.headDim}, ${dtype}`
  return workloadOf(id, title, 'prefix', measured, [
    { id: `${id}/memory-memcpy-over-ours`, over: 'memcpy', under: 'kvtide, from memory', toReach },
    { id: `${id}/disk-cat-over-ours`, over: 'cat of the files to /dev/null', under: 'kvtide, from disk', toReach },
    { id: `${id}/disk-read-over-ours`, over: 'read of the files', under: 'kvtide, from disk', toReach: 'more' },
    { id: `${id}/redis-memcpy-over-ours`, over: 'memcpy', under: 'kvtide, from Redis', toReach: 'more' },
    ...computing.flatMap(({ name }) =>
      ['memory', 'disk', 'Redis'].map(tier => ({
        id: `${id}/computing-over-${tier.toLowerCase()}`,
        over: name,
        under: `kvtide, from ${tier}`,
        toReach: 'more' as const,
      })),
    ),
    {
      id: `${id}/redis-compressed-over-plain`,
      over: 'kvtide, from Redis, compressed',
      under: 'kvtide, from Redis',
      toReach: 'less',
    },
  ])
}
