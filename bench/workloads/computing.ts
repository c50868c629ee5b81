// Measures the time to compute a prompt on a cache miss: one layer of a model of a billion weights in onnxruntime, times its layers. Embedding and
// logits are left out, and so is the extra cost of weights that, all together, fit into no cache.
import { join } from 'node:path'

import * as onnxruntime from 'onnxruntime-node'

import { lane, pause, type Contestant } from '../../lib/cli/rounds.js'
import { REPORTS } from '../run/suites.js'
import { writeDecoder, type DecoderSizes } from './decoder.js'

const LAYERS = 16

const LAYER: DecoderSizes = {
  layers: 1,
  width: 2048,
  heads: 32,
  kvHeads: 8,
  headDim: 64,
  hidden: 8192,
  vocabulary: 256,
  positions: 4096,
}

const { InferenceSession, Tensor } = onnxruntime

const int64 = (length: number, of: (at: number) => number): onnxruntime.Tensor =>
  new Tensor(
    'int64',
    BigInt64Array.from({ length }, (_, at) => BigInt(of(at))),
    [1, length],
  )

export async function computes(tokens: number, threads: number): Promise<Contestant> {
  const path = writeDecoder(join(REPORTS, 'layer'), LAYER)
  const session = await InferenceSession.create(path, {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    graphOptimizationLevel: 'all',
    logSeverityLevel: 3,
  })
  const past = (): onnxruntime.Tensor =>
    new Tensor('float32', new Float32Array(0), [1, LAYER.kvHeads, 0, LAYER.headDim])
  const feeds = {
    input_ids: int64(tokens, at => at % LAYER.vocabulary),
    attention_mask: int64(tokens, () => 1),
    'past_key_values.0.key': past(),
    'past_key_values.0.value': past(),
  }
  // A round computes one layer; the reported time is that of all layers.
  return lane(
    'peer',
    `onnxruntime, computes them: ${LAYERS} times a layer`,
    1 / LAYERS,
    async () => void (await session.run(feeds)),
    { shared: true, before: pause },
  )
}
