import { PagedKvCache, type PrefixMatch, type Step, type StepBatch, Tensor } from '../../../index.js'
import {
  but,
  count,
  flag,
  never,
  optional,
  options,
  otherIds,
  out,
  prompt,
  seq,
  tensor,
  text,
  tokenIds,
  vector,
  whole,
  type Kind,
} from './kinds.js'
import { fileOptions, ownPrompt, path, source } from './files.js'
import { free, Members, param, type Row } from './row.js'
import { objects, overPagesKind, queries, settings } from './rows-attend.js'
import { ANY, NO_OPTIONS, begin, restored, retained, some } from './rows-contiguous.js'

const four = (): Float32Array => Float32Array.from([1, 2, 3, 4])
const square = (): Tensor => Tensor.from(four(), [2, 2])
const two = (): Tensor => Tensor.from(four(), [1, 1, 2, 2])
const hostTwo = (): object => ({ data: four(), shape: [1, 2, 2] })
const ids = (): number[] => [7, 8]

const pagedOptions = (): object => ({ capacity: 3, blockSize: 2, numLayers: 2, numKvHeads: 2, headDim: 2, events: 4 })

function pagedCache(): PagedKvCache {
  const cache = new PagedKvCache(pagedOptions() as never)
  cache.writeKv(cache.createSequence(), 0, 0, four(), four())
  cache.createSequence()
  return cache
}

/** A sequence, a layer and a position of a call. */
const place = [
  param('seq', seq('SEQUENCE_NOT_FOUND'), () => 0),
  param('layer', count, () => 0),
  param('pos', count, () => 0),
]

const made = {
  prefix: optional({ legal: { 'a PrefixMatch': 'SNAPSHOT_INVALID', 'a disposed PrefixMatch': 'DISPOSED' } }),
  ...prompt,
}

const paged = new Members('PagedKvCache', pagedCache)
  .special('[asyncDispose]', { disposed: 'ok', foreign: 'INVALID_ARGUMENT' })
  .plain(
    'freeCount',
    'totalCount',
    'poolUtilization',
    'sequenceIds',
    'stats',
    'indexedKeys',
    'replay',
    'forgetPrefixes',
    'checkInvariants',
  )
  .method('createSequence', some(made))
  .method('openSequence', some(made))
  .method(
    'sequence',
    param('id', seq('SEQUENCE_NOT_FOUND'), () => 1),
  )
  .method(
    'dropSequence',
    param('seq', seq('SEQUENCE_NOT_FOUND'), () => 0),
  )
  .method('match', param('tokens', tokenIds, ids), some({ ...prompt, partial: optional(flag) }))
  .method('canAllocate', param('tokens', tokenIds, ids), some({ ...prompt, watermark: optional(count) }))
  .method(
    'admit',
    param('tokens', tokenIds, ids),
    some({
      ...prompt,
      watermark: optional(count),
      answerTokens: optional(count),
      stepTokens: optional(but(count, {})),
    }),
  )
  .method(
    'canAllocate',
    param('tokens', tokenIds, () => 3),
    some({ watermark: optional(count) }),
  )
  .method('explain', param('tokens', tokenIds, ids), some(prompt))
  .method('keys', param('tokens', tokenIds, ids), some(prompt))
  .method('events', some({ from: optional(whole('ok')) }))
  .method(
    'ensureCapacity',
    param('seq', seq('SEQUENCE_NOT_FOUND'), () => 0),
    param('tokens', count, () => 3),
  )
  .method(
    'ensureCapacity',
    param('seq', { legal: { 'a disposed Sequence': 'DISPOSED' } }, () => [0, 1]),
    param('tokens', { legal: {} }, () => [3, 1]),
  )
  .method('writeKv', ...place, param('key', vector, four), param('value', vector, square))
  .method('readKv', ...place)
  .method('readKvInto', ...place, param('key', out('DIM_MISMATCH'), four), param('value', out('DIM_MISMATCH'), four))
  .method(
    'sequenceLength',
    param('seq', seq('ok'), () => 0),
  )
  .method(
    'sequenceCapacity',
    param('seq', seq('ok'), () => 0),
  )
  .method('save', path, fileOptions(ANY))
  .method('saveBytes', fileOptions(ANY))
  .method('loadPrompts', source(await pagedCache().saveBytes()), fileOptions(ANY))
  .disposable()

