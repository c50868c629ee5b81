// Defines the ratios of bench/peers: pairs of lanes by name, and the target of each ratio.
import {
  claimOf,
  laneOf,
  workloadOf,
  type Bound,
  type Claim,
  type Measured,
  type Ratio,
  type Workload,
} from './report.js'
import { ratioOf, spreadOf } from '../../lib/cli/spread.js'

export interface Outcome {
  readonly title: string
  readonly operation: string
  readonly lanes: readonly Measured[]
  /** Numbers that aren't times, by name. */
  readonly facts: Readonly<Record<string, number>>
}

/** A ratio or a claim. The workload's id is prepended to its id. */
type RatioOrClaim = Ratio | Claim

const [MEMCPY, RING, COPYING] = ['memcpy of the window', 'candle-nn ring, unordered', 'copying the window']

/** Caches with default slack, and with as much slack as the window: suffixes of lanes and of ratio ids, and two targets. */
const SLACKS = [
  ['', '', 800, 5],
  [', slack = window', '-roomy', 1500, 2.5],
] as const

function rotating(_: Outcome, workload: string): RatioOrClaim[] {
  // The targets apply to this window.
  const hasTargets = workload === 'rotating-4096-f32'
  return SLACKS.flatMap(([slack, suffix, timesMemcpy, timesRing]): Ratio[] => {
    const [ours, bare] = [`kvtide${slack}`, `bare rows${slack}`]
    return [
      {
        id: `memcpy-over-ours${suffix}`,
        over: MEMCPY,
        under: ours,
        toReach: hasTargets ? { atLeast: timesMemcpy } : 'more',
        limit: [MEMCPY, bare],
      },
      {
        id: `ours-over-ring${suffix}`,
        says: `kvtide / candle-nn's unordered ring${slack}`,
        over: ours,
        under: RING,
        toReach: hasTargets ? { atMost: timesRing } : 'less',
        limit: [bare, RING],
      },
      { id: `copying-over-ours${suffix}`, over: COPYING, under: ours, toReach: 'more' },
    ]
  })
}

function windows({ lanes }: Outcome): RatioOrClaim[] {
  const [small = '', large = ''] = lanes.flatMap(({ name }) => /^memcpy, at (\d+)$/.exec(name)?.[1] ?? [])
  return SLACKS.flatMap(([slack, suffix]): Ratio[] => {
    const [over, under, bareOver, bareUnder] = ['kvtide', 'bare rows'].flatMap(lane => [
      `${lane}${slack}, at ${large}`,
      `${lane}${slack}, at ${small}`,
    ]) as [string, string, string, string]
    const says = `kvtide${slack}: window ${large} / window ${small}`
    const limit = [bareOver, bareUnder] as const
    return [
      { id: `raw${suffix}`, says, over, under, toReach: { atMost: 2.5 }, limit },
      {
        id: `over-memcpy${suffix}`,
        says: `${says}, over that of memcpy`,
        over,
        under,
        base: [`memcpy, at ${large}`, `memcpy, at ${small}`],
        toReach: { atMost: 1.5 },
        limit,
      },
    ]
  })
}

function prefill(): RatioOrClaim[] {
  const [ours, ring, copying] = [
    'kvtide, retained ++ new',
    'candle-nn ring, the window alone',
    'copying, retained ++ new',
  ]
  return [
    {
      id: 'ours-over-ring',
      says: "kvtide / candle-nn's ring, which returns less",
      over: ours,
      under: ring,
      toReach: { atMost: 1.5 },
      limit: ['bare rows', ring],
    },
    { id: 'copying-over-ours', says: 'copying / kvtide', over: copying, under: ours, toReach: 'more' },
  ]
}

function growable(): RatioOrClaim[] {
  const [ours, roomy, candle, candleRoomy] = [
    'kvtide, growing',
    'kvtide, preallocated',
    'candle-nn KvCache, growing by 512',
    'candle-nn KvCache, preallocated',
  ]
  return [
    {
      id: 'ours-over-candle',
      says: 'kvtide / candle-nn, both preallocated',
      over: roomy,
      under: candleRoomy,
      toReach: { atMost: 1.1 },
      limit: ['bare rows, preallocated', candleRoomy],
    },
    {
      id: 'candle-over-ours',
      says: 'candle-nn / kvtide, both growing',
      over: candle,
      under: ours,
      toReach: { atLeast: 2 },
      limit: [candle, 'bare rows, growing'],
    },
    {
      id: 'boostr-over-ours',
      says: 'boostr / kvtide, both preallocated',
      over: 'boostr, preallocated',
      under: roomy,
      toReach: 'more',
    },
    {
      id: 'boostr-over-ours-growing',
      says: 'boostr / kvtide, both growing',
      over: 'boostr, growing',
      under: ours,
      toReach: 'more',
    },
  ]
}

