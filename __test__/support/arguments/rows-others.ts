import { BlockPool, BlockTable, KvTideError, PrefixNamer, Tensor } from '../../../index.js'
import {
  all,
  anything,
  but,
  count,
  data,
  flag,
  never,
  optional,
  options,
  out,
  prompt,
  shape,
  text,
  tokenIds,
  whole,
} from './kinds.js'
import { free, Members, param, type Row } from './row.js'
import { ANY, NO_OPTIONS } from './rows-contiguous.js'
import { model } from './rows-model.js'

const four = (): Float32Array => Float32Array.from([1, 2, 3, 4])
const square = (): Tensor => Tensor.from(four(), [2, 2])

const reading = param(
  'options',
  options(() => ({}), { signal: optional({ legal: {} }) }, ANY),
  () => ({}),
)

const tensors = new Members('Tensor', square)
  .plain(
    'shape',
    'dtype',
    'device',
    'strides',
    'length',
    'isStale',
    'isContiguous',
    'keyPositions',
    'data',
    'toArray',
    'toFloat32Array',
  )
  .method(
    'narrow',
    param('dim', count, () => 0),
    param('start', whole('INVALID_ARGUMENT'), () => 1),
    param('length', whole('INVALID_ARGUMENT'), () => 1),
  )
  .method(
    'reshape',
    param('shape', shape, () => [4]),
  )
  .method('readInto', param('out', out('INVALID_ARGUMENT'), four))
  .method('toArrayAsync', reading)
  .method('toFloat32ArrayAsync', reading)
  .method('readIntoAsync', param('out', out('INVALID_ARGUMENT'), four), reading)
  .method(
    'equals',
    param(
      'other',
      {
        legal: {
          'a Tensor of another shape': 'ok',
          'a Tensor of another dtype': 'ok',
          'a Tensor that looks like a Snapshot': 'ok',
          'a disposed Tensor': 'DISPOSED',
        },
      },
      square,
    ),
  )
  .special(
    '[custom]',
    { disposed: 'ok', foreign: 'ok' },
    param('depth', anything, () => 2),
    param('options', anything, () => ({})),
  )
  .disposable()

function blockPool(): BlockPool {
  const pool = new BlockPool({ capacity: 3 })
  pool.allocateMany(2)
  return pool
}

const pool = new Members('BlockPool', blockPool)
  .plain('freeCount', 'totalCount', 'utilization', 'allocate', 'tryAllocate')
  .method(
    'canAllocate',
    param('n', count, () => 1),
  )
  .method(
    'retain',
    param('block', whole('INVALID_BLOCK'), () => 0),
  )
  .method(
    'count',
    param('block', whole('INVALID_BLOCK'), () => 0),
  )
  .method(
    'allocateMany',
    param('n', count, () => 1),
  )
  .method(
    'free',
    param('block', whole('INVALID_BLOCK'), () => 0),
  )
  .method(
    'freeMany',
    param('blocks', { legal: { 'an empty array': 'ok', 'a Float64Array': 'INVALID_BLOCK' } }, () => [0, 1]),
  )
  .disposable()

function blockTable(): BlockTable {
  const table = new BlockTable({ numLayers: 2, blockSize: 4 })
  table.appendBlock(0, 7)
  return table
}

const table = new Members('BlockTable', blockTable)
  .method(
    'appendBlock',
    param('layer', count, () => 1),
    param('block', whole('ok'), () => 3),
  )
  .method(
    'getBlock',
    param('layer', count, () => 0),
    param('logical', count, () => 0),
  )
  .method(
    'numBlocks',
    param('layer', count, () => 0),
  )
  .method(
    'tokenCapacity',
    param('layer', count, () => 0),
  )
  .disposable()

const named = (): object => ({ blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 2 })
const namedModel = (): object => ({ model: { layers: [{ kind: 'full', numKvHeads: 1, headDim: 2 }] } })

