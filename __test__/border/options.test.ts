// Options that do not exist: each is refused by its name, wherever options are taken, and nothing has changed.
import test from 'ava'

import {
  attend,
  BlockPool,
  BlockTable,
  KvCache,
  PagedKvCache,
  RollbackCache,
  RotatingCache,
  RotatingKvCache,
  Tensor,
} from '../../index.js'
import { throwsCode } from '../support/throws.js'
import { tokens } from '../support/tokens.js'

/** A call that takes options of one kind, as a caller would who knows no types. */
type Call = (options: Record<string, unknown>) => unknown

// A constructor or a method of any options.
// oxlint-disable-next-line typescript/no-explicit-any
const any = (value: unknown): any => value

const kv = { batchSize: 1, numKvHeads: 1, initialCapacity: 4, maxSeqLen: 16, headDim: 1 }
const paged = { capacity: 8, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, events: 1 }
const layer = { kind: 'full', numKvHeads: 1, headDim: 1 }
const rows = { data: Float32Array.of(1), shape: [1, 1, 1, 1] }
const layers = [
  { k: { data: Float32Array.of(1), shape: [1, 1, 1] }, v: { data: Float32Array.of(1), shape: [1, 1, 1] } },
]

function calls(): Record<string, Call> {
  const growing = new KvCache(kv)
  growing.update(tokens(0, 1), tokens(0, 1))
  const pages = new PagedKvCache(paged)
  const sequence = pages.openSequence()
  const model = new PagedKvCache({
    model: { layers: [{ kind: 'full', numKvHeads: 1, headDim: 1 }] },
    capacity: 8,
    events: 1,
  })
  const ofModel = model.openSequence()
  const tensor = tokens(0, 1)
  const rollback = new RollbackCache()
  return {
    'new KvCache': options => new KvCache(any({ ...kv, ...options })),
    'new PagedKvCache': options => new PagedKvCache(any({ ...paged, ...options })),
    'new PagedKvCache, of a model': options =>
      new PagedKvCache(any({ model: { layers: [layer] }, capacity: 8, ...options })),
    'new RotatingCache': options => new RotatingCache(any({ dim: 2, maxSeqLen: 4, ...options })),
    'new RotatingKvCache': options => new RotatingKvCache(any({ maxSeqLen: 4, ...options })),
    'new RollbackCache': options => new RollbackCache(any(options)),
    'new BlockPool': options => new BlockPool(any({ capacity: 4, ...options })),
    'new BlockTable': options => new BlockTable(any({ numLayers: 1, blockSize: 2, ...options })),
    'Tensor.from': options => Tensor.from(Float32Array.of(1), [1], any(options)),
    attend: options => attend(tensor, { k: tensor, v: tensor }, any(options)),
    'KvCache.begin': options => growing.begin(any(options)),
    'RollbackCache.append': options => rollback.append(tokens(0, 1), tokens(0, 1), any(options)),
    createSequence: options => pages.createSequence(any(options)),
    match: options => pages.match([1, 2], any(options)),
    canAllocate: options => pages.canAllocate([1, 2], any(options)),
    explain: options => pages.explain([1, 2], any(options)),
    keys: options => pages.keys([1, 2], any(options)),
    events: options => pages.events(any(options)),
    'PagedKvCache.append': options => pages.append([sequence], rows, rows, undefined, any(options)),
    'Sequence.append': options => sequence.append(any({ k: rows, v: rows, ...options })),
    'Sequence.append, layer by layer': options => ofModel.append(any({ layers, ...options })),
    retain: options => sequence.retain(any({ priority: 1, ...options })),
    beginStep: options => pages.beginStep(any({ sequences: [sequence], ...options })),
    stepBatch: options => pages.stepBatch(any({ maxSequences: 1, maxBlocks: 1, maxTokens: 1, ...options })),
  }
}

test('an option that does not exist is refused by its name', t => {
  for (const [name, call] of Object.entries(calls())) {
    const error = throwsCode(t, 'INVALID_ARGUMENT', () => call({ blocksize: 4 }))
    t.regex(error.details.argument, /^(options|input)\.blocksize$/, name)
    t.is(error.details.value, 'an unknown option', name)
    t.regex(error.details.expected, /^(one of the known options|\w+, or another known option): \w+/, name)
    t.notThrows(() => call({ blocksize: undefined }), `${name}: what is undefined is as left out`)
  }
})

test('an option of a draft that does not exist is refused', t => {
  using cache = new KvCache(kv)
  using draft = cache.begin()
  const error = throwsCode(t, 'INVALID_ARGUMENT', () => draft.append(tokens(0, 1), tokens(0, 1), any({ parent: [-1] })))
  t.is(error.message, "options.parent is an unknown option; did you mean 'parents'? Known options: parents")
  t.is(draft.length, 0)
  using pages = new PagedKvCache(any(paged))
  using ofPages = pages.openSequence().begin()
  throwsCode(t, 'INVALID_ARGUMENT', () => ofPages.append(any({ k: rows, v: rows, ids: [1] })))
})

const of = (more: object, attention?: object): PagedKvCache =>
  new PagedKvCache(any({ model: { layers: [{ ...layer, ...more }], attention }, capacity: 1 }))

test('a field of a layer that does not exist is refused; a config.json has fields of its own', t => {
  t.is(throwsCode(t, 'INVALID_ARGUMENT', () => of({ windowSize: 4 })).details.argument, 'layers[0].windowSize')
  t.is(throwsCode(t, 'INVALID_ARGUMENT', () => of({}, { softCap: 4 })).details.argument, 'attention.softCap')
  const config = {
    model_type: 'llama',
    num_hidden_layers: 1,
    num_attention_heads: 1,
    hidden_size: 4,
    torch_dtype: 'bfloat16',
    anything: 1,
  }
  using cache = new PagedKvCache({ model: config, capacity: 1 })
  t.is(cache.numLayers, 1)
})

test('what has a name of its own cannot be an option of another kind', t => {
  // Each is an option of the other.
  throwsCode(t, 'INVALID_ARGUMENT', () => new RotatingKvCache(any({ maxSeqLen: 4, dim: 2 })))
  t.is(
    throwsCode(t, 'INVALID_ARGUMENT', () => new RotatingCache(any({ dim: 2, maxSeqLen: 4, window: 2 }))).details
      .argument,
    'options.window',
  )
})
