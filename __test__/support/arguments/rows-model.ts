import { ModelCache, Tensor, type ModelSequence, type ModelStep } from '../../../index.js'
import { all, but, count, flag, milliseconds, never, optional, options, out, prompt, tensor, text, tokenIds, whole, type Kind } from './kinds.js'
import { free, Members, param, type Param, type Row } from './row.js'
import { objects, queries, settings, threeDims } from './rows-attend.js'
import { begin, GETTERS, NO_OPTIONS } from './rows-contiguous.js'

const two = (): Tensor => Tensor.from(Float32Array.from([1, 2, 3, 4]), [1, 1, 2, 2])
const hostTwo = (): object => ({ data: Float32Array.from([1, 2, 3, 4]), shape: [1, 2, 2] })
const ids = (): number[] => [7, 8]

/** Any object is one, whatever it is otherwise. */
const ANY: Kind['legal'] = { ...NO_OPTIONS, ...Object.fromEntries(GETTERS.map(name => [name, 'ok'])) }
const some = (fields: Record<string, Kind>, rest: () => object = () => ({})): Param => param('options', options(rest, fields, ANY), rest)

/** One layer and head, so that tokens of the shape that other caches take fit: two of two elements. */
const modelOptions = (): object => ({ model: { layers: [{ kind: 'full', numKvHeads: 1, headDim: 2 }] }, kind: 'paged', blockSize: 2, blocks: 3, events: 4 })
const tensorOptions = (): object => ({ model: { layers: [{ kind: 'full', numKvHeads: 1, headDim: 2 }] }, kind: 'contiguous' })

function modelCache(): ModelCache {
  const cache = new ModelCache(modelOptions() as never)
  cache.createSequence().append({ layers: [{ k: two(), v: two() }] })
  cache.createSequence()
  return cache
}

const made = { prefix: optional({ legal: { 'a PrefixMatch': 'SNAPSHOT_INVALID', 'a disposed PrefixMatch': 'DISPOSED' } }), ...prompt }
const known = optional(but(tokenIds, { 'an empty array': 'INVALID_ARGUMENT', 'a Uint32Array': 'INVALID_ARGUMENT' }))

const caches = new Members('ModelCache', modelCache)
  .plain('sequenceIds', 'stats', 'indexedKeys', 'forgetPrefixes', 'checkInvariants')
  .method('createSequence', some(made))
  .method('openSequence', some(made))
  .method('sequence', param('id', whole('SEQUENCE_NOT_FOUND'), () => 1))
  .method('match', param('tokens', tokenIds, ids), some({ ...prompt, partial: optional(flag) }))
  .method('ensureCapacity', param('seq', whole('SEQUENCE_NOT_FOUND'), () => 0), param('tokens', count, () => 3))
  .method('ensureCapacity', param('seq', { legal: {} }, () => [0, 1]), param('tokens', { legal: {} }, () => [3, 1]))
  .method('canAllocate', param('tokens', tokenIds, ids), some({ ...prompt, watermark: optional(count) }))
  .method('canAllocate', param('tokens', tokenIds, () => 3), some({ watermark: optional(count) }))
  .method('explain', param('tokens', tokenIds, ids), some(prompt))
  .method('keys', param('tokens', tokenIds, ids), some(prompt))
  .method('events', some({ from: optional(whole('ok')) }))
  .method('beginStep', param('options', options(() => ({ sequences: [0, 1] }), {
    sequences: { legal: { 'an empty array': 'ok', 'a Float64Array': 'SEQUENCE_NOT_FOUND' } },
    offsets: optional({ legal: {} }),
    parents: optional({ legal: {} }),
    tokens: known,
  }), () => ({ sequences: [0, 1] })))
  .disposable()

const input = (): object => ({ layers: [{ k: two(), v: hostTwo() }] })

const sequences = new Members('ModelSequence', () => modelCache().sequence(0))
  .plain('length', 'committedLength', 'fork', 'snapshot', 'drop')
  .method('begin', begin)
  .method('append', param('input', options(input, { layers: { legal: {} }, tokens: known }), input))
  .method('truncate', param('len', count, () => 1))
  .method('restore', param<ModelSequence>('snapshot', { legal: {} }, self => self.snapshot()))
  .method('kv', param('layer', count, () => 0))
  .method('retain', param('options', options(() => ({ priority: 5 }), {
    from: optional(count),
    to: optional(count),
    priority: count,
    forMs: optional(milliseconds),
    until: optional(milliseconds),
  }), () => ({ priority: 5, forMs: 10 })))
  .disposable()