/** The options that keys depend on, in caches of both kinds. */
const naming = {
  blockSize: optional(count),
  dtype: optional(text),
  keyFormat: optional(text),
  valueFormat: optional(text),
  // Rotation needs low-bit K, or V.
  hadamard: optional(but(flag, { true: 'INVALID_ARGUMENT' })),
  valueHadamard: optional(but(flag, { true: 'INVALID_ARGUMENT' })),
  namespace: optional(but(text, { '"3"': 'ok' })),
  prefixKey: optional({ legal: {} }),
}

const namer = new Members('PrefixNamer', () => new PrefixNamer(named() as never))
  .method(
    'keys',
    param('tokens', tokenIds, () => [7, 8]),
    param(
      'options',
      options(() => ({}), prompt, ANY),
      () => ({}),
    ),
  )
  .disposable()

const errors = new Members('KvTideError', () => new KvTideError('ABORTED', 'stop', {}))
  // Like `toString` of JavaScript's own errors.
  .special('toString', { disposed: 'ok', foreign: 'ok' })

/** Values that cannot be converted to a string, which JavaScript itself refuses. */
const printed = but(anything, {
  'a symbol': 'TypeError',
  'a revoked proxy': 'TypeError',
  'a proxy of an array': 'TypeError',
  'what looks like an array': 'TypeError',
  'a detached Float32Array': 'TypeError',
  'a detached Int32Array': 'TypeError',
  'a shrunk array': 'TypeError',
  'a longest array': 'RangeError',
})

/** Every other row. */
export const otherRows: readonly Row[] = [
  free(
    'new Tensor',
    param('token', never, () => undefined),
    param('part', never, () => undefined),
  ),
  free(
    'Tensor.from',
    param('data', data, four),
    param('shape', shape, () => [2, 2]),
    param(
      'options',
      options(
        () => ({}),
        { dtype: optional(text), device: optional(text) },
        {
          ...NO_OPTIONS,
          'a Tensor of another shape': 'ok',
          'a Tensor of another dtype': 'DTYPE_MISMATCH',
          'a disposed Tensor': 'DISPOSED',
        },
      ),
      () => ({}),
    ),
  ),
  ...tensors.rows,
  free(
    'new BlockPool',
    param(
      'options',
      options(() => ({ capacity: 1 }), {
        capacity: count,
        blockSize: optional(count),
        numLayers: optional(count),
        numKvHeads: optional(count),
        headDim: optional(count),
        watermark: optional(count),
      }),
      () => ({ capacity: 1 }),
    ),
  ),
  ...pool.rows,
  free(
    'new BlockTable',
    param(
      'options',
      options(() => ({ numLayers: 1, blockSize: 1 }), { numLayers: count, blockSize: count }),
      () => ({ numLayers: 1, blockSize: 1 }),
    ),
  ),
  ...table.rows,
  free(
    'new PrefixNamer',
    param(
      'options',
      options(named, {
        ...naming,
        numLayers: count,
        numKvHeads: count,
        headDim: count,
        valueHeadDim: optional(count),
        device: optional(text),
      }),
      named,
    ),
  ),
  free(
    'new PrefixNamer',
    param('options', options(namedModel, { ...naming, model, device: optional(text) }), namedModel),
  ),
  ...namer.rows,
  free(
    'new KvTideError',
    param('code', printed, () => 'ABORTED'),
    param('message', printed, () => 'stop'),
    param('details', anything, () => ({})),
    param('options', but(anything, { 'a revoked proxy': 'TypeError' }), () => ({})),
  ),
  ...errors.rows,
  free(
    'isKvTideError',
    param('error', anything, () => new Error('x')),
  ),
  free('memoryStats'),
  free(
    'setMemoryLimit',
    param(
      'bytes',
      but(
        whole('ok'),
        all('INVALID_ARGUMENT', value => typeof value !== 'number'),
      ),
      () => 2 ** 50,
    ),
  ),
]
