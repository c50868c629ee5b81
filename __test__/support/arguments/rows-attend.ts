import { PagedKvCache, Tensor } from '../../../index.js'
import { but, count, flag, optional, options, out, tensor, type Kind } from './kinds.js'
import { free, param, type Param, type Row } from './row.js'
import { NO_OPTIONS } from './rows-contiguous.js'

/** Two tokens `[1, 1, 2, 2]`. */
const pair = (): Tensor => Tensor.from(Float32Array.from([1, 2, 3, 4]), [1, 1, 2, 2])
const host = (): object => ({ data: Float32Array.from([5, 6, 7, 8]), shape: [1, 1, 2, 2] })
const kv = (): object => ({ k: pair(), v: host() })

/** Queries, keys and values may each have their own float type. */
const floats = but(tensor, { 'a Tensor of another dtype': 'ok' })

const scale: Kind = { legal: { '-1': 'ok', '1.5': 'ok', '2^31': 'ok', '2^32 + 5': 'ok', '2^53': 'ok' } }
const softcap: Kind = { legal: { '1.5': 'ok', '2^31': 'ok', '2^32 + 5': 'ok', '2^53': 'ok' } }

/** A list of whole numbers, which is too short. */
const integers: Kind = { legal: { 'an empty array': 'SHAPE_MISMATCH' } }
const wrong = 'SHAPE_MISMATCH'
const logits: Kind = {
  legal: {
    'an empty array': wrong,
    'a Float32Array of 3': wrong,
    'an array with a length of its own': wrong,
    'an array of another realm': wrong,
  },
}

export const settings: Readonly<Record<string, Kind>> = {
  scale: optional(scale),
  causal: optional(flag),
  window: optional(count),
  sinks: optional(count),
  sinkLogits: optional(logits),
  alibiSlopes: optional(logits),
  softcap: optional(softcap),
  mask: optional(tensor),
  tree: optional(integers),
  treeOffsets: optional({ ...integers, legal: { ...integers.legal, 'an empty array': 'INVALID_ARGUMENT' } }),
  starts: optional(integers),
  positions: optional(integers),
  // Not needed if all sequences have the same length.
  qOffsets: optional({ legal: {} }),
  returnLse: optional(flag),
  threads: optional(count),
}

/** Any object with fields is valid, as long as none of them is an option. */
export const objects: Kind['legal'] = {
  ...NO_OPTIONS,
  ...Object.fromEntries(
    ['a disposed Tensor', 'a proxy of a Tensor', 'what looks like a Tensor', 'a Snapshot that looks like a Tensor'].map(
      name => [name, 'ok'],
    ),
  ),
  'a disposed RotatingSnapshot': 'DISPOSED',
}

const calls = (more: Record<string, Kind>): Param[] => [
  param('q', floats, pair),
  param('kv', options(kv, { k: floats, v: floats, kvOffsets: optional(integers) }), kv),
  param(
    'options',
    options(() => ({}), { ...settings, ...more }, objects),
    () => ({ window: 2 }),
  ),
  param('out', optional(out(wrong)), () => undefined),
]

/** Two sequences in one layer, of two tokens and of none. */
const cache = new PagedKvCache({ capacity: 3, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 2 })
cache.writeTokens(
  cache.createSequence(),
  0,
  0,
  Tensor.from(Float32Array.from([1, 2, 3, 4]), [1, 2, 2]),
  Tensor.from(Float32Array.from([5, 6, 7, 8]), [1, 2, 2]),
)
cache.createSequence()

/** The two ways to refer to pages, and the outcomes of their fields. */
const pages = [
  [
    () => ({ cache, layer: 0, sequences: [0, 1] }),
    { cache: count, layer: count, sequences: { legal: { 'a Float64Array': 'SEQUENCE_NOT_FOUND' } } },
  ],
  [
    () => ({ cache, layer: 0, blockTables: Int32Array.of(0, 1), lengths: Int32Array.of(2, 1) }),
    {
      cache: count,
      layer: count,
      blockTables: { legal: { 'an empty array': 'POSITION_OUT_OF_RANGE' } },
      lengths: integers,
    },
  ],
] as const

/** A query for each sequence, `[2, 1, 2]`. */
export const queries = (): Tensor => Tensor.from(Float32Array.from([1, 2, 3, 4]), [2, 1, 2])
/** A batch dimension of one in front is allowed. */
export const overPagesKind: Kind = {
  legal: { ...tensor.legal, 'a Tensor of another dtype': 'ok', 'a Tensor that looks like a Snapshot': 'ok' },
}

/** Rows over pages, of a cache that a refused call leaves unchanged. */
const overPages = (name: string): Row[] =>
  pages.map(([rest, fields]) => ({
    ...free(
      name,
      param('q', overPagesKind, queries),
      param('kv', options(rest, fields), rest),
      param(
        'options',
        options(() => ({}), {}, objects),
        () => ({ window: 2 }),
      ),
      param('out', optional(out(wrong)), () => undefined),
    ),
    self: () => cache,
  }))

/** Every row of attention and of its thread count. */
export const attendRows: readonly Row[] = [
  free('attend', ...calls({})),
  free('attendAsync', ...calls({ signal: optional({ legal: {} }) })),
  ...overPages('attend'),
  ...overPages('attendAsync'),
  free(
    'mergeAttention',
    param('parts', { legal: {} }, () => [{ out: pair(), lse: Float32Array.of(1, 2) }]),
  ),
  free('threads'),
  free(
    'setThreads',
    param('n', count, () => 2),
  ),
]