const snapshots = new Members('ModelSnapshot', () => modelCache().sequence(0).snapshot()).plain('length').disposable()

/** A step of two sequences, written. */
function step(): ModelStep {
  const open = modelCache().beginStep({ sequences: [0, 1] })
  open.write(0, two(), two())
  return open
}

const ended = { disposed: 'TRANSACTION_CLOSED', foreign: 'INVALID_ARGUMENT' }

/** Its sequences are of unequal length, for which there is no mask. */
const alike: Record<string, Kind> = { ...settings, qOffsets: optional({ legal: { 'an empty array': 'SHAPE_MISMATCH' } }) }
delete alike['mask']

/** Queries may have a batch of one before them. */
const batched = but(threeDims, { 'a Tensor of another dtype': 'ok', 'a Tensor that looks like a KvSnapshot': 'ok' })

/** A call of attention over a step. */
const calls = (more: Record<string, Kind>): ReturnType<typeof param>[] => [
  param('layer', count, () => 0),
  param('q', batched, queries),
  param('options', options(() => ({}), { ...alike, ...more }, objects), () => ({ window: 2 })),
  param('out', optional(out('SHAPE_MISMATCH')), () => undefined),
]

const steps = new Members('ModelStep', step)
  .special('write', ended, param('layer', count, () => 0), param('k', tensor, two), param('v', tensor, hostTwo))
  .special('attend', ended, ...calls({}))
  .special('attendAsync', ended, ...calls({ signal: optional({ legal: {} }) }))
  .special('commit', ended, param('tokens', known, ids))
  .special('rollback', ended)
  .disposable()

const batchSizes = (): object => ({ maxSequences: 2, maxBlocks: 2, maxTokens: 4 })

const prepared = new Members('ModelCache', modelCache)
  .method('stepBatch', param('options', options(batchSizes, { maxSequences: count, maxBlocks: count, maxTokens: count, arrays: optional({ legal: {} }) }), batchSizes))
  .method('prepareStep', param<ModelCache>('batch', { legal: {} }, self => self.stepBatch(batchSizes() as never)), param('options', { legal: {} }, () => ({ sequences: [0, 1] })))

const batches = new Members('ModelStepBatch', () => modelCache().stepBatch(batchSizes() as never))
  .plain('groups', 'forget')
  .disposable()
  .kin('StepBatch', { forget: 'ok', dispose: 'ok', '[dispose]': 'ok' })

const common = { dtype: optional(text), device: optional(text), memoryLimitBytes: optional(whole('ok')) }

/** An object without layers is a configuration, which says too little; some of them JSON does not hold. */
const wrong = Object.fromEntries(['an empty array', 'an array with holes', 'a longest array', 'a revoked proxy', 'a BigInt64Array'].map(name => [name, 'INVALID_ARGUMENT']))
/** A model, described or configured. */
export const model: Kind = { legal: { ...all('UNSUPPORTED_MODEL', value => typeof value === 'object' && value !== null), ...wrong } }

/** Every row of a model's cache, and of what it gives. */
export const modelRows: readonly Row[] = [
  free('new ModelCache', param('options', options(modelOptions, {
    ...common,
    model,
    kind: text,
    blockSize: optional(count),
    blocks: { legal: {} },
    keyFormat: optional(text),
    valueFormat: optional(text),
    // Rotation needs a low-bit form of K.
    hadamard: optional(but(flag, { true: 'INVALID_ARGUMENT' })),
    namespace: optional(but(text, { '"3"': 'ok' })),
    prefixKey: optional({ legal: {} }),
    events: optional(count),
    now: optional({ legal: { 'a function': 'ok' } }),
    eviction: optional({ legal: { 'a function': 'ok' } }),
    memoryBytes: optional({ legal: {} }),
    maxSequences: optional({ legal: {} }),
    maxPrefillTokens: optional({ legal: {} }),
  }), modelOptions)),
  free('new ModelCache', param('options', options(tensorOptions, {
    ...common,
    batchSize: optional(count),
    maxSeqLen: optional(count),
    initialCapacity: optional(count),
    keepAll: optional(flag),
  }), tensorOptions)),
  ...caches.rows,
  ...['ModelSequence', 'ModelSnapshot', 'ModelStep', 'ModelStepBatch'].map(name => free(`new ${name}`, param('token', never, () => undefined), param('inner', never, () => undefined))),
  ...sequences.rows,
  ...snapshots.rows,
  ...steps.rows,
  ...prepared.rows,
  ...batches.rows,
]
