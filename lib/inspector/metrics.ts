import type { PagedStats } from '../sequences/stats.js'

/** A number of a cache, as Prometheus has it. */
interface Metric {
  readonly name: string
  readonly type: 'gauge' | 'counter'
  readonly help: string
  readonly of: (stats: PagedStats) => number
}

const METRICS: readonly Metric[] = [
  { name: 'used_bytes', type: 'gauge', help: 'Bytes in use: of the pools, of views and of snapshots', of: stats => stats.usedBytes },
  { name: 'held_bytes', type: 'gauge', help: 'Bytes that only views and snapshots hold', of: stats => stats.heldBytes },
  { name: 'limit_bytes', type: 'gauge', help: 'The limit of the cache', of: stats => stats.limitBytes },
  { name: 'prompt_tokens_total', type: 'counter', help: 'Tokens of prompts that were looked for', of: stats => stats.promptTokens },
  { name: 'hit_tokens_total', type: 'counter', help: 'Tokens of prompts that were found', of: stats => stats.hitTokens },
  { name: 'evictions_total', type: 'counter', help: 'Cached blocks that had to make room', of: stats => stats.evictions },
  { name: 'copies_on_write_total', type: 'counter', help: 'Blocks that were copied because others held them', of: stats => stats.copiesOnWrite },
  { name: 'copied_bytes_total', type: 'counter', help: 'Bytes that were copied for growth and for snapshots', of: stats => stats.copiedBytes },
]

const STATES = { free: 'freeBlocks', cached: 'cachedBlocks', active: 'activeBlocks' } as const

/** Numbers as Prometheus writes them. */
const written = (value: number): string => (Number.isFinite(value) ? String(value) : '+Inf')

/** A value of a label. */
const quoted = (words: string): string => `"${words.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')}"`

/** @internal The text of Prometheus' format. */
export function metricsText(name: string, stats: PagedStats, sequences: number): string {
  const cache = `cache=${quoted(name)}`
  const lines = METRICS.flatMap(metric => [`# HELP kvtide_${metric.name} ${metric.help}`, `# TYPE kvtide_${metric.name} ${metric.type}`, `kvtide_${metric.name}{${cache}} ${written(metric.of(stats))}`])
  const blocks = stats.pools.flatMap((pool, group) => Object.entries(STATES).map(([state, field]) => `kvtide_blocks{${cache},group="${group}",state="${state}"} ${pool[field]}`))
  return [
    ...lines,
    '# HELP kvtide_sequences Sequences there are',
    '# TYPE kvtide_sequences gauge',
    `kvtide_sequences{${cache}} ${sequences}`,
    '# HELP kvtide_blocks Blocks of each group of layers, by what they are',
    '# TYPE kvtide_blocks gauge',
    ...blocks,
    '',
  ].join('\n')
}
