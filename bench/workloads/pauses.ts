// Measures the longest pause of the event loop after a prefill, while its blocks are offloaded: a part of them is copied in each turn.
//
// The report has the longest pause from the end of the prefill until the offload queue is empty, as perf_hooks sees it with a timer of one
// millisecond. Without tiers, that timer's own millisecond remains, and pauses caused by the rest of the machine.
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'

import { PagedKvCache, RedisStore, type TierOptions } from 'kvtide'

import { workloadOf, type Skipped, type Workload } from '../report/report.js'
import { lane, measure, type Contestant } from '../../lib/cli/rounds.js'
import { REPORTS } from '../run/suites.js'
import { missing, Redis } from '../../scripts/servers/redis.js'
import { bytesPerToken, fill, prompt, SIZES } from './tiers.js'

/** The observation time of a cache without tiers. */
const WATCHED_MS = 200

/** The longest pause; decode steps of 20 ms and more would hide it. */
const PAUSE_MS = 20

function pausing(
  name: string,
  role: 'ours' | 'baseline',
  tokens: number,
  tiers?: TierOptions,
): { contestant: Contestant; cache: PagedKvCache } {
  const given =
    tiers === undefined ? {} : { prefixKey: new Uint8Array(32).fill(7), tiers: { ...tiers, pendingBytes: 2 ** 30 } }
  const cache = new PagedKvCache({ capacity: tokens / SIZES.blockSize, ...SIZES, ...given })
  let seed = 0
  const contestant = lane(
    role,
    name,
    1,
    async () => {
      const delays = monitorEventLoopDelay({ resolution: 1 })
      const sequence = fill(cache, prompt(tokens, (seed += 1)), 'f32')
      delays.enable()
      if (tiers === undefined) await sleep(WATCHED_MS)
      else if (!(await cache.flush(60_000))) throw new Error(`${name}: not everything was written`)
      await sleep(2)
      delays.disable()
      sequence.drop()
      return delays.max
    },
    { shared: true },
  )
  return { contestant, cache }
}

export async function pauses(tokens: number, rounds: number): Promise<Workload | Skipped> {
  const id = `js-pauses-${tokens}`
  if (missing !== undefined) return { id, skipped: missing }
  const folder = join(REPORTS, 'pauses')
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const redis = await Redis.start()
  const store = new RedisStore({ url: redis.url, ttl: 5000 })
  const disk = { path: folder, limitBytes: 4 * tokens * bytesPerToken('f32') }
  const none = 'no tiers'
  const lanes = [
    pausing(none, 'baseline', tokens),
    pausing('kvtide, to disk', 'ours', tokens, { disk: { ...disk, path: join(folder, 'disk') } }),
    pausing('kvtide, to Redis', 'ours', tokens, { store: { store } }),
    pausing('kvtide, to disk and Redis', 'ours', tokens, {
      disk: { ...disk, path: join(folder, 'both') },
      store: { store },
    }),
  ]
  const measured = await measure(
    lanes.map(({ contestant }) => contestant),
    rounds,
    undefined,
    1,
  )
  for (const { cache } of lanes) cache.dispose()
  store.dispose()
  await redis.stop()
  rmSync(folder, { recursive: true })
  const title = `TypeScript: the longest pause of the event loop after a prefill of ${tokens} tokens, ${((tokens * bytesPerToken('f32')) / 1e6).toFixed(0)} MB offloaded`
  const workload = workloadOf(id, title, 'prefill', measured, [])
  const claims = workload.lanes
    .filter(({ name }) => name !== none)
    .map(({ name, median, p10, p90 }) => {
      const says = `${name}: the longest pause in milliseconds`
      const [ratio, low, high] = [median / 1e6, p10 / 1e6, p90 / 1e6] as const
      return {
        id: `${id}/${name.replace('kvtide, ', '').replaceAll(' ', '-').toLowerCase()}-ms`,
        says,
        ratio,
        low,
        high,
        toReach: { atMost: PAUSE_MS },
        met: ratio <= PAUSE_MS,
        limit: null,
        why: null,
        ofThisRun: true as const,
      }
    })
  return { ...workload, claims }
}
