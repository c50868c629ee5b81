import type { Sequence } from '../../../index.js'
import * as entry from '../../../transformers.js'
import { loadModel, row as ids } from '../transformers/model.js'
import { transformers } from '../transformers/package.js'
import { but, count, never, optional, options, prompt, text, tokenIds, type Kind } from './kinds.js'
import { free, Members, param, type Row, rowsOf } from './row.js'
import { ANY } from './rows-contiguous.js'
import { vocabularyRows } from './rows-vocabulary.js'

type Cached = entry.CachedModel

const { Tensor } = transformers
const model = await loadModel()
const small = (): object => ({ capacity: 16, blockSize: 4 })
const cached = async (): Promise<Cached> => entry.CachedModel.of(model, { cache: { capacity: 16, blockSize: 4 } })
const opened = (self: Cached): Sequence => self.cache.openSequence()

/** The pasts of two tokens, as a model of transformers.js has them. */
using of = await cached()
const pasts = Object.fromEntries(
  of.cache.groups.flatMap(({ layers, numKvHeads, headDim, valueHeadDim }) =>
    layers.flatMap(layer =>
      [
        ['key', headDim],
        ['value', valueHeadDim],
      ].map(([side, dim]) => {
        const dims = [1, numKvHeads, 2, dim as number]
        const elements = new Float32Array(dims.reduce((product, size) => product * size))
        return [`past_key_values.${layer}.${side}`, new Tensor('float32', elements, dims)]
      }),
    ),
  ),
)

const sequence: Kind = { legal: { 'a disposed Sequence': 'DISPOSED' } }
const missing: Kind['legal'] = { nothing: 'ok', null: 'ok' }
/** A tensor by its fields, with three whole numbers. */
const tensorOf = (...numbers: bigint[]): object => ({ type: 'int64', data: BigInt64Array.from(numbers), dims: [1, 3] })
/** A tensor in place of one of three numbers. */
const tensor = (numbers: bigint[], legal: Kind['legal'] = {}): Kind =>
  options(() => tensorOf(...numbers), { data: { legal: {} }, dims: { legal: {} } }, legal)

const asked = (): object => ({
  input_ids: ids([1, 2, 3]),
  attention_mask: tensorOf(1n, 1n, 1n),
  position_ids: tensorOf(0n, 1n, 2n),
  past_key_values: null,
  max_new_tokens: 1,
  do_sample: false,
})

const past = (): object => new transformers.DynamicCache(pasts)

const models = new Members('CachedModel', cached)
  .method(
    'generate',
    param(
      'options',
      options(asked, {
        input_ids: tensor([1n, 2n, 3n]),
        attention_mask: tensor([1n, 1n, 1n], missing),
        position_ids: tensor([0n, 1n, 2n], missing),
        past_key_values: { legal: missing },
        sequence: optional(sequence),
        ...prompt,
        grammar: optional({ legal: {} }),
        vocabulary: optional({ legal: {} }),
      }),
      asked,
    ),
  )
  .method('load', param('sequence', sequence, opened))
  .method(
    'mask',
    param('length', count, () => 3),
  )
  .method(
    'store',
    param('sequence', sequence, opened),
    param(
      'past',
      options(
        () => ({ get_seq_length: () => 2, ...pasts }),
        Object.fromEntries(Object.keys(pasts).map(name => [name, { legal: {} }])),
      ),
      past,
    ),
    param('tokens', but(tokenIds, { 'an empty array': 'INVALID_ARGUMENT' }), () => [1, 2]),
  )
  .disposable()
  .special('[asyncDispose]', { disposed: 'ok', foreign: 'INVALID_ARGUMENT' })

/** Rows of kvtide/transformers. */
export const transformersRows: readonly Row[] = rowsOf(entry, [
  free(
    'new CachedModel',
    param('token', never, () => undefined),
    param('made', never, () => undefined),
  ),
  free(
    'CachedModel.of',
    param('model', { legal: {} }, () => model),
    param(
      'options',
      options(
        () => ({}),
        {
          cache: optional(
            options(small, { capacity: optional(count), dtype: optional(text), device: optional(text) }, ANY),
          ),
        },
        ANY,
      ),
      () => ({}),
    ),
  ),
  ...models.rows,
  ...vocabularyRows,
])
