// Pasts whose rows have keys and values beside each other: all backends split them, and give the same.
import { OnnxModel } from '../../onnx.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { besideDecoder, BESIDE_VOCABULARY } from '../support/onnx/beside-decoder.js'
import { sameEverywhere } from '../support/onnx/same-everywhere.js'

test('keys and values beside each other are pages of one head', async t => {
  await sameEverywhere(t, { decoder: besideDecoder(), vocabulary: BESIDE_VOCABULARY })
  await using model = await OnnxModel.load(besideDecoder(), { threads: 1, cache: { memoryBytes: 2 ** 22 } })
  t.is(model.backend, 'graph')
  const [group] = model.layers
  t.like(group, { numKvHeads: 1, headDim: 8, valueHeadDim: 8 })
})
