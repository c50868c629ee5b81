import { PagedKvCache, type Step, Tensor } from '../../../index.js'
import { all, but, count, flag, optional, options, otherIds, text, tokenIds, whole, type Kind } from './kinds.js'
import { free, Members, param, type Row } from './row.js'

const two = (): Tensor => Tensor.from(Float32Array.from([1, 2, 3, 4]), [1, 1, 2, 2])
const hostTwo = (): object => ({ data: Float32Array.from([1, 2, 3, 4]), shape: [1, 2, 2] })

/** One layer and one head, so that tokens with the shape of the other caches fit: two tokens of two elements. */
const modelOptions = (): object => ({
  model: { layers: [{ kind: 'full', numKvHeads: 1, headDim: 2 }] },
  blockSize: 2,
  capacity: 3,
  events: 4,
})

function modelCache(): PagedKvCache {
  const cache = new PagedKvCache(modelOptions() as never)
  cache.openSequence().append({ layers: [{ k: two(), v: two() }] })
  return cache
}

const known = optional(but(tokenIds, { 'an empty array': 'INVALID_ARGUMENT', ...otherIds }))
const input = (): object => ({ layers: [{ k: two(), v: hostTwo() }] })

const sequences = new Members('Sequence', () => modelCache().sequence(0))
  .method('append', param('input', options(input, { layers: { legal: {} }, tokens: known }), input))
  .method(
    'kv',
    param('layer', count, () => 0),
  )

/** A cache of a layer with keys and values and a state of 64 bytes, and a step of a sequence. */
function statesStep(): { readonly cache: PagedKvCache; readonly step: Step } {
  const tensors = [{ name: 'ssm', shape: [16], dtype: 'f32' }] as const
  const model = { layers: [{ kind: 'full', numKvHeads: 1, headDim: 2, tensors }] } as const
  const cache = new PagedKvCache({ model, blockSize: 2, capacity: 3 })
  return { cache, step: cache.beginStep({ sequences: [cache.openSequence()] }) }
}

const states = new Members('Sequence', () => statesStep().cache.sequence(0)).plain('states')
const ended = { disposed: 'TRANSACTION_CLOSED', foreign: 'INVALID_ARGUMENT' }
const index = param('index', count, () => 0)
const steps = new Members('Step', () => statesStep().step).special('readStates', ended, index).special(
  'writeStates',
  ended,
  index,
  param('bytes', { legal: { 'a Uint8Array': 'SHAPE_MISMATCH' } }, () => new Uint8Array(64)),
)

/** An object without layers counts as an incomplete configuration; some of these objects have no JSON form. */
const wrong = Object.fromEntries(
  ['an empty array', 'an array with holes', 'a longest array', 'a revoked proxy', 'a BigInt64Array'].map(name => [
    name,
    'INVALID_ARGUMENT',
  ]),
)
/** A model: a description or a configuration. */
export const model: Kind = {
  legal: { ...all('UNSUPPORTED_MODEL', value => typeof value === 'object' && value !== null), ...wrong },
}

/** Every row that only a cache of a model's layers has. */
export const modelRows: readonly Row[] = [
  free(
    'new PagedKvCache',
    param(
      'options',
      options(modelOptions, {
        dtype: optional(text),
        device: optional(text),
        memoryLimitBytes: optional(whole('ok')),
        model,
        blockSize: optional(count),
        capacity: but(count, { 'an array with holes': 'INVALID_ARGUMENT' }),
        keyFormat: optional(text),
        valueFormat: optional(text),
        // Rotation needs low-bit K, or V.
        hadamard: optional(but(flag, { true: 'INVALID_ARGUMENT' })),
        valueHadamard: optional(but(flag, { true: 'INVALID_ARGUMENT' })),
        namespace: optional(but(text, { '"3"': 'ok' })),
        prefixKey: optional({ legal: {} }),
        events: optional(count),
        now: optional({ legal: { 'a function': 'ok' } }),
        eviction: optional({ legal: { 'a function': 'ok' } }),
        memoryBytes: optional({ legal: {} }),
        maxSequences: optional({ legal: {} }),
        maxPrefillTokens: optional({ legal: {} }),
      }),
      modelOptions,
    ),
  ),
  ...sequences.rows,
  ...states.rows,
  ...steps.rows,
]
