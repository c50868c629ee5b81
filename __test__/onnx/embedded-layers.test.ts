// Decoders that take embeddings and more for each token: rows of each layer, ids, three rows of positions. All backends give what the unmodified graph gives,
// alone, together, and in pieces.
import type { ExecutionContext } from 'ava'

import { OnnxModel } from '../../onnx.js'
import { onnxTest as test } from '../support/onnx/available.js'
import {
  type GroupedDecoder,
  groupedDecoder,
  groupedEmbeddings,
  GROUPED_VOCABULARY,
} from '../support/onnx/grouped-decoder.js'
import { BACKENDS, sameEverywhere } from '../support/onnx/same-everywhere.js'
import { rejected } from '../support/throws.js'

const same = (t: ExecutionContext, form: GroupedDecoder): Promise<void> =>
  sameEverywhere(t, {
    decoder: groupedDecoder(form),
    embeddings: groupedEmbeddings(form),
    vocabulary: GROUPED_VOCABULARY,
  })

test('rows of each layer come from the model of embeddings, with an axis of their own or beside each other', async t => {
  for (const perLayer of ['beside', 'apart'] as const) await same(t, { perLayer })
})

test('a decoder takes ids beside the embeddings', async t => {
  await same(t, { perLayer: 'ids' })
  for (const backend of BACKENDS) {
    const loading = OnnxModel.load(groupedDecoder({ perLayer: 'ids' }), { backend })
    const { details } = await rejected(loading, 'UNSUPPORTED_GRAPH')
    t.like(details, { node: 'inputs_embeds', kind: 'embeddings' }, backend)
  }
})

test('a layer takes the presents of another one in place of keys and values of its own', async t => {
  await same(t, { isShared: true, perLayer: 'apart' })
})

test('three rows of positions rotate queries and keys before the attention', async t => {
  await same(t, { rotary: 'three rows' })
})
