// The statistics of a cache in Prometheus' text format.
import type { PagedStats } from '../sequences/stats.js'

/** A statistic of a cache as a Prometheus metric. */
interface Metric {
  readonly name: string
  readonly type: 'gauge' | 'counter'
  readonly help: string
  readonly of: (stats: PagedStats) => number
}

const METRICS: readonly Metric[] = [
  {
    name: 'used_bytes',
    type: 'gauge',
    help: 'Bytes in use by pools, views and snapshots',
    of: stats => stats.usedBytes,
  },
  { name: 'held_bytes', type: 'gauge', help: 'Bytes that only views and snapshots hold', of: stats => stats.heldBytes },
  { name: 'limit_bytes', type: 'gauge', help: 'The memory limit of the cache in bytes', of: stats => stats.limitBytes },
  {
    name: 'prompt_tokens_total',
    type: 'counter',
    help: 'Prompt tokens that were looked up in the prefix cache',
    of: stats => stats.promptTokens,
  },
  {
    name: 'hit_tokens_total',
    type: 'counter',
    help: 'Prompt tokens that were cache hits',
    of: stats => stats.hitTokens,
  },
  {
    name: 'lost_tokens_total',
    type: 'counter',
    help: 'Prompt tokens that were computed again for want of a checkpoint of the states',
    of: stats => stats.lostTokens,
  },
  { name: 'evictions_total', type: 'counter', help: 'Cached blocks that were evicted', of: stats => stats.evictions },
  {
    name: 'copies_on_write_total',
    type: 'counter',
    help: 'Blocks that were copied on write because they were shared',
    of: stats => stats.copiesOnWrite,
  },
  {
    name: 'copied_bytes_total',
    type: 'counter',
    help: 'Bytes copied for growth and for snapshots',
    of: stats => stats.copiedBytes,
  },
]

const STATES = { free: 'freeBlocks', cached: 'cachedBlocks', active: 'activeBlocks' } as const

/** A number in Prometheus' notation. */
const written = (value: number): string => (Number.isFinite(value) ? String(value) : '+Inf')

/** A label's value, quoted. */
const quoted = (words: string): string =>
  `"${words.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')}"`

/** @internal All metrics in Prometheus' text format. */
export function metricsText(name: string, stats: PagedStats, sequences: number): string {
  const cache = `cache=${quoted(name)}`
  const lines = METRICS.flatMap(metric => [
    `# HELP kvtide_${metric.name} ${metric.help}`,
    `# TYPE kvtide_${metric.name} ${metric.type}`,
    `kvtide_${metric.name}{${cache}} ${written(metric.of(stats))}`,
  ])
  const blocks = stats.pools.flatMap((pool, group) =>
    Object.entries(STATES).map(
      ([state, field]) => `kvtide_blocks{${cache},group="${group}",state="${state}"} ${pool[field]}`,
    ),
  )
  return [
    ...lines,
    '# HELP kvtide_sequences Open sequences',
    '# TYPE kvtide_sequences gauge',
    `kvtide_sequences{${cache}} ${sequences}`,
    '# HELP kvtide_blocks Blocks of each group of layers, by state',
    '# TYPE kvtide_blocks gauge',
    ...blocks,
    '',
  ].join('\n')
}