function rollback(): RatioOrClaim[] {
  return [
    {
      id: 'concatenating-over-ours',
      over: 'concatenating',
      under: 'kvtide',
      toReach: { atLeast: 1000 },
      limit: ['concatenating', 'bare rows'],
    },
    { id: 'abyo-over-ours', over: 'abyo-speculate', under: 'kvtide', toReach: 'more' },
  ]
}

/** Makes a ratio from its id, two lanes and a target. */
const ratio = (id: string, over: string, under: string, toReach: Bound, more: Partial<Ratio> = {}): Ratio => ({
  id,
  over,
  under,
  toReach,
  ...more,
})

function pagedToken(): RatioOrClaim[] {
  return (
    [
      ['write', 'write', true],
      ['read', 'read and copy', true],
      ['look-up', 'look-up', false],
    ] as const
  ).map(([what, theirs, hasLimit]) => {
    const under = `oxibonsai-model, ${theirs}`
    return ratio(what, `kvtide, ${what}`, under, 'less', {
      says: `kvtide / oxibonsai-model, ${what}`,
      ...(hasLimit && { limit: [`bare slab, ${what}`, under] }),
    })
  })
}

function pagedBulk(): RatioOrClaim[] {
  return (
    [
      ['write', 'kvtide, append', 'memcpy of all layers'],
      ['gather', 'kvtide, gather', 'memcpy layer by layer'],
    ] as const
  ).flatMap(([id, ours, limit]): Ratio[] => {
    const [ours2, limit2] = [`${ours}, 2 threads`, `${limit}, 2 threads`]
    return [
      { id, over: limit, under: ours, toReach: { atLeast: 0.8 } },
      { id: `${id}-2`, over: limit2, under: ours2, toReach: { atLeast: 0.8 } },
      {
        id: `${id}-scaling`,
        says: `${ours}: 1 thread / 2 threads, over that of memcpy`,
        over: ours,
        under: ours2,
        base: [limit, limit2],
        toReach: 'more',
      },
    ]
  })
}

const [SUM, MULTIPLY_ADDS, FLASH] = ['sum of the same bytes', 'multiply-adds alone', 'candle-nn flash_attn']

/** Makes a claim from a number that isn't a ratio of lanes. */
function fact(id: string, says: string, value: number, toReach: Bound): Claim {
  return claimOf(
    [
      { name: 'it', role: 'ours', nanoseconds: [value] },
      { name: 'one', role: 'limit', nanoseconds: [1] },
    ],
    { id, says, over: 'it', under: 'one', toReach },
  )
}

/** The share of the limit, which is a sum over the same bytes or the multiply-adds, whichever takes longer, with the reason why it is no larger. */
function shareOfLimit(lanes: readonly Measured[], toReach: Bound): Ratio {
  const [sum, add, ours] = [SUM, MULTIPLY_ADDS, 'kvtide'].map(name => laneOf(lanes, name)) as [
    readonly number[],
    readonly number[],
    readonly number[],
  ]
  const [sumMs, addMs, oursMs] = [sum, add, ours].map(rounds => (spreadOf(rounds).median / 1e6).toFixed(2))
  const both = ratioOf(
    sum.map((time, round) => time + (add[round] as number)),
    ours,
  ).median.toFixed(2)
  const why = `the sum takes ${sumMs} ms, the multiply-adds ${addMs} ms, kvtide ${oursMs} ms; sum and multiply-adds one after the other would be ${both} of that, and the softmax is in neither`
  return {
    id: 'share-of-limit',
    over: ratioOf(sum, add).median >= 1 ? SUM : MULTIPLY_ADDS,
    under: 'kvtide',
    toReach,
    why,
  }
}

/** The fastest of ggml's lanes; none if ggml was not built. */
function ggml(lanes: readonly Measured[], ours: string): Ratio[] {
  const ways = lanes
    .filter(({ name }) => name.startsWith('ggml'))
    .toSorted((a, b) => spreadOf(a.nanoseconds).median - spreadOf(b.nanoseconds).median)
  return ways
    .slice(0, 1)
    .map(({ name }) => ({
      id: 'ggml-over-ours',
      says: `${name}, its fastest way / ${ours}`,
      over: name,
      under: ours,
      toReach: { atLeast: 1.5 },
    }))
}