/** The outcomes of objects whose getters have the names of options. */
const LOOKED_AT = {
  ...NO_OPTIONS,
  'a Tensor of another dtype': 'INCOMPATIBLE',
  'a disposed Tensor': 'DISPOSED',
  'a RotatingSnapshot': 'INVALID_ARGUMENT',
  'a disposed RotatingSnapshot': 'DISPOSED',
}
const SAVED_OPTIONS = {
  events: optional(count),
  capacity: optional(count),
  memoryLimitBytes: optional(whole('ok')),
  device: optional(text),
  eviction: optional({ legal: { 'a function': 'ok' } }),
}

/** One layer and one head, so that tokens with the shape of the other caches fit: two tokens of two elements. */
function narrowCache(): PagedKvCache {
  const cache = new PagedKvCache({ ...pagedOptions(), numLayers: 1, numKvHeads: 1 } as never)
  cache.writeTokens(cache.createSequence(), 0, 0, two(), two())
  cache.createSequence()
  return cache
}

const known = optional(but(tokenIds, { 'an empty array': 'INVALID_ARGUMENT', ...otherIds }))

const bulk = new Members('PagedKvCache', narrowCache)
  .method('loadSequence', source(await narrowCache().sequence(0).saveBytes()), fileOptions(ANY, ownPrompt))
  .method('writeTokens', ...place, param('k', tensor, two), param('v', tensor, hostTwo))
  .method(
    'append',
    param('sequences', { legal: {} }, () => [0, 1]),
    param('k', tensor, two),
    param('v', tensor, two),
    param('offsets', optional({ legal: {} }), () => [0, 1, 2]),
    some({ tokens: known }, () => ({ tokens: ids() })),
  )
  .method(
    'beginStep',
    param(
      'options',
      options(() => ({ sequences: [0, 1] }), {
        sequences: { legal: { 'an empty array': 'ok', 'a Float64Array': 'SEQUENCE_NOT_FOUND' } },
        offsets: optional({ legal: {} }),
        parents: optional({ legal: {} }),
        tokens: known,
      }),
      () => ({ sequences: [0, 1] }),
    ),
  )
  .method(
    'gather',
    param('seq', seq('SEQUENCE_NOT_FOUND'), () => 0),
    param('layer', count, () => 0),
  )
  .method(
    'gatherInto',
    param('seq', seq('SEQUENCE_NOT_FOUND'), () => 0),
    param('layer', count, () => 0),
    param('k', out('DIM_MISMATCH'), four),
    param('v', out('DIM_MISMATCH'), four),
  )

const arrays = (): object => ({ k: four(), v: four() })
const input = (): object => ({ k: two(), v: { data: four(), dims: [1, 1, 2, 2], type: 'float32' } })

const sequence = new Members('Sequence', () => narrowCache().sequence(0))
  .plain('length', 'committedLength', 'retainedLength', 'capacity', 'fork', 'snapshot', 'drop')
  .method('append', param('input', options(input, { k: tensor, v: tensor, tokens: known }), input))
  .method(
    'truncate',
    param('len', count, () => 1),
  )
  .method('resume', param('tokens', tokenIds, ids))
  .method('identify', param('tokens', but(tokenIds, otherIds), ids))
  .method(
    'readInto',
    param(
      'out',
      options(arrays, { k: out('DIM_MISMATCH'), v: out('DIM_MISMATCH'), layers: optional({ legal: {} }) }),
      arrays,
    ),
  )
  .method('restore', restored)
  .method('begin', begin)
  .method(
    'retain',
    retained(() => ({ priority: 5, forMs: 10 })),
  )
  .method('save', path, fileOptions(ANY))
  .method('saveBytes', fileOptions(ANY))
  .disposable()

const snapshots = new Members('Snapshot', () => narrowCache().sequence(0).snapshot()).plain('length').disposable()

const matches = new Members('PrefixMatch', (): PrefixMatch => narrowCache().match(ids())).disposable()

/** A step of two sequences, written. */
function step(): Step {
  const open = narrowCache().beginStep({ sequences: [0, 1] })
  open.write(0, two(), two())
  return open
}

