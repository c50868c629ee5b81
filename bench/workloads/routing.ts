// Measures routing prompts from JavaScript by the keys of their blocks.
import { PrefixRouter } from 'kvtide'

import { workloadOf, type Workload } from '../report/report.js'
import { lane, measure } from '../../lib/cli/rounds.js'

/** The number of prompts that are routed in turn: their keys don't all fit into the nearest cache. */
const PROMPTS = 256

const AT_ONCE = 256

/** Makes keys as a cache does: 64 digits. */
function names(count: number, seed: number): string[] {
  let state = seed * 2_654_435_761 + 1
  const digits = (): string => {
    state = (Math.imul(state ^ (state >>> 15), 2_246_822_519) + 3_266_489_917) >>> 0
    return state.toString(16).padStart(8, '0')
  }
  return Array.from({ length: count }, () => Array.from({ length: 8 }, digits).join(''))
}

/** Makes a prompt from one of a few system prompts and a tail of its own. */
function promptOf(at: number, blocks: number): string[] {
  const shared = 16 + (at % 8) * 16
  return [...names(shared, 1 + (at % 40)), ...names(blocks - shared, 1000 + at)]
}

export async function routing(blocks: number, workers: number, rounds: number): Promise<Workload> {
  const id = `js-routing-${blocks}-${workers}`
  using router = new PrefixRouter()
  for (let worker = 0; worker < workers; worker++) router.addWorker(`worker ${worker}`)
  const prompts = Array.from({ length: PROMPTS }, (_, at) => promptOf(at, blocks))
  for (const [at, keys] of prompts.entries()) {
    const there = keys.slice(0, 100 + ((at * 7919) % (blocks - 100)))
    router.apply(
      `worker ${(at * 31) % workers}`,
      there.map(
        (key, place) =>
          ({
            type: 'stored',
            key,
            parent: place === 0 ? '0'.repeat(64) : (there[place - 1] as string),
            isFirst: place === 0,
          }) as never,
      ),
    )
  }
  const short = prompts.map(keys => PrefixRouter.shortKeys(keys))
  let routed = 0
  const each = (name: string, role: 'ours' | 'limit', count: number, work: (at: number) => unknown) =>
    lane(role, name, count, () => {
      for (let at = 0; at < count; at++)
        if (work((routed += 1) % PROMPTS) === undefined) throw new Error(`${name}: no worker`)
    })
  const sink = new BigUint64Array(blocks)
  const measured = await measure(
    [
      each('8 bytes of each name copied', 'limit', AT_ONCE, at => sink.set(short[at] as BigUint64Array) ?? sink),
      each('kvtide, route by short keys', 'ours', AT_ONCE, at => router.route(short[at] as BigUint64Array)),
      each('kvtide, route by names', 'ours', AT_ONCE / 8, at => router.route(prompts[at] as string[])),
      each('kvtide, shortKeys, and route', 'ours', AT_ONCE / 8, at =>
        router.route(PrefixRouter.shortKeys(prompts[at] as string[])),
      ),
    ],
    rounds,
  )
  return workloadOf(id, `TypeScript: one of ${workers} workers for a prompt of ${blocks} blocks`, 'prompt', measured, [
    {
      id: `${id}/names-over-short`,
      over: 'kvtide, route by names',
      under: 'kvtide, route by short keys',
      toReach: 'more',
    },
    {
      id: `${id}/making-over-short`,
      over: 'kvtide, shortKeys, and route',
      under: 'kvtide, route by short keys',
      toReach: 'less',
    },
  ])
}