function attention({ lanes, facts }: Outcome, workload: string): RatioOrClaim[] {
  const times = (over: string, under: string): number => ratioOf(laneOf(lanes, over), laneOf(lanes, under)).median
  const dtype = workload.replace('attention-', '')
  const [ours2, sum2] = ['kvtide, 2 threads', `${SUM}, 2 threads`]
  const why = `2 threads make the sum ${times(SUM, sum2).toFixed(2)} times faster, kvtide ${times('kvtide', ours2).toFixed(2)} times`
  const operations = ['candle operations, grouped queries', 'candle operations, repeated K and V']
  // candle doesn't multiply matrices of bf16 on a processor.
  const faster = dtype === 'bf16' ? [] : operations.toSorted((a, b) => times(a, b) - 1).slice(0, 1)
  return [
    shareOfLimit(lanes, dtype === 'f32' ? { atLeast: 0.75 } : dtype === 'f16' ? { atLeast: 0.6 } : 'more'),
    {
      id: 'scaling',
      says: 'kvtide: 1 thread / 2 threads, over that of the sum',
      over: 'kvtide',
      under: ours2,
      base: [SUM, sum2],
      toReach: { atLeast: 0.95 },
      why,
    },
    ...faster.map((over): Ratio => ({ id: 'candle-over-ours', over, under: 'kvtide', toReach: { atLeast: 4 } })),
    { id: 'flash-over-ours', over: FLASH, under: 'kvtide', toReach: 'more' },
    ...ggml(lanes, 'kvtide'),
    fact('temporary', 'largest temporary of kvtide, in MiB', facts['temporary'] ?? Number.NaN, { atMost: 1 }),
  ]
}

function attentionPrefill({ lanes }: Outcome, workload: string): RatioOrClaim[] {
  return [
    {
      id: 'share-of-limit',
      over: MULTIPLY_ADDS,
      under: 'kvtide',
      toReach: workload === 'attention-prefill' ? { atLeast: 0.8 } : 'more',
    },
    { id: 'scaling', over: 'kvtide', under: 'kvtide, 2 threads', toReach: 'more' },
    { id: 'candle-over-ours', over: 'candle operations, grouped queries', under: 'kvtide', toReach: 'more' },
    ...ggml(lanes, 'kvtide'),
  ]
}

function attentionPages({ lanes, facts }: Outcome): RatioOrClaim[] {
  const bytes = (form: string): number =>
    (facts[`bytes of pages, ${form}`] ?? Number.NaN) / (facts['bytes of pages, f32'] ?? Number.NaN)
  return [
    ...['f32', 'f16'].map(dtype =>
      ratio(
        `${dtype}-over-contiguous`,
        `pages, ${dtype}`,
        `one piece, ${dtype}`,
        { atMost: 1.1 },
        { limit: [`sum in the order of pages, ${dtype}`, `sum, ${dtype}`] },
      ),
    ),
    ratio('q8-over-f16', 'pages, q8', 'pages, f16', { atMost: 1 }),
    ratio('q8-over-contiguous-f16', 'pages, q8', 'one piece, f16', 'less'),
    ...ggml(lanes, 'pages, q8'),
    ratio('f8e4m3-over-f16', 'pages, f8e4m3', 'pages, f16', 'less'),
    ratio('q4-over-f16', 'pages, q4', 'pages, f16', 'less'),
    ...['f8e4m3', 'q8', 'q4'].map(form =>
      fact(
        `${form}-bytes`,
        `bytes of ${form} pages / of f32 pages`,
        bytes(form),
        form === 'q8' ? { atMost: 0.3 } : 'less',
      ),
    ),
  ]
}

function attentionShared({ lanes }: Outcome, workload: string): RatioOrClaim[] {
  const grouped = workload.includes('grouped')
  const [one, apart] = ['one sequence at a time', 'sequences that share nothing']
  return [
    shareOfLimit(lanes, { atLeast: 0.7 }),
    ...['', ', 2 threads'].flatMap((threads): Ratio[] => [
      {
        id: `one-by-one-over-ours${threads && '-2'}`,
        over: `${one}${threads}`,
        under: `kvtide${threads}`,
        toReach: grouped ? 'more' : { atLeast: 3 },
      },
      {
        id: `apart-over-ours${threads && '-2'}`,
        over: `${apart}${threads}`,
        under: `kvtide${threads}`,
        toReach: 'more',
      },
    ]),
  ]
}

/** The ratios by the start of a workload's id, longer ones first. */
const RATIOS: readonly (readonly [string, (outcome: Outcome, workload: string) => RatioOrClaim[]])[] = [
  ['rotating-windows', windows],
  ['rotating', rotating],
  ['prefill', prefill],
  ['growable', growable],
  ['rollback', rollback],
  ['paged-token', pagedToken],
  ['paged-bulk', pagedBulk],
  ['attention-prefill', attentionPrefill],
  ['attention-pages', attentionPages],
  ['attention-shared', attentionShared],
  ['attention', attention],
  ['memcpy', () => []],
]

export function peersWorkload(id: string, memory: Workload['memory'], outcome: Outcome): Workload {
  const ratios = RATIOS.find(([start]) => id.startsWith(start))?.[1]
  if (ratios === undefined) throw new RangeError(`unknown workload ${id}`)
  const claims = ratios(outcome, id).map(found => ({
    ...('over' in found ? claimOf(outcome.lanes, found) : found),
    id: `${id}/${found.id}`,
  }))
  return { ...workloadOf(id, outcome.title, outcome.operation, outcome.lanes, []), memory, claims }
}