const ended = { disposed: 'TRANSACTION_CLOSED', foreign: 'INVALID_ARGUMENT' }

/** The step's sequences have unequal lengths, for which no mask is possible. */
const alike: Record<string, Kind> = {
  ...settings,
  qOffsets: optional({ legal: { 'an empty array': 'SHAPE_MISMATCH' } }),
}
delete alike['mask']

/** A call of attention over a step. */
const calls = (more: Record<string, Kind>): ReturnType<typeof param>[] => [
  param('layer', count, () => 0),
  param('q', overPagesKind, queries),
  param(
    'options',
    options(() => ({}), { ...alike, ...more }, objects),
    () => ({ window: 2 }),
  ),
  param('out', optional(out('SHAPE_MISMATCH')), () => undefined),
]

const steps = new Members('Step', step)
  .special(
    'write',
    ended,
    param('layer', count, () => 0),
    param('k', tensor, two),
    param('v', tensor, hostTwo),
  )
  .special('attend', ended, ...calls({}))
  .special('attendAsync', ended, ...calls({ signal: optional({ legal: {} }) }))
  .special('commit', ended, param('tokens', known, ids))
  .special('rollback', ended)
  .disposable()

/** Sizes of a batch for a step of two sequences. */
const batchSizes = (): object => ({ maxSequences: 2, maxBlocks: 2, maxTokens: 4 })
const batchOf = (self: PagedKvCache): StepBatch => self.stepBatch(batchSizes() as never)

const prepared = new Members('PagedKvCache', narrowCache)
  .method(
    'stepBatch',
    param(
      'options',
      options(batchSizes, { maxSequences: count, maxBlocks: count, maxTokens: count, arrays: optional({ legal: {} }) }),
      batchSizes,
    ),
  )
  .method(
    'prepareStep',
    param<PagedKvCache>('batch', { legal: {} }, batchOf),
    param(
      'options',
      options(() => ({ sequences: [0, 1] }), {
        // The Float64Array has more sequences than the batch has rows.
        sequences: { legal: { 'an empty array': 'ok' } },
        offsets: optional({ legal: {} }),
        parents: optional({ legal: {} }),
        tokens: known,
      }),
      () => ({ sequences: [0, 1] }),
    ),
  )

const batches = new Members('StepBatch', () => narrowCache().stepBatch(batchSizes() as never))
  .plain('forget')
  .disposable()

/** Every row of the paged cache and of the objects that it returns. */
export const pagedRows: readonly Row[] = [
  free(
    'new PagedKvCache',
    param(
      'options',
      options(pagedOptions, {
        capacity: count,
        blockSize: optional(count),
        numLayers: count,
        numKvHeads: count,
        headDim: count,
        valueHeadDim: optional(count),
        dtype: optional(text),
        keyFormat: optional(text),
        valueFormat: optional(text),
        // Rotation needs low-bit K, or V.
        hadamard: optional(but(flag, { true: 'INVALID_ARGUMENT' })),
        valueHadamard: optional(but(flag, { true: 'INVALID_ARGUMENT' })),
        window: optional(count),
        sinks: optional(count),
        namespace: optional(but(text, { '"3"': 'ok' })),
        prefixKey: optional({ legal: {} }),
        events: optional(count),
        now: optional({ legal: { 'a function': 'ok' } }),
        eviction: optional({ legal: { 'a function': 'ok' } }),
        device: optional(text),
        memoryLimitBytes: optional(whole('ok')),
      }),
      pagedOptions,
    ),
  ),
  free('PagedKvCache.load', source(await pagedCache().saveBytes()), fileOptions(LOOKED_AT, SAVED_OPTIONS)),
  ...paged.rows,
  ...bulk.rows,
  ...['Sequence', 'Snapshot', 'PrefixMatch', 'Step', 'StepBatch'].map(name =>
    free(
      `new ${name}`,
      param('token', never, () => undefined),
      param('inner', never, () => undefined),
    ),
  ),
  ...sequence.rows,
  ...snapshots.rows,
  ...matches.rows,
  ...steps.rows,
  ...prepared.rows,
  ...batches.rows,
]
